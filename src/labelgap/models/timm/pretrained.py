"""Where the weights of a timm model are on this machine; fetched if they are not, asking once.

Left alone, the hub's library asks five times with growing pauses before it admits that there is no network. Here the
local cache is looked at first, which costs no request and needs no network; then the server is asked a single time,
with little patience; and only if it answers is anything downloaded.
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

__all__ = ["TIMEOUT_SECONDS", "pretrained_file"]

TIMEOUT_SECONDS: Final = 5.0
"""Seconds until a server that says nothing counts as out of reach."""

_PLAIN: Final = "pytorch_model.bin"
_SAFE: Final = "model.safetensors"


def pretrained_file(configuration: Any, name: str) -> Path:
    """Return the file of a model's pretrained weights, from the cache or, after asking once, from where they are.

    Args:
        configuration: timm's, of a model that has weights.
        name: what the user calls the model.
    """
    if configuration.hf_hub_id:
        return _from_hub(configuration, name)
    return _from_address(str(configuration.url), name)


def _from_hub(configuration: Any, name: str) -> Path:
    hub: Any = importlib.import_module("huggingface_hub")
    constants: Any = importlib.import_module("huggingface_hub.constants")
    not_there: Any = importlib.import_module("huggingface_hub.utils").EntryNotFoundError
    repository, _, revision = str(configuration.hf_hub_id).partition("@")
    asked = configuration.hf_hub_filename
    files = [asked] if asked else [_SAFE, _PLAIN]
    for file in files:
        kept = hub.try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(kept, str):
            return Path(kept)
    cache = constants.HF_HUB_CACHE
    way = f"`hf download {repository}` does so where there is a network, and its folder in {cache} can be copied"
    try:
        if constants.HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set")
        _ask_once(hub.hf_hub_url(repository, files[0], revision=revision or None))
        try:
            return Path(hub.hf_hub_download(repository, files[0], revision=revision or None))
        except not_there:
            return Path(hub.hf_hub_download(repository, files[-1], revision=revision or None))
    except Exception as error:  # whatever the library of requests underneath calls it
        raise _out_of_reach(name, repository, way, error) from error


def _from_address(address: str, name: str) -> Path:
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    file = folder / Path(urlsplit(address).path).name
    if file.is_file():
        return file
    try:
        _ask_once(address)
        folder.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(address, str(file))
    except OSError as error:
        raise _out_of_reach(name, address, f"as a file in {folder}", error) from error
    return file


def _ask_once(address: str) -> None:
    """Raise ``OSError`` where a server cannot be reached; whatever it answers, it can."""
    try:
        urlopen(Request(address, method="HEAD"), timeout=TIMEOUT_SECONDS).close()
    except HTTPError as answer:
        answer.close()
    except URLError as error:
        if not isinstance(error.reason, SSLError):  # certificates that Python lacks, the libraries may have
            raise


def _out_of_reach(name: str, place: str, way: str, error: Exception) -> InputError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
    return InputError(
        f"the pretrained weights of {name} ({place}) are not on this machine, and cannot be fetched ({reason}). "
        f"Give a file of weights: --weights FILE (in Python, weights=); or put them into this machine's cache ({way}); "
        "or start from random weights: --weights none."
    )
