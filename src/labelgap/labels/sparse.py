"""Known labels in compressed rows (CSR): the index arithmetic of the label table.

The known labels of all images are stored row by row, with ascending class numbers within a row; those of row i are the
entries ``starts[i]:starts[i + 1]``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError
from labelgap.core.text import truncate_text

MAX_KNOWN_LABELS: Final = 100_000_000
"""Labels that a rule such as "what is not listed is absent" may fill in."""


class NamedTable(Protocol):
    """Anything with a name for each of its rows and columns, as a label table has."""

    @property
    def images(self) -> tuple[str, ...]:
        """The name of every row."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of every column."""


@dataclass(frozen=True)
class LabelCounts:
    """How many labels of each state there are, per class.

    Attributes:
        present: ``(K,)``
        absent: ``(K,)``
        unknown: ``(K,)``
    """

    present: NDArray[np.int64]
    absent: NDArray[np.int64]
    unknown: NDArray[np.int64]

    @property
    def total(self) -> tuple[int, int, int]:
        """Present, absent and unknown over all classes."""
        return int(self.present.sum()), int(self.absent.sum()), int(self.unknown.sum())


def starts_from_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return where rows of these lengths start, and where the last one ends.

    Example:
        >>> starts_from_lengths([2, 0, 1])
        array([0, 2, 2, 3])
    """
    counts = np.asarray(lengths, dtype=np.int64)
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def entries_of_rows(
    starts: NDArray[np.int64], index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the entries of some rows, the number of entries of each row, and where those of each row start.

    Example:
        >>> entries, lengths, first = entries_of_rows(starts_from_lengths([2, 0, 1]), np.array([2, 0]))
        >>> entries, lengths, first
        (array([2, 0, 1]), array([1, 2]), array([0, 1]))
    """
    lengths = starts[index + 1] - starts[index]
    first = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts[index] - first, lengths), lengths, first


def locate_entries(
    starts: NDArray[np.int64],
    columns: NDArray[np.int32],
    rows: NDArray[np.int64],
    classes: NDArray[np.int64],
    width: int,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return where the entries of labels (row, class number) are, or would be inserted, and whether they exist.

    Only the rows in ``rows`` are searched, so a few labels of a table of millions cost little.

    Example:
        >>> starts, columns = starts_from_lengths([2, 0, 1]), np.array([0, 3, 1], np.int32)
        >>> locate_entries(starts, columns, np.array([2, 0, 0, 1]), np.array([1, 3, 2, 0]), 4)
        (array([2, 1, 1, 2]), array([ True,  True, False, False]))
    """
    touched, which = np.unique(rows, return_inverse=True)
    entries, lengths, first = entries_of_rows(starts, touched)
    known = np.repeat(np.arange(len(touched)), lengths) * width + columns[entries]
    places = which * width + classes
    found = np.searchsorted(known, places)
    exists = np.append(known, -1)[found] == places
    return starts[rows] + found - first[which], exists


def sort_entries(
    rows: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.int8], classes: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int8]]:
    """Sort entries by row and class number; refuse two entries for one label."""
    places = rows * max(len(classes), 1) + columns
    if (places[1:] > places[:-1]).all():
        return rows, columns.astype(np.int32), values
    order = np.argsort(places, kind="stable")
    places, rows, columns = places[order], rows[order], columns[order]
    repeated = np.flatnonzero(places[1:] == places[:-1])
    if len(repeated):
        row, column = rows[repeated[0]], columns[repeated[0]]
        raise InputError(f"row {row} has two labels for class '{classes[column]}': it can have one.")
    return rows, columns.astype(np.int32), values[order]


def as_row_indices(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    """Convert row numbers, or a mask over all rows, to row numbers of a table of ``count`` rows."""
    index = np.asarray(rows.detach().cpu() if isinstance(rows, torch.Tensor) else rows)
    if index.dtype == bool:
        if index.shape != (count,):
            raise InputError(f"a mask of rows must have shape ({count},), not {index.shape}.")
        return np.flatnonzero(index).astype(np.int64)
    return as_indices(index, "row", count)


def as_indices(numbers: ArrayLike, kind: str, count: int) -> NDArray[np.int64]:
    """Convert whole numbers from 0 below ``count`` to a flat int64 array; refuse all others."""
    array = np.asarray(numbers).ravel()
    if array.dtype.kind not in "iu" and array.size:
        raise InputError(f"a {kind} is a whole number, not {array.dtype} such as {array[0]!s}.")
    outside = (array < 0) | (array >= count)
    if outside.any():
        raise InputError(f"{kind} {array[outside][0]} is outside the table, which has {count:,} of them, from 0.")
    return array.astype(np.int64)


def check_size(images: int, classes: int) -> None:
    """Raise an error where a table in which every label is known would need too much memory.

    A small file can stand for a huge one: a thousand images and a million names of classes.
    """
    if images * classes > MAX_KNOWN_LABELS:
        raise InputError(
            f"{images:,} images and {classes:,} classes, of which every label would be known, are more than "
            f"{MAX_KNOWN_LABELS:,} labels: use fewer classes, or leave what is not listed unknown."
        )


class UniqueNames(tuple[str, ...]):
    """Names that were checked to be unique, so that they need not be checked again: a table may have millions."""

    __slots__ = ()


def unique_names(names: Iterable[Any], kind: str) -> UniqueNames:
    """Return the names as strings; refuse duplicates."""
    if isinstance(names, UniqueNames):
        return names
    if isinstance(names, str):
        raise InputError(f"the {kind} names come as a list; {names!r} is a single text.")
    texts = UniqueNames(map(str, names))
    if len(set(texts)) != len(texts):
        (name, _), *_ = Counter(texts).most_common(1)
        raise InputError(f"the {kind} '{truncate_text(name)}' is listed twice: every {kind} needs a name of its own.")
    for name in () if all(map(str.isascii, texts)) else texts:
        if not is_encodable(name):
            raise InputError(f"the {kind} {truncate_text(ascii(name))} has half a character, which no file can hold.")
    return texts


def is_encodable(text: str) -> bool:
    """Return whether a text can be written in UTF-8; a file name with other bytes and some JSON cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
