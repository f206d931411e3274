"""Runs on the Hugging Face hub: ``hf://owner/name`` or ``hf://owner/name@revision`` in place of a run folder.

Only the files of a run are fetched, and copied into a folder of the cache. It is read as any run of somebody else.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from labelgap.core.cache import cache_folder
from labelgap.core.errors import InputError
from labelgap.core.files import make_folder
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.core.terminal import unescaped_output
from labelgap.models.weight_files import check_reachable
from labelgap.training.config import CONFIG_FILE
from labelgap.training.history import METRICS_FILE
from labelgap.training.run_files import BEST

RUN_FOLDER: Final = "labelgap"  # the folder of a repository that holds the run
RUN_FILES: Final = (CONFIG_FILE, METRICS_FILE, BEST)
_ADDRESS: Final = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def hub_library() -> Any:
    """Import huggingface_hub."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise InputError("the hub needs the package huggingface_hub: pip install 'labelgap[huggingface]'.") from None


def local_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a run: a path as it is, an address of the hub after its files were downloaded."""
    address = _ADDRESS.fullmatch(os.fspath(path))  # as a Path it has one slash
    if address is None:
        return Path(path)
    name, revision = address.groups()
    try:
        with unescaped_output():
            found = _download(name, revision)
    except Exception as error:  # of the HTTP library underneath, or of the checks of the name
        where = f"hf://{name}{f'@{revision}' if revision else ''}"
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, importlib.import_module("huggingface_hub.errors").LocalEntryNotFoundError):
            reason = "the hub cannot be reached, and its cache on this machine has no such files"
        raise InputError(f"{where} cannot be opened ({reason}).") from error
    folder = cache_folder() / "hub" / name.replace("/", "--") / found[0].parents[1].name
    make_folder(folder.parent)
    with TemporaryDirectory(dir=folder.parent) as temporary, suppress(FileExistsError):
        run = Path(temporary, "run")
        run.mkdir()
        for file in found:
            shutil.copyfile(file, run / file.name)
        if not folder.exists():
            run.rename(folder)
    return folder


def _download(name: str, revision: str | None) -> list[Path]:
    """Return the files of one commit in the hub's cache; without a network at once, where the library would retry."""
    hub, files, local = hub_library(), [f"{RUN_FOLDER}/{name}" for name in (*RUN_FILES, MANIFEST_FILE)], False
    try:
        check_reachable(hub.hf_hub_url(name, files[0], revision=revision))
    except OSError:
        local = True
    first = Path(hub.hf_hub_download(name, files[0], revision=revision, local_files_only=local))
    how = {"revision": first.parents[1].name, "local_files_only": local}
    return [first, *(Path(hub.hf_hub_download(name, file, **how)) for file in files[1:])]
