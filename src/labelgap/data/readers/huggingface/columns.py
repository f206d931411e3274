"""The columns of a Hugging Face data set: which one holds images, which ones labels, and what the labels are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.text import truncate_text
from labelgap.labels import ABSENT, PRESENT, UNKNOWN

INVALID: Final = 2
"""The code of a cell that is no state."""


@dataclass(frozen=True)
class LabelColumns:
    """Where the images and labels are.

    Attributes:
        image: the column of images.
        labels: the columns of labels: one with lists, or one per class.
        lists: whether it is one with lists, or with one class each.
        names: the classes that numbers in lists stand for; empty where lists hold names.
        ignored: the columns that are neither.
    """

    image: str
    labels: tuple[str, ...]
    lists: bool
    names: tuple[str, ...]
    ignored: tuple[str, ...]


def choose_columns(schema: pa.Schema, features: Mapping[str, Any], ignored: Sequence[str]) -> LabelColumns:
    """Choose the columns by their types, or raise an error that names the candidates."""
    left = [name for name in schema.names if name not in ignored]
    images = [name for name in left if _is_image(schema.field(name).type, features.get(name))]
    if not images:
        raise InputError(f"it has no column of images ({{bytes, path}}), only {_join(schema.names)}.")
    if len(images) > 1:
        raise InputError(f"it has several columns of images ({_join(images)}): --ignore-columns leaves some out.")
    found = {name: _class_names(schema.field(name).type, features.get(name)) for name in left}
    lists = {name: names for name, names in found.items() if names is not None}
    if len(lists) > 1:
        raise InputError(f"it has several columns of classes ({_join(lists)}): --ignore-columns leaves some out.")
    if lists:
        ((label, names),) = lists.items()
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"column '{label}': the class '{truncate_text(repeated[0])}' is there twice.")
        chosen: tuple[str, ...] = (label,)
    else:
        names = ()
        chosen = tuple(name for name in left if _is_state(schema.field(name).type))
        if not chosen:
            raise InputError(
                "it has no column of labels: lists of ClassLabel or of names, or a column of bool or int per class; "
                f"only {_join(schema.names)}."
            )
    rest = tuple(name for name in left if name not in (*images, *chosen))
    return LabelColumns(images[0], chosen, bool(lists), names, rest)


def _join(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(truncate_text(name) for name in list(names)[:10])


def _is_image(kind: pa.DataType, feature: Any) -> bool:
    if isinstance(feature, dict) and feature.get("_type") not in (None, "Image"):
        return False
    parts = {kind.field(n).name: kind.field(n).type for n in range(kind.num_fields)} if pa.types.is_struct(kind) else {}
    binary = pa.types.is_binary, pa.types.is_large_binary
    return parts.keys() == {"bytes", "path"} and any(is_(parts["bytes"]) for is_ in binary) and _is_text(parts["path"])


def _is_state(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _class_names(kind: pa.DataType, feature: Any) -> tuple[str, ...] | None:
    """Return the names of a column of classes: empty where it holds them itself; None where it is no such column.

    ``datasets`` has written lists as ``Sequence``, ``List`` and ``LargeList``, and as a JSON list of one type.
    """
    inner = feature
    if _is_list(kind):
        if isinstance(feature, list):
            inner = feature[0] if feature else None
        elif isinstance(feature, dict):
            inner = feature.get("feature")
        if _is_text(kind.value_type):
            return ()
        kind = kind.value_type
    if not (isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and pa.types.is_integer(kind)):
        return None
    names = inner.get("names")
    if isinstance(names, list):
        return tuple(map(str, names))
    count = inner.get("num_classes")
    return tuple(map(str, range(count))) if isinstance(count, int) and 0 < count < 1_000_000 else None


def listed_classes(column: pa.Array) -> tuple[NDArray[np.int64], list[Any], NDArray[np.bool_]]:
    """Return the row and the entry of everything that is listed in a column, and the rows where nothing is known."""
    unknown: NDArray[np.bool_] = np.asarray(column.is_null())
    if not _is_list(column.type):
        return np.flatnonzero(~unknown), column.drop_null().to_pylist(), unknown
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(column)), lengths), column.flatten().to_pylist(), unknown


def column_states(column: pa.Array) -> NDArray[np.int8]:
    """Return the states of a column of one class: 1, 0, and null or NaN for unknown; ``INVALID`` for anything else."""
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)  # large numbers are no states
    states = np.full(len(values), INVALID, dtype=np.int8)
    states[np.isnan(values)] = UNKNOWN
    states[values == PRESENT] = PRESENT
    states[values == ABSENT] = ABSENT
    return states
