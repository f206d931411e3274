"""Tensors in a safetensors file that carries a digest of its content: a flipped bit is found when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from labelgap.core.files import atomic_path
from labelgap.core.stored import READ_ERRORS, check_ordinary, damaged, parse_json

_DIGEST: Final = "sha256"
_METADATA: Final = "labelgap"  # key of the metadata in the file: JSON


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    previous: Path | None = None,
) -> None:
    """Write tensors and text atomically, with a digest of both; an existing file becomes ``previous``."""
    content = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    about = dict(metadata or {})
    about[_DIGEST] = _digest(content, about)
    text = json.dumps(about, sort_keys=True)  # safetensors writes several keys in an order that is random
    with atomic_path(path, previous=previous) as temporary:
        safetensors.torch.save_file(content, temporary, metadata={_METADATA: text})


def read_tensors(path: Path, *, remedy: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file that ``write_tensors`` wrote, and its metadata."""
    tensors, metadata = _read(path, remedy)
    if metadata.pop(_DIGEST, None) != _digest(tensors, metadata):
        raise damaged(path, "its content does not have the digest that it was written with", remedy)
    return tensors, metadata


def read_tensor_metadata(path: Path, *, remedy: str = "") -> dict[str, str]:
    """Return the metadata of ``write_tensors`` without reading the tensors; the digest is not verified."""
    return _read(path, remedy, tensors=False)[1]


def _read(path: Path, remedy: str, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    check_ordinary(path, remedy=remedy)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            found = parse_json((file.metadata() or {}).get(_METADATA, "{}"))
            values = {name: file.get_tensor(name) for name in (file.keys() if tensors else ())}
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise ValueError("its metadata is not text")
        return values, found
    except (*READ_ERRORS, safetensors.SafetensorError) as error:
        raise damaged(path, error, remedy) from None


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of names, types, shapes and values, and of the metadata."""
    found = hashlib.sha256()
    for key in sorted(metadata):
        if key != _DIGEST:
            found.update(repr((key, metadata[key])).encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        value = tensors[name]
        found.update(repr((name, str(value.dtype), tuple(value.shape))).encode("utf-8", "surrogatepass"))
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
