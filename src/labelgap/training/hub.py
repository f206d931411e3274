"""Runs on the Hugging Face hub: ``hf://owner/name`` or ``hf://owner/name@revision`` in place of a run folder.

Of the repository only the four files of a run are fetched, by huggingface_hub, whose cache also serves where there is
no network. They are copied into a folder of the cache by their commit, as the hub's cache consists of links. Such a run
is like any that somebody else made: it is read, and nothing that it names is loaded or executed unasked.
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
from labelgap.training.config import CONFIG_FILE
from labelgap.training.history import METRICS_FILE
from labelgap.training.run_files import BEST

RUN_FOLDER: Final = "labelgap"
"""The folder of a repository that holds the run."""
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
    hub, files = hub_library(), (*RUN_FILES, MANIFEST_FILE)
    try:
        first = Path(hub.hf_hub_download(name, f"{RUN_FOLDER}/{files[0]}", revision=revision))
        commit = first.parents[1].name
        found = [
            first,
            *(Path(hub.hf_hub_download(name, f"{RUN_FOLDER}/{each}", revision=commit)) for each in files[1:]),
        ]
    except Exception as error:  # of the HTTP library underneath, or of the checks of the name
        where = f"hf://{name}{f'@{revision}' if revision else ''}"
        raise InputError(f"{where} cannot be opened ({type(error).__name__}: {error}).") from error
    folder = cache_folder() / "hub" / name.replace("/", "--") / commit
    make_folder(folder.parent)
    with TemporaryDirectory(dir=folder.parent) as temporary, suppress(FileExistsError):
        run = Path(temporary, "run")
        run.mkdir()
        for file in found:
            shutil.copyfile(file, run / Path(file).name)
        if not folder.exists():
            run.rename(folder)
    return folder
