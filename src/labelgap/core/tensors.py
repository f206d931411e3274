"""Tensors in a safetensors file that carries a digest of its content: a flipped bit is found when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import safetensors

from labelgap.core.files import atomic_path
from labelgap.core.stored import damaged, open_ordinary, parse_json, reading, size_limit

if TYPE_CHECKING:
    from torch import Tensor

_Part = tuple[str, tuple[int, ...], Any]
"""The type of a tensor as torch calls it, its shape and its bytes."""
_DIGEST: Final = "sha256"
_METADATA: Final = "labelgap"  # key of the metadata in the file: JSON
_MAX_HEADER: Final = 100_000_000  # bytes, of safetensors itself
_TYPES: Final = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64", "bool": "BOOL"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{
        f"{kind}{bits}": f"{letter}{bits}" for kind, letter in (("int", "I"), ("uint", "U")) for bits in (8, 16, 32, 64)
    },
}
"""What the format calls the types of torch."""
_NAMES: Final = {letters: f"torch.{name}" for name, letters in _TYPES.items()}


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    previous: Path | None = None,
) -> None:
    """Write tensors and text atomically, with a digest of both; an existing file becomes ``previous``.

    The writer of safetensors is not used: it makes a file of its own, which a kill leaves behind for ever.
    """
    content = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    names = sorted(content, key=lambda name: (-content[name].element_size(), name))  # each begins at a whole number
    parts, header, end = _parts(content), dict[str, object](), 0
    for name in names:
        start, end = end, end + content[name].nbytes
        kind, shape, _ = parts[name]
        header[name] = {"dtype": _TYPES[kind.removeprefix("torch.")], "shape": shape, "data_offsets": [start, end]}
    about = {**(metadata or {}), _DIGEST: _digest(parts, metadata or {})}
    text = json.dumps({"__metadata__": {_METADATA: json.dumps(about, sort_keys=True)}, **header}, separators=(",", ":"))
    line = text.encode().ljust(-(-len(text.encode()) // 8) * 8)
    with atomic_path(path, previous=previous) as temporary, temporary.open("wb") as file:
        file.writelines([len(line).to_bytes(8, "little"), line, *(parts[name][2] for name in names)])


def read_tensors(path: Path, *, remedy: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file that ``write_tensors`` wrote, and its metadata."""
    metadata = read_tensor_metadata(path, remedy=remedy)
    with _reading(path, remedy), safetensors.safe_open(path, framework="pt") as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors, _checked(path, _parts(tensors), metadata, remedy)


def read_shapes(path: Path, *, remedy: str = "") -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors, which are read as bytes and compared with the digest; takes no PyTorch."""
    metadata = read_tensor_metadata(path, remedy=remedy)
    with _reading(path, remedy), open_ordinary(path, size_limit(path)) as file:
        found = safetensors.deserialize(file.read())  # type: ignore[no-untyped-call]
        parts = {name: (_NAMES[each["dtype"]], tuple(each["shape"]), each["data"]) for name, each in found}
    _checked(path, parts, metadata, remedy)
    return {name: shape for name, (_, shape, _) in parts.items()}


def read_tensor_metadata(path: Path, *, remedy: str = "") -> dict[str, str]:
    """Return the metadata of ``write_tensors`` without reading the tensors; the digest is not verified."""
    with reading(path, remedy), open_ordinary(path, size_limit(path)) as file:
        header = parse_json(file.read(min(int.from_bytes(file.read(8), "little"), _MAX_HEADER)))
        found = parse_json(header.get("__metadata__", {}).get(_METADATA, "{}"))
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise ValueError("its metadata is not text")
        return found


@contextmanager
def _reading(path: Path, remedy: str) -> Iterator[None]:
    try:
        with reading(path, remedy):
            yield
    except safetensors.SafetensorError as error:
        raise damaged(path, error, remedy) from None


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, _Part]:
    import torch

    flat = {name: value.reshape(-1).view(torch.uint8).numpy().data for name, value in tensors.items()}
    return {name: (str(value.dtype), tuple(value.shape), flat[name]) for name, value in tensors.items()}


def _checked(path: Path, parts: Mapping[str, _Part], metadata: dict[str, str], remedy: str) -> dict[str, str]:
    """Return the metadata without the digest; an error where that is of something else."""
    if metadata.pop(_DIGEST, None) != _digest(parts, metadata):
        raise damaged(path, "its content does not have the digest that it was written with", remedy)
    return metadata


def _digest(parts: Mapping[str, _Part], metadata: Mapping[str, str]) -> str:
    found = hashlib.sha256()
    for key in sorted(metadata):
        found.update(repr((key, metadata[key])).encode("utf-8", "surrogatepass"))
    for name in sorted(parts):
        dtype, shape, content = parts[name]
        found.update(repr((name, dtype, shape)).encode("utf-8", "surrogatepass"))
        found.update(content)
    return found.hexdigest()
