"""The weight files of timm's and open_clip's models: from the local cache, or downloaded.

One request with a short timeout decides whether to download: the hub's library retries five times.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from ssl import SSLError
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import torch

from labelgap.core.errors import InputError
from labelgap.core.terminal import unescaped_output

TIMEOUT_SECONDS: Final = 5.0
"""Timeout of the request that finds out whether the server can be reached."""


class UnavailableWeightsError(InputError):
    """Pretrained weights are not on this machine, and cannot be downloaded."""


def pretrained_file(configuration: Any, name: str) -> Path:
    """Return the file of a model's pretrained weights (``hf_hub_id``, ``hf_hub_filename`` or ``url``)."""
    if configuration.hf_hub_id:
        return _from_hub(configuration, name)
    return _from_address(str(configuration.url), name)


def _from_hub(configuration: Any, name: str) -> Path:
    hub: Any = importlib.import_module("huggingface_hub")
    constants: Any = importlib.import_module("huggingface_hub.constants")
    missing_entry: Any = importlib.import_module("huggingface_hub.utils").EntryNotFoundError
    repository, _, tag = str(configuration.hf_hub_id).partition("@")
    revision, stated = tag or None, configuration.hf_hub_filename
    files = (
        [stated] if isinstance(stated, str) and stated else list(stated or ("model.safetensors", "pytorch_model.bin"))
    )
    for file in files:
        cached = hub.try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(cached, str):
            return Path(cached)
    cache = constants.HF_HUB_CACHE
    remedy = f"`hf download {repository}` does so where there is a network, and its folder in {cache} can be copied"
    try:
        if constants.HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set")
        check_reachable(hub.hf_hub_url(repository, files[0], revision=revision))
        with unescaped_output():
            try:
                return Path(hub.hf_hub_download(repository, files[0], revision=revision))
            except missing_entry:
                return Path(hub.hf_hub_download(repository, files[-1], revision=revision))
    except Exception as error:  # of whatever HTTP library is underneath
        raise _unreachable(name, repository, remedy, error) from error


def _from_address(address: str, name: str) -> Path:
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    file = folder / Path(urlsplit(address).path).name
    if file.is_file():
        return file
    try:
        check_reachable(address)
        folder.mkdir(parents=True, exist_ok=True)
        with unescaped_output():
            torch.hub.download_url_to_file(address, str(file))
    except OSError as error:
        raise _unreachable(name, address, f"as a file in {folder}", error) from error
    return file


def check_reachable(address: str) -> None:
    """Raise ``OSError`` if a server cannot be reached; any answer counts."""
    try:
        urlopen(Request(address, method="HEAD"), timeout=TIMEOUT_SECONDS).close()
    except HTTPError as answer:
        answer.close()
    except URLError as error:
        if not isinstance(error.reason, SSLError):  # the download libraries may have certificates that Python lacks
            raise


def _unreachable(name: str, address: str, remedy: str, error: Exception) -> UnavailableWeightsError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
    return UnavailableWeightsError(
        f"the pretrained weights of {name} ({address}) are not on this machine and cannot be downloaded ({reason}). "
        f"Give a file of weights: --weights FILE (in Python, weights=); or put them into the cache ({remedy}); "
        "or start from random weights: --weights none."
    )
