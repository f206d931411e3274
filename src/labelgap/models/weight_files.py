"""Weights that somebody gives in a file: read safely, unwrapped, and fitted to a network or refused with reasons.

A file is a ``.safetensors``, or whatever ``torch.save`` wrote of tensors (``.pth``, ``.pt``, ``.ckpt``, ``.bin``). It
is opened with ``weights_only=True``: nothing in it is run. Training scripts wrap weights in dictionaries and prefix
their names; the usual wrappers come off by themselves. What is left has to fit exactly, except for the layer over its
own classes, which a backbone does not have.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.models.backbone import WeightsInfo

__all__ = ["WeightFile", "describe_mismatch", "load_tensors", "match_tensors", "read_weight_file"]

_WRAPPERS: Final = (
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "net",
    "network",
    "weights",
    "teacher",
)
"""Under these a training script keeps its network, the averaged one first."""

_ALWAYS: Final = ("module.", "_orig_mod.")
"""What data parallelism and compilation put before every name."""

_CLASSIFIERS: Final = ("fc.", "head.", "classifier.", "head_dist.", "heads.", "last_linear.", "_fc.")
_SHOWN: Final = 3


@dataclass(frozen=True)
class WeightFile:
    """What a file holds: its tensors by name, and what is to be told of them."""

    path: Path
    tensors: dict[str, Tensor]
    weights: WeightsInfo


def read_weight_file(path: str | os.PathLike[str]) -> WeightFile:
    """Read the tensors of a file, out of their wrappers.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "best.pth"
        ...     torch.save({"epoch": 3, "state_dict": {"module.fc.weight": torch.zeros(2)}}, path)
        ...     list(read_weight_file(path).tensors)
        ['fc.weight']
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"the weights {file} {'are a folder' if file.is_dir() else 'do not exist'}: give a file.")
    held = _held(file)
    tensors = {_bare(str(name)): value for name, value in _unwrapped(held).items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(f"{file} holds no weights: a dictionary of tensors by name is looked for, plain or wrapped.")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()[:12]
    told = WeightsInfo(f"the file {file.name} (sha256 {digest}…)", "not known: ask whoever gave you the file")
    return WeightFile(file, tensors, told)


def _held(file: Path) -> Any:
    try:
        if file.suffix.lower() == ".safetensors":
            return load_file(file)
        with torch.serialization.safe_globals([argparse.Namespace]):  # timm's scripts keep their arguments beside
            return torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise InputError(
            f"{file} cannot be read as weights ({_first_line(error)}). It has to be a .safetensors, or what torch.save "
            "wrote of a network's state_dict(): a whole pickled network is not opened, since that would run code in it."
        ) from error


def _unwrapped(held: Any) -> Mapping[Any, Any]:
    while isinstance(held, Mapping):
        inner = next((held[key] for key in _WRAPPERS if isinstance(held.get(key), Mapping) and held[key]), None)
        if inner is None:
            return held
        held = inner
    return {}


def _bare(name: str) -> str:
    while name.startswith(_ALWAYS):
        name = name.partition(".")[2]
    return name


def match_tensors(
    tensors: Mapping[str, Tensor], network: nn.Module, classifiers: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Return the tensors that a network takes, under its names: prefixes taken off, the classifier left out.

    Args:
        tensors: by name.
        network: without a classifier.
        classifiers: names of the layers over the classes, besides the usual ones.

    Example:
        >>> given = {"model.weight": torch.zeros(2, 3), "model.bias": torch.zeros(2), "head.weight": torch.ones(4)}
        >>> sorted(match_tensors(given, nn.Linear(3, 2)))
        ['bias', 'weight']
    """
    wanted = set(network.state_dict())
    prefix = _common_prefix(tensors, wanted)
    found = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    heads = (*_CLASSIFIERS, *(f"{name}." for name in classifiers))
    return {name: value for name, value in found.items() if name in wanted or not name.startswith(heads)}


def _common_prefix(names: Iterable[str], wanted: Collection[str]) -> str:
    """Return what stands before most of the names that are wanted: the network may have been a part of another."""
    counts = Counter({"": 0})
    for name in names:
        starts = [0, *(place + 1 for place, letter in enumerate(name) if letter == ".")]
        counts.update(name[:start] for start in starts if name[start:] in wanted)
    return max(counts, key=lambda prefix: (counts[prefix], -len(prefix)))


def describe_mismatch(tensors: Mapping[str, Tensor], network: nn.Module) -> str:
    """Say why tensors do not fit a network, naming the first of each kind; "" where they do.

    Example:
        >>> describe_mismatch({"weight": torch.zeros(2, 4), "scale": torch.zeros(1)}, nn.Linear(3, 2))
        '1 is missing (bias), 1 belongs nowhere (scale), 1 has another shape (weight: 2×4 for 2×3)'
    """
    wanted = network.state_dict()
    lacking = [name for name in wanted if name not in tensors and not name.endswith("num_batches_tracked")]
    strange = [name for name in tensors if name not in wanted]
    shapes = [
        f"{name}: {_shape(tensors[name])} for {_shape(wanted[name])}"
        for name in wanted
        if name in tensors and tensors[name].shape != wanted[name].shape
    ]
    told = [
        f"{len(names):,} {one if len(names) == 1 else many} ({', '.join(names[:_SHOWN])}"
        f"{', …' if len(names) > _SHOWN else ''})"
        for names, one, many in (
            (lacking, "is missing", "are missing"),
            (strange, "belongs nowhere", "belong nowhere"),
            (shapes, "has another shape", "have another shape"),
        )
        if names
    ]
    return ", ".join(told)


def load_tensors(network: nn.Module, tensors: Mapping[str, Tensor], file: WeightFile, name: str) -> None:
    """Load tensors into a network, or say what of the file does not fit the network of that name."""
    if reasons := describe_mismatch(tensors, network):
        raise InputError(
            f"{file.path} does not fit {name}: of {len(network.state_dict()):,} tensors {reasons}. "
            "Are they the weights of another network?"
        )
    network.load_state_dict(tensors, strict=False)  # what a very old file may lack are counters of batches


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
