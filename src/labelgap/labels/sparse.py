"""Known labels in compressed rows (CSR), ascending class numbers within a row, in ``starts[i]:starts[i + 1]``."""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.text import truncate_text
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN, is_tensor

if TYPE_CHECKING:
    from torch import Tensor

MAX_KNOWN_LABELS: Final = 100_000_000  # labels that a rule such as "what is not listed is absent" may fill in


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
    """How many labels of each state there are, per class: ``(K,)`` each."""

    present: NDArray[np.int64]
    absent: NDArray[np.int64]
    unknown: NDArray[np.int64]

    @property
    def total(self) -> tuple[int, int, int]:
        """Present, absent and unknown over all classes."""
        return int(self.present.sum()), int(self.absent.sum()), int(self.unknown.sum())


def starts_from_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return where rows of these lengths start, and where the last one ends."""
    counts = np.asarray(lengths, dtype=np.int64)
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def entries_of_rows(
    starts: NDArray[np.int64], index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the entries of some rows, the number of entries of each row, and where those of each row start."""
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
    """Return where the entries of labels (row, class number) are, or would be inserted, and whether they exist."""
    touched, which = np.unique(rows, return_inverse=True)
    entries, lengths, first = entries_of_rows(starts, touched)
    known = np.repeat(np.arange(len(touched)), lengths) * width + columns[entries]
    places = which * width + classes
    found = np.searchsorted(known, places)
    exists = np.append(known, -1)[found] == places
    return starts[rows] + found - first[which], exists


def label_width(classes: Sequence[str]) -> int:
    """Return how many numbers a row takes in ``compress_labels``: two for each class, up to a power of two."""
    return 2 << max(len(classes) - 1, 0).bit_length()


def compress_labels(
    labels: NDArray[np.signedinteger[Any]], classes: Sequence[str], first: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Return class numbers and values of known labels, sorted by row and class; ``first`` is the number of row 0.

    A label is one whole number, which is sorted fastest: row × width + 2 × class number + (1 if present). The array is
    overwritten. Two labels for one row and class are refused.
    """
    labels.sort(kind="stable")  # fast where they are in order, and where two parts of them are
    values = (labels & 1).astype(np.int8)
    labels >>= 1
    if (again := labels[1:] == labels[:-1]).any():
        row, column = divmod(int(labels[again.argmax()]), label_width(classes) // 2)
        raise InputError(f"row {first + row} has two labels for class '{classes[column]}': it can have one.")
    labels &= label_width(classes) // 2 - 1
    return labels.astype(np.int32, copy=False), values


def as_row_indices(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    """Convert row numbers, or a mask over all rows, to row numbers of a table of ``count`` rows."""
    index = np.asarray(rows.detach().cpu() if is_tensor(rows) else rows)
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
    if array.size and (array.min() < 0 or array.max() >= count):
        outside = array[(array < 0) | (array >= count)]
        raise InputError(f"{kind} {outside[0]} is outside the table, which has {count:,} of them, from 0.")
    return array.astype(np.int64, copy=False)


def check_size(images: int, classes: int) -> None:
    """Raise an error where a table in which every label is known would need too much memory."""
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
    texts = UniqueNames(name if type(name) is str else str(name) for name in names)
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


class SoftLabels(NamedTuple):
    """Evidence that is laid over unknown labels in training; what is known is never changed by it."""

    target: NDArray[np.float32]  # (N, K) the probability that a label is present
    weight: NDArray[np.float32]  # (N, K) from 0 to 1, how much of the cost of an unknown label it replaces


class KnownLabels(ABC):
    """Known labels of N images and K classes in compressed rows, immutable; what can be read from them."""

    classes: tuple[str, ...]
    images: tuple[str, ...]
    soft: SoftLabels | None
    __slots__ = ("classes", "columns", "images", "soft", "starts", "values")

    def __init__(
        self,
        starts: NDArray[np.int64],
        columns: NDArray[np.int32],
        values: NDArray[np.int8],
        classes: Sequence[str],
        images: Sequence[str] | None = None,
        soft: SoftLabels | None = None,
    ) -> None:
        self.soft = soft
        self.starts: NDArray[np.int64] = _read_only(starts, np.int64)
        self.columns: NDArray[np.int32] = _read_only(columns, np.int32)
        self.values: NDArray[np.int8] = _read_only(values, np.int8)
        self.classes = unique_names(classes, "class")
        self.images = unique_names(range(len(starts) - 1) if images is None else images, "image")
        if len(self.images) != len(self):
            raise InputError(f"{len(self.images)} image names were given for {len(self)} rows of labels.")
        if not len(self.columns) == len(self.values) == self.starts[-1]:
            raise InputError("the known labels are not as many as the starts of the rows say.")

    def to_dense(self) -> NDArray[np.int8]:
        """Return the (N, K) matrix of codes."""
        dense = np.full(self.shape, UNKNOWN, dtype=np.int8)
        dense[self.rows, self.columns] = self.values
        return dense

    def batch(self, rows: ArrayLike) -> Tensor:
        """Return the observed codes of some rows as a (B, K) int8 tensor."""
        import torch

        index = as_row_indices(rows, len(self))
        codes = np.full((len(index), len(self.classes)), UNKNOWN, dtype=np.int8)
        entries, lengths, _ = entries_of_rows(self.starts, index)
        codes[np.repeat(np.arange(len(index)), lengths), self.columns[entries]] = self.values[entries]
        return torch.from_numpy(codes)

    def codes_at(self, rows: ArrayLike, columns: ArrayLike) -> NDArray[np.int8]:
        """Return the codes ``(P,)`` of single labels, without the dense matrix."""
        row, column = as_indices(rows, "row", len(self)), as_indices(columns, "class number", len(self.classes))
        if len(row) != len(column):
            raise InputError(f"{len(row)} rows and {len(column)} class numbers: one of each for a label.")
        entries, known = locate_entries(self.starts, self.columns, row, column, len(self.classes))
        codes = np.full(len(row), UNKNOWN, dtype=np.int8)
        codes[known] = self.values[entries[known]]
        return codes

    def counts(self) -> LabelCounts:
        """Count present, absent and unknown labels per class."""
        present = np.bincount(self.columns[self.values == PRESENT], minlength=len(self.classes))
        absent = np.bincount(self.columns[self.values == ABSENT], minlength=len(self.classes))
        return LabelCounts(present, absent, len(self) - present - absent)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row number of every known label."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.starts))

    @property
    def shape(self) -> tuple[int, int]:
        """Images, classes."""
        return len(self), len(self.classes)

    @property
    def complete(self) -> bool:
        """Whether no label is unknown."""
        return len(self.values) == len(self) * len(self.classes)

    @property
    def nbytes(self) -> int:
        """Memory of the labels, without the names."""
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return len(self.starts) - 1


def _read_only(given: NDArray[Any], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """Return an array that nobody can write to: a copy, where the caller can."""
    array = np.asarray(given, dtype)
    if array.flags.writeable or array.base is not None:
        array = array.copy()
        array.flags.writeable = False
    return array


def flat_names(lists: Iterable[Iterable[str]]) -> tuple[NDArray[np.int64], list[str]]:
    """Return the number of names of each image, and all names in one list; no Python code runs for each image."""
    rows = list(lists)
    kinds = set(map(type, rows))
    if any(issubclass(kind, str) for kind in kinds):
        single = next(row for row in rows if isinstance(row, str))
        raise InputError(f"the classes of an image come as a list of names; {single!r} is a single text.")
    listed: list[Sequence[str]] = rows if kinds <= {list, tuple} else list(map(list, rows))  # type: ignore[assignment]
    names = list(chain.from_iterable(listed))
    if not set(map(type, names)) <= {str}:
        names = list(map(str, names))
    return np.fromiter(map(len, listed), dtype=np.int64, count=len(listed)), names


def label_places(lengths: NDArray[np.int64], names: list[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """Return the unique ``row · K + class number`` of all listed names, ascending."""
    number = {name: column for column, name in enumerate(classes)}
    try:
        columns = np.fromiter(map(number.__getitem__, names), dtype=np.int64, count=len(names))
    except KeyError as error:
        raise UnknownNameError("class", error.args[0], number) from None
    places = np.repeat(np.arange(len(lengths), dtype=np.int64) * len(classes), lengths) + columns
    places.sort(kind="stable")  # nearly sorted already; np.unique would hash
    return places[np.diff(places, prepend=-1) > 0]
