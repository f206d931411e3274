"""Weight files: of timm and open_clip, cached or downloaded; of users, read safely and matched to a network.

No code in a file is run, its tensors must be plain and finite. The usual wrappers and prefixes are removed; the rest
must fit exactly, except for a classification layer.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import pickle
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLError
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from labelgap.core.errors import InputError, suggest_path
from labelgap.core.stored import READ_ERRORS
from labelgap.core.terminal import unescaped_output
from labelgap.core.text import pluralize, truncate_text
from labelgap.models.info import WeightsInfo

_WRAPPERS: Final = (
    *("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model_state"),
    *("model", "net", "network", "weights", "teacher"),
)
"""Keys under which training scripts save a network, the averaged one first."""

_ALWAYS: Final = re.compile(r"^(?:module\.|_orig_mod\.)+")  # prefixes of data parallelism and of compilation

_CLASSIFIERS: Final = ("fc.", "head.", "classifier.", "head_dist.", "heads.", "last_linear.", "_fc.")
_SHOWN: Final = 3
_MAX_WRAPPERS: Final = 8
_MAX_EXPANSION: Final = 8
"""How many times the bytes of a file its tensors may have: a view can repeat one number without end."""


@dataclass(frozen=True)
class WeightFile:
    """The tensors of a file by name, and their source."""

    path: Path
    tensors: dict[str, Tensor]
    weights: WeightsInfo


def check_weight_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of weights; an error if it is not that of a file."""
    file = Path(path)
    if not file.is_file():
        what = "are a folder" if file.is_dir() else "do not exist"
        raise InputError(f"the weights {file} {what}: give a file.{suggest_path(file)}")
    return file


def read_weight_file(path: str | os.PathLike[str]) -> WeightFile:
    """Read the tensors of a file, without their wrappers and prefixes."""
    file = check_weight_file(path)
    found = {str(name): value for name, value in _unwrap(_read(file)).items() if isinstance(value, Tensor)}
    tensors = {_ALWAYS.sub("", name): value for name, value in found.items()}
    if not tensors:
        raise InputError(f"{file} holds no weights: it must be a dictionary of tensors by name, plain or wrapped.")
    for name, value in tensors.items():
        unlike = value.is_nested or value.is_quantized or value.layout != torch.strided or value.is_complex()
        if unlike or value.device.type != "cpu":
            raise InputError(f"{file}: {truncate_text(name)} is not a plain tensor of numbers: save its dense values.")
    if sum(value.numel() * value.element_size() for value in tensors.values()) > _MAX_EXPANSION * file.stat().st_size:
        raise InputError(f"{file} is damaged: its tensors claim to be far larger than the file.")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()[:12]
    weights = WeightsInfo(f"the file {file.name} (sha256 {digest}…)", "not known: ask whoever gave you the file")
    return WeightFile(file, tensors, weights)


def _read(file: Path) -> Any:
    try:
        if file.suffix.lower() == ".safetensors":
            return load_file(file)
        _verify_archive(file)
        with torch.serialization.safe_globals([argparse.Namespace]):  # timm's scripts save their arguments too
            return torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, *READ_ERRORS) as error:
        raise InputError(
            f"{file} cannot be read as weights ({_first_line(error)}). It has to be a .safetensors, or what torch.save "
            "wrote of a network's state_dict(): a whole pickled network is not opened, since that would run code in it."
        ) from error


def _verify_archive(file: Path) -> None:
    """Raise ``ValueError`` for a file of ``torch.save`` that is damaged, or compressed, which torch never does."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is a compressed archive")
            if (name := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {name} is wrong: the file is damaged")


def _unwrap(content: Any) -> Mapping[Any, Any]:
    for _ in range(_MAX_WRAPPERS):
        if not isinstance(content, Mapping):
            break
        inner = next(
            (content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping) and content[key]), None
        )
        if inner is None:
            return content
        content = inner
    return {}


def match_tensors(
    tensors: Mapping[str, Tensor], network: nn.Module, classifiers: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Return the tensors of a network under its names: without a common prefix and without ``classifiers``."""
    expected = set(network.state_dict())
    prefix = _common_prefix(tensors, expected)
    found = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    heads = (*_CLASSIFIERS, *(f"{name}." for name in classifiers))
    return {name: value for name, value in found.items() if name in expected or not name.startswith(heads)}


def _common_prefix(names: Iterable[str], expected: Collection[str]) -> str:
    """Return the prefix of most expected names: the network may have been part of another."""
    counts = Counter({"": 0})
    for name in names:
        starts = [0, *(place + 1 for place, letter in enumerate(name) if letter == ".")]
        counts.update(name[:start] for start in starts if name[start:] in expected)
    return max(counts, key=lambda prefix: (counts[prefix], -len(prefix)))


def describe_mismatch(tensors: Mapping[str, Tensor], network: nn.Module) -> str:
    """Return why tensors do not fit a network, with the first of each kind; "" if they fit."""
    expected = network.state_dict()
    present = {name: (tensors[name], value) for name, value in expected.items() if name in tensors}
    missing = [name for name in expected if name not in tensors and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in tensors if name not in expected]
    shapes = [f"{name}: {_shape(a)} for {_shape(b)}" for name, (a, b) in present.items() if a.shape != b.shape]
    types = [name for name, (a, b) in present.items() if a.is_floating_point() != b.is_floating_point()]
    reasons = [
        f"{pluralize(len(names), one, many)} ({', '.join(map(truncate_text, names[:_SHOWN]))}"
        f"{', …' if len(names) > _SHOWN else ''})"
        for names, one, many in (
            (missing, "is missing", "are missing"),
            (unexpected, "is unexpected", "are unexpected"),
            (shapes, "has another shape", "have another shape"),
            (types, "has another type", "have another type"),
        )
        if names
    ]
    return ", ".join(reasons)


def load_tensors(network: nn.Module, tensors: Mapping[str, Tensor], file: WeightFile, name: str) -> None:
    """Load tensors into a network; the error says what of the file does not fit."""
    if reasons := describe_mismatch(tensors, network):
        raise InputError(
            f"{file.path} does not fit {name}: of {len(network.state_dict()):,} tensors {reasons}. "
            "Are they the weights of another network?"
        )
    check_finite(file.path, tensors)
    network.load_state_dict(tensors, strict=False)  # very old files have no batch counters


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights of a file that are not finite."""
    for name, values in tensors.items():
        if not values.isfinite().all():
            raise InputError(f"{path}: {name} holds values that are not finite: the weights are damaged.")


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {truncate_text(lines[0], 200)}" if lines else type(error).__name__


TIMEOUT_SECONDS: Final = 5.0  # timeout of the request that finds out whether the server can be reached


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
