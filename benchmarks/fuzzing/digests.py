"""A digest of whatever a reader returns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pydantic import BaseModel

from labelgap.labels import LabelTable, Revisions


def digest(value: Any) -> str:
    """Return a digest of a value of any type, arrays and tensors included; NaN equals NaN."""
    found = hashlib.sha256()
    _add(found, value)
    return found.hexdigest()[:16]


def _add(found: Any, value: Any) -> None:
    found.update(type(value).__name__.encode())
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        found.update(f"{value.shape}{value.dtype}".encode() + content)
    elif isinstance(value, LabelTable):
        _add(found, [value.images, value.classes, value.starts, value.columns, value.values])
    elif isinstance(value, Revisions | pa.Table):
        _add(found, (value.to_table() if isinstance(value, Revisions) else value).to_pylist())
    elif isinstance(value, BaseModel):
        _add(found, value.model_dump())
    elif is_dataclass(value) and not isinstance(value, type):
        _add(found, {field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, Mapping):
        for key in value:
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _add(found, item)
    else:
        found.update(repr(value).encode("utf-8", "surrogatepass"))
