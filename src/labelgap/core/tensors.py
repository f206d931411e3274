"""Tensors in a safetensors file that carries a digest of its content: a flipped bit is found when it is read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import safetensors

from labelgap.core.files import atomic_path
from labelgap.core.stored import READ_ERRORS, check_ordinary, damaged, open_ordinary, parse_json, reading, size_limit

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_Part = tuple[str, tuple[int, ...], bytes | memoryview]
"""The type of a tensor as torch calls it, its shape and its content."""
_DIGEST: Final = "sha256"
_METADATA: Final = "labelgap"  # key of the metadata in the file: JSON
_LETTERS: Final = {"float": "F", "bfloat": "BF", "complex": "C", "int": "I", "uint": "U", "bool": "BOOL"}
"""What the format calls a type of torch, before the number of its bits."""


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
    about[_DIGEST] = _digest(_parts(content), about)
    with atomic_path(path, previous=previous) as temporary, temporary.open("wb") as file:
        _write(file, content, json.dumps(about, sort_keys=True))


def read_tensors(path: Path, *, remedy: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file that ``write_tensors`` wrote, and its metadata."""
    tensors, metadata = _read(path, remedy)
    _check_digest(path, _parts(tensors), metadata, remedy)
    return tensors, metadata


def read_shapes(path: Path, *, remedy: str = "") -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors, which are read as bytes and compared with the digest; takes no PyTorch."""
    metadata = _read(path, remedy, tensors=False)[1]
    with reading(path, remedy), open_ordinary(path, size_limit(path)) as file:
        found = safetensors.deserialize(file.read())  # type: ignore[no-untyped-call]
        parts = {name: (_torch_name(each["dtype"]), tuple(each["shape"]), each["data"]) for name, each in found}
    _check_digest(path, parts, metadata, remedy)
    return {name: shape for name, (_, shape, _) in parts.items()}


def read_tensor_metadata(path: Path, *, remedy: str = "") -> dict[str, str]:
    """Return the metadata of ``write_tensors`` without reading the tensors; the digest is not verified."""
    return _read(path, remedy, tensors=False)[1]


def _write(file: IO[bytes], tensors: Mapping[str, Tensor], metadata: str) -> None:
    """Write the format of safetensors, whose own writer makes a file of its own that a kill leaves behind for ever."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # each begins at a whole number
    header: dict[str, object] = {"__metadata__": {_METADATA: metadata}}
    end = 0
    for name in names:
        value = tensors[name]
        start, end = end, end + value.nbytes
        header[name] = {"dtype": _type_name(value.dtype), "shape": [*value.shape], "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        file.write(_content(tensors[name]))


def _type_name(dtype: torch.dtype) -> str:
    letters, bits = str(dtype).removeprefix("torch."), ""
    if (match := re.search(r"\d.*", letters)) is not None:  # of 8 bits there are several: float8_e4m3fn
        letters, bits = letters[: match.start()], match[0].upper().removesuffix("FN")
    return f"{_LETTERS[letters]}{bits}"


def _torch_name(name: str) -> str:
    letters = name.rstrip("_EM0123456789")
    bits = name.removeprefix(letters).lower()
    word = {each: word for word, each in _LETTERS.items()}[letters]
    return f"torch.{word}{bits}{'fn' if bits == '8_e4m3' else ''}"


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, _Part]:
    return {name: (str(value.dtype), tuple(value.shape), _content(value)) for name, value in tensors.items()}


def _content(tensor: Tensor) -> memoryview:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _read(path: Path, remedy: str, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    check_ordinary(path, limit=size_limit(path), remedy=remedy)
    try:
        with safetensors.safe_open(path, framework="pt" if tensors else "np") as file:
            found = parse_json((file.metadata() or {}).get(_METADATA, "{}"))
            values = {name: file.get_tensor(name) for name in (file.keys() if tensors else ())}
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise ValueError("its metadata is not text")
        return values, found
    except (*READ_ERRORS, safetensors.SafetensorError) as error:
        raise damaged(path, error, remedy) from None


def _check_digest(path: Path, parts: Mapping[str, _Part], metadata: dict[str, str], remedy: str) -> None:
    if metadata.pop(_DIGEST, None) != _digest(parts, metadata):
        raise damaged(path, "its content does not have the digest that it was written with", remedy)


def _digest(parts: Mapping[str, _Part], metadata: Mapping[str, str]) -> str:
    found = hashlib.sha256()
    for key in sorted(metadata):
        if key != _DIGEST:
            found.update(repr((key, metadata[key])).encode("utf-8", "surrogatepass"))
    for name in sorted(parts):
        dtype, shape, content = parts[name]
        found.update(repr((name, dtype, shape)).encode("utf-8", "surrogatepass"))
        found.update(content)
    return found.hexdigest()
