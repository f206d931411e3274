"""Known labels from lists of class names.

Names are taken as they are, a ``;`` included. In a CSV of lists ``;`` separates names and cannot be escaped: a class
whose name contains it needs the wide form or Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.labels.sparse import check_size, unique_names


def entries_from_lists(
    present: Iterable[Iterable[str]],
    absent: Iterable[Iterable[str]] | None = None,
    *,
    classes: Sequence[str] | None = None,
    images: Sequence[str] | None = None,
    unlisted: str = "unknown",
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8], Sequence[str], Sequence[str] | int]:
    """Return the arguments of ``LabelTable.from_entries``; a name twice in one list counts once."""
    if unlisted not in ("unknown", "absent"):
        raise InputError(f"unlisted={unlisted!r}: a class that is not listed is 'unknown' or 'absent'.")
    lengths, names = _flat(present)
    absent_lengths, absent_names = _flat(absent) if absent is not None else (np.zeros_like(lengths), [])
    count = len(lengths)
    if len(absent_lengths) != count:
        raise InputError(f"present lists {count} images, absent {len(absent_lengths)}: one entry per image in each.")
    if images is not None and len(images) != count:
        raise InputError(f"{len(images)} image names were given for {count} rows of labels.")
    classes = sorted({*names, *absent_names}) if classes is None else unique_names(classes, "class")
    present_places = _places(lengths, names, classes)
    absent_places = _places(absent_lengths, absent_names, classes)
    both = np.intersect1d(present_places, absent_places, assume_unique=True)
    if len(both):
        row, column = divmod(int(both[0]), len(classes))
        image = images[row] if images is not None else row
        raise InputError(f"image {image} lists '{classes[column]}' as present and as absent.")
    if unlisted == "absent":
        check_size(count, len(classes))
        every = np.full(count * len(classes), ABSENT, dtype=np.int8)
        every[present_places] = PRESENT
        rows, columns = np.repeat(np.arange(count), len(classes)), np.tile(np.arange(len(classes)), count)
        return rows, columns, every, classes, count if images is None else images
    rows, columns = np.divmod(np.concatenate([present_places, absent_places]), max(len(classes), 1))
    values = np.repeat(np.array([PRESENT, ABSENT], dtype=np.int8), [len(present_places), len(absent_places)])
    return rows, columns, values, classes, count if images is None else images


def _flat(lists: Iterable[Iterable[str]]) -> tuple[NDArray[np.int64], list[str]]:
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


def _places(lengths: NDArray[np.int64], names: list[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """Return the unique ``row · K + class number`` of all listed names, ascending."""
    number = {name: column for column, name in enumerate(classes)}
    try:
        columns = np.fromiter(map(number.__getitem__, names), dtype=np.int64, count=len(names))
    except KeyError as error:
        raise UnknownNameError("class", error.args[0], number) from None
    places = np.repeat(np.arange(len(lengths), dtype=np.int64) * len(classes), lengths) + columns
    places.sort(kind="stable")  # nearly sorted already; np.unique would hash
    return places[np.diff(places, prepend=-1) > 0]
