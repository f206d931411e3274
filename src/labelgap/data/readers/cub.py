"""CUB-200-2011 in its published layout: 312 attributes of birds, certainties, the official split, boxes.

``attributes/image_attribute_labels.txt`` has a line per image and attribute: ``image attribute is_present certainty
seconds``. The papers use ``is_present`` alone, so that every label is known; ``certainty`` turns labels of which the
annotator was less sure into unknown ones. Some lines of the published file have more columns than five: their first
three are those of all others, and a fourth that is no certainty counts as none at all. Rows are in the order of
``images.txt``, classes in that of ``attributes.txt``, which is packed beside the folder and not into it.

Reference: Wah et al., "The Caltech-UCSD Birds-200-2011 Dataset", Caltech CNS-TR-2011-001.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from labelgap.core.errors import UnknownNameError
from labelgap.core.findings import Note
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.readers.common import (
    DatasetLayout,
    FileProblems,
    RequiredFile,
    check_corners,
    find_root,
    from_official_splits,
)
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable

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
    """Labels of all images, ``(images, attributes)``, and how many lines have more than five columns.

    A certainty is 0 where such a line has none.
    """

    present: NDArray[np.bool_]
    certainty: NDArray[np.int32]
    extra_columns: int


def read_attribute_labels(file: Path, ids: LabelIds, problems: FileProblems) -> AttributeLabels | None:
    """Read the label of every image and attribute; None, with problems, where the file is not as published.

    pyarrow parses its four million lines at once; where anything is wrong, they are read one by one, for their numbers.
    """
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


_ATTRIBUTES: Final = 312
_OFFICIAL: Final = {"train": 5_994, "test": 5_794}

Codes = NDArray[np.int8]


def load_cub(path: str | os.PathLike[str], *, certainty: str | None = None, boxes: bool = True) -> Dataset:
    """Read CUB-200-2011: train and val are parts of the official training images, test is the official test.

    Args:
        path: ``CUB_200_2011``, or the folder it lies in.
        certainty: labels below this certainty become unknown: "guessing" (those of parts that are not visible become
            unknown), "probably" or "definitely". None keeps every label, as the papers do.
        boxes: whether to read the box of the bird; every attribute that is present lies in it.
    """
    files = _read(path, with_images=True)
    codes = np.where(files.labels.present, PRESENT, ABSENT).astype(np.int8)
    count = files.labels.extra_columns
    extra = f" ({count:,} lines have more than five columns; the first four count)" if count else ""
    notes = [Note(f"labels of image_attribute_labels.txt: is_present, 1 = present, 0 = absent{extra}")]
    if certainty is None:
        notes.append(
            Note("every label is known, whatever its certainty; --certainty guessing makes 'not visible' unknown")
        )
    else:
        codes[files.labels.certainty < files.certainty_number(certainty)] = UNKNOWN
        share = 100 * float((codes == UNKNOWN).mean())
        notes.append(Note(f"labels of a certainty below '{certainty}' are unknown: {share:.1f} % of all"))
    notes.append(
        Note("train is the official training set, test the official test set, in the order of images.txt", "split")
    )
    sizes = {"train": int(files.training.sum()), "test": int((~files.training).sum())}
    if sizes != _OFFICIAL:
        found, published = (f"{each['train']:,} / {each['test']:,}" for each in (sizes, _OFFICIAL))
        notes.append(Note(f"there are {found} training and test images, in the published version {published}"))
    train, test = (
        _split(files, name, codes, np.flatnonzero(files.training == (name == "train")), boxes) for name in sizes
    )
    return from_official_splits("cub", train, test, notes)


def read_cub_certainty(path: str | os.PathLike[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the images in the order of ``images.txt``, and the certainty of each of their labels.

    Args:
        path: as for ``load_cub``.

    Returns:
        The names of the images, and ``(images, 312)`` numbers of ``certainties.txt``: 1 not visible, 2 guessing,
        3 probably, 4 definitely; 0 where the file has none.
    """
    files = _read(path)
    return files.images, files.labels.certainty


def find_cub(path: Path) -> Path | None:
    """Return the folder of CUB-200-2011 that a path leads to, or None."""
    places = (path, path / "CUB_200_2011", path / "CUB-200-2011")
    needed = ("images.txt", "train_test_split.txt")
    return next((place for place in places if all((place / name).is_file() for name in needed)), None)


@dataclass(frozen=True, eq=False)
class _Files:
    """What the files say: a row per image, in the order of ``images.txt``."""

    root: Path
    images: tuple[str, ...]
    attributes: tuple[str, ...]
    certainties: Mapping[int, str]
    training: NDArray[np.bool_]
    labels: AttributeLabels
    corners: NDArray[np.float64]

    def certainty_number(self, name: str) -> int:
        """Return the number of a certainty; an unknown name is an error."""
        numbers = {text: number for number, text in self.certainties.items()}
        if name not in numbers:
            raise UnknownNameError("certainty", name, numbers)
        return numbers[name]


def _read(path: str | os.PathLike[str], *, with_images: bool = False) -> _Files:
    """Read all files, or raise one error with everything that is wrong; ``with_images`` if an image is not there."""
    root = find_root(Path(path), CUB_LAYOUT)
    problems = FileProblems(root)
    images = problems.read_numbered(root / "images.txt")
    attributes = _read_attributes(root, problems)
    certainties = problems.read_numbered(root / "attributes" / "certainties.txt")
    labels = None
    if not len(problems):  # otherwise most lines would name what the lists lack
        ids = LabelIds(tuple(images), tuple(attributes), tuple(certainties))
        labels = read_attribute_labels(root / "attributes" / "image_attribute_labels.txt", ids, problems)
    training = _read_training(root / "train_test_split.txt", images, problems)
    corners = _read_corners(root / "bounding_boxes.txt", images, problems)
    if with_images:
        paths = [f"images/{image}" for image in images.values()]
        problems.check_images(paths, f"Are all images unpacked into {root / 'images'}?")
    problems.refuse()
    assert labels is not None  # a problem otherwise
    return _Files(root, tuple(images.values()), tuple(attributes.values()), certainties, training, labels, corners)


def _read_attributes(root: Path, problems: FileProblems) -> dict[int, str]:
    places = [root / "attributes" / "attributes.txt", root / "attributes.txt", root.parent / "attributes.txt"]
    file = next((place for place in places if place.is_file()), places[0])
    before = len(problems)
    attributes = problems.read_numbered(file)
    if len(problems) == before and len(attributes) != _ATTRIBUTES:
        problems.add(file, f"{len(attributes)} attributes, and the published list has {_ATTRIBUTES}: another version?")
    return attributes


def _read_training(file: Path, images: Mapping[int, str], problems: FileProblems) -> NDArray[np.bool_]:
    """Return for every image whether it is one for training."""
    found = _read_values(file, images, 1, problems)
    for line, (value,) in found.values():
        if value not in (0, 1):
            problems.add(file, f"{value:g}: 1 is train, 0 is test", line)
    training = np.array([number in found and found[number][1] == (1,) for number in images], dtype=bool)
    if (found and training.all()) or not training.any():
        problems.add(file, f"no {'test' if training.any() else 'training'} image is in it")
    return training


def _split(files: _Files, name: str, codes: Codes, rows: NDArray[np.int64], boxes: bool) -> Split:
    names = [files.images[row] for row in rows]
    paths = [f"images/{image}" for image in names]
    table = LabelTable.from_dense(codes[rows], list(files.attributes), names)
    found = None
    if boxes and len(files.corners):
        places, columns = np.nonzero(codes[rows] == PRESENT)
        found = Boxes(places, columns, files.corners[rows][places])
    return Split(name, FileImages(files.root, names, paths), table, boxes=found)


def _read_values(
    file: Path, images: Mapping[int, str], count: int, problems: FileProblems
) -> dict[int, tuple[int, tuple[float, ...]]]:
    """Return the line and the values of every image from lines of an image's number and ``count`` values."""
    before = len(problems)
    found: dict[int, tuple[int, tuple[float, ...]]] = {}
    for line, text in problems.read_lines(file):
        first, *rest = text.split()
        try:
            number, values = int(first), tuple(map(float, rest))
        except ValueError:
            number, values = 0, ()
        if len(values) != count:
            what = "value" if count == 1 else "values"
            problems.add(
                file, f"{truncate_text(repr(text))}: a line is the number of an image and {count} {what}", line
            )
        elif number not in images:
            problems.add(file, f"image {number} is not in images.txt", line)
        elif number in found:
            problems.add(file, f"image {number} is listed again (first in line {found[number][0]:,})", line)
        else:
            found[number] = line, values
    missing = [number for number in images if number not in found]
    if missing and (found or len(problems) == before):
        problems.add(
            file, f"{len(missing):,} images of images.txt are not in it, the first is {missing[0]}: truncated?"
        )
    return found


def _read_corners(file: Path, images: Mapping[int, str], problems: FileProblems) -> NDArray[np.float64]:
    """Return inclusive corners of the bird in every image, from x, y, width and height; empty without the file."""
    if not file.exists():
        return np.empty((0, 4))
    before = len(problems)
    corners: dict[int, tuple[float, float, float, float]] = {}
    for number, (line, (left, top, width, height)) in _read_values(file, images, 4, problems).items():
        try:
            check_corners((left, top, width, height))
            right, bottom = left + max(width, 1) - 1, top + max(height, 1) - 1
            corners[number] = max(left, 0), max(top, 0), max(right, 0), max(bottom, 0)
        except ValueError as error:
            problems.add(file, str(error), line)
    return np.empty((0, 4)) if len(problems) > before else np.array([corners[number] for number in images])


CUB_LAYOUT: Final = DatasetLayout(
    "https://www.vision.caltech.edu/datasets/cub_200_2011/",
    "for non-commercial research and education; the photos belong to their owners (see its page)",
    "CUB_200_2011/",
    (
        RequiredFile("images.txt", "number and path of every image: 11,788"),
        RequiredFile("train_test_split.txt", "number and 1 (train) or 0 (test)"),
        RequiredFile("bounding_boxes.txt", "number, x, y, width, height of the bird", optional=True),
        RequiredFile(
            "attributes/attributes.txt",
            "number and name of every attribute",
            ("attributes.txt", "../attributes.txt"),
            lines=_ATTRIBUTES,
        ),
        RequiredFile("attributes/certainties.txt", "number and name of every certainty", lines=4),
        RequiredFile("attributes/image_attribute_labels.txt", "image, attribute, 1 or 0, certainty, seconds"),
        RequiredFile("images/*/*.jpg", "the images, in a folder per species"),
    ),
    find_cub,
    (
        "the archive has attributes.txt beside CUB_200_2011, where it is found too",
        "some lines of image_attribute_labels.txt have more than five columns: the first four count",
    ),
    tried=False,
)
