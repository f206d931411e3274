"""``attributes/image_attribute_labels.txt`` of CUB-200-2011: nearly four million lines, some with too many columns.

pyarrow parses all ordinary lines at once. Where anything is wrong, the file is read again line by line, for the numbers
of the lines.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from labelgap.core.text import truncate_text
from labelgap.data.readers.official.lists import FileProblems

_COLUMNS: Final = ("image", "attribute", "is_present", "certainty", "seconds")
_NO_CERTAINTY: Final = 0
_BLOCK: Final = 1 << 24

Entries = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class LabelIds:
    """The numbers of images, attributes and certainties, in the order of their files."""

    images: tuple[int, ...]
    attributes: tuple[int, ...]
    certainties: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AttributeLabels:
    """Labels of all images.

    Attributes:
        present: ``(images, attributes)`` whether the attribute is present.
        certainty: ``(images, attributes)`` the number of the certainty; 0 where a line with too many columns has none.
        extra_columns: how many lines have more than five columns.
    """

    present: NDArray[np.bool_]
    certainty: NDArray[np.int32]
    extra_columns: int


def read_attribute_labels(file: Path, ids: LabelIds, problems: FileProblems) -> AttributeLabels | None:
    """Read the label of every image and attribute; None, with problems, where the file is not as published."""
    before = len(problems)
    content = problems.read(file)
    if len(problems) > before:
        return None
    parsed = _parse_at_once(content, ids)
    if parsed is not None and (labels := _arrange(*parsed, ids)) is not None:
        return labels
    return _read_line_by_line(file, content, ids, problems)


def _parse_at_once(content: bytes, ids: LabelIds) -> tuple[Entries, int] | None:
    """Return the first four columns, and how many lines have more than five; None where a line is wrong."""
    if not content.isascii():  # pyarrow could not decode the text of an odd row
        return None
    odd: list[str] = []

    def collect(row: Any) -> str:
        odd.append(row.text)
        return "skip"

    integers = {name: pa.int64() for name in _COLUMNS[:4]}
    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(content),
            pyarrow.csv.ReadOptions(column_names=_COLUMNS, use_threads=False, block_size=_BLOCK),
            pyarrow.csv.ParseOptions(delimiter=" ", quote_char=False, invalid_row_handler=collect),
            pyarrow.csv.ConvertOptions(column_types={**integers, "seconds": pa.string()}),
        )
        rows = [_parse_line(text, ids) for text in odd]
    except (pa.ArrowInvalid, ValueError):
        return None
    extra = np.array([row for row, _ in rows], dtype=np.int64).reshape(-1, 4)
    columns = [
        np.concatenate([table.column(name).to_numpy(), extra[:, place]]) for place, name in enumerate(_COLUMNS[:4])
    ]
    return (columns[0], columns[1], columns[2], columns[3]), sum(more for _, more in rows)


def _parse_line(text: str, ids: LabelIds) -> tuple[tuple[int, int, int, int], bool]:
    """Return the first four numbers of a line, and whether it has more than five columns; ``ValueError`` if wrong.

    Where a line has more, its fourth column need not be a certainty.
    """
    parts = text.split()
    if len(parts) < len(_COLUMNS):
        raise ValueError(f"a line is {' '.join(_COLUMNS)}")
    more = len(parts) > len(_COLUMNS)
    image, attribute, present = map(int, parts[:3])
    certainty = int(parts[3]) if not more or parts[3].isdecimal() else _NO_CERTAINTY
    return (image, attribute, present, _NO_CERTAINTY if more and certainty not in ids.certainties else certainty), more


def _arrange(entries: Entries, extra_columns: int, ids: LabelIds) -> AttributeLabels | None:
    """Return the labels as matrices; None where a number is unknown, or a label is missing or given twice."""
    images, attributes, present, certainty = entries
    shape = len(ids.images), len(ids.attributes)
    rows, known_images = _positions(images, ids.images)
    columns, known_attributes = _positions(attributes, ids.attributes)
    if not (known_images and known_attributes and np.isin(present, (0, 1)).all()):
        return None
    allowed = (*ids.certainties, *((_NO_CERTAINTY,) if extra_columns else ()))
    place = rows * shape[1] + columns
    if len(place) != shape[0] * shape[1] or not np.isin(certainty, allowed).all():
        return None
    if (np.bincount(place, minlength=len(place)) != 1).any():
        return None
    found = np.empty(shape, dtype=bool), np.empty(shape, dtype=np.int32)
    found[0].flat[place], found[1].flat[place] = present == 1, certainty
    return AttributeLabels(*found, extra_columns)


def _positions(values: NDArray[np.int64], known: tuple[int, ...]) -> tuple[NDArray[np.int64], bool]:
    """Return the position of every value among the known ones, and whether all are known."""
    numbers = np.array(known, dtype=np.int64)
    order = np.argsort(numbers)
    place = np.minimum(np.searchsorted(numbers, values, sorter=order), len(numbers) - 1)
    positions: NDArray[np.int64] = order[place]
    return positions, bool((numbers[positions] == values).all())


def _read_line_by_line(file: Path, content: bytes, ids: LabelIds, problems: FileProblems) -> AttributeLabels | None:
    """Read the labels slowly; None, with everything that is wrong and its line, where something is."""
    before, extra_columns = len(problems), 0
    row_of, column_of = ({number: place for place, number in enumerate(each)} for each in (ids.images, ids.attributes))
    shape = len(row_of), len(column_of)
    given, present, certainties = (np.zeros(shape, dtype=kind) for kind in (bool, bool, np.int32))
    for line, text in enumerate(content.decode("utf-8", errors="replace").splitlines(), 1):
        if not text.strip():
            continue
        try:
            (image, attribute, value, certainty), more = _parse_line(text, ids)
        except ValueError:
            problems.add(file, f"{truncate_text(repr(text))}: a line is {' '.join(_COLUMNS)}", line)
            continue
        place = row_of.get(image, 0), column_of.get(attribute, 0)
        known = image in row_of and attribute in column_of
        for wrong, message in (
            (image not in row_of, f"image {image} is not in images.txt"),
            (attribute not in column_of, f"attribute {attribute} is not in attributes.txt"),
            (value not in (0, 1), f"is_present is 1 or 0, not {value}"),
            (not more and certainty not in ids.certainties, f"certainty {certainty} is not in certainties.txt"),
            (known and given[place], f"attribute {attribute} of image {image} is given again"),
        ):
            if wrong:
                problems.add(file, message, line)
        if known:
            given[place], present[place] = True, value == 1
            certainties[place] = certainty if certainty in ids.certainties else _NO_CERTAINTY
            extra_columns += more
    counts = given.sum(axis=1)
    lacking = np.flatnonzero(counts < shape[1])
    if len(lacking):
        first = f"the first is {ids.images[lacking[0]]} with {counts[lacking[0]]} of {shape[1]}"
        problems.add(file, f"{len(lacking):,} images lack labels, {first}: truncated, or another version?")
    return None if len(problems) > before else AttributeLabels(present, certainties, extra_columns)
