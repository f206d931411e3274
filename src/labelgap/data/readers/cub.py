"""CUB-200-2011 in its published layout: 312 attributes of birds, certainties, the official split, boxes.

Some lines of ``image_attribute_labels.txt`` have more columns than five: a fourth that is no certainty counts as none.
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
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from labelgap.core.errors import UnknownNameError
from labelgap.core.findings import Note
from labelgap.core.text import pluralize, truncate_text
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
_ATTRIBUTES: Final = 312
_PUBLISHED: Final = (5_994, 5_794)

Codes = NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class AttributeLabels:
    """Labels ``(images, attributes)``, a certainty of 0 for none, and how many lines have more than five columns."""

    present: NDArray[np.bool_]
    certainty: NDArray[np.int32]
    extra_columns: int


def read_attribute_labels(
    file: Path,
    images: Mapping[int, str],
    attributes: Mapping[int, str],
    certainties: Mapping[int, str],
    problems: FileProblems,
) -> AttributeLabels:
    """Read the label of every image and attribute; what is wrong with a line is a problem."""
    lines, entries = _parse_lines(file, certainties, problems)
    image, attribute, present, certainty, more = entries.T
    (row, known_row), (column, known_column) = _positions(image, images), _positions(attribute, attributes)
    place, known = row * len(attributes) + column, known_row & known_column
    repeated = known.copy()
    repeated[np.flatnonzero(known)[np.unique(place[known], return_index=True)[1]]] = False
    certain = np.isin(certainty, list(certainties)) | ((more == 1) & (certainty == _NO_CERTAINTY))
    for wrong, message in (
        (~known_row, "image {} is not in images.txt"),
        (~known_column, "attribute {1} is not in attributes.txt"),
        (~np.isin(present, (0, 1)), "is_present is 1 or 0, not {2}"),
        (~certain, "certainty {3} is not in certainties.txt"),
        (repeated, "attribute {1} of image {0} is given again"),
    ):
        for number in np.flatnonzero(wrong).tolist():
            problems.add(file, message.format(*entries[number].tolist()), int(lines[number]))
    shape = len(images), len(attributes)
    counts = np.bincount(place[known & ~repeated] // shape[1], minlength=shape[0])
    if file.exists() and len(lacking := np.flatnonzero(counts < shape[1])):
        first = f"the first is {[*images][lacking[0]]} with {counts[lacking[0]]} of {shape[1]}"
        problems.add(file, f"{len(lacking):,} images lack labels, {first}: truncated, or another version?")
    labels = AttributeLabels(np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int32), int(more.sum()))
    labels.present.flat[place[known]], labels.certainty.flat[place[known]] = present[known] == 1, certainty[known]
    return labels


def _parse_lines(
    file: Path, certainties: Mapping[int, str], problems: FileProblems
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the lines that can be parsed, and their entries; the others are problems.

    pyarrow parses the four million lines at once; those that are odd are parsed one by one, and come last.
    """
    odd: list[tuple[int, str]] = []

    def collect(row: Any) -> str:
        odd.append((row.number, row.text))
        return "skip"

    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(problems.read(file) or b"\n"),
            pyarrow.csv.ReadOptions(column_names=_COLUMNS, use_threads=False, block_size=_BLOCK, encoding="latin-1"),
            pyarrow.csv.ParseOptions(
                delimiter=" ", quote_char=False, ignore_empty_lines=False, invalid_row_handler=collect
            ),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(_COLUMNS, pa.string())),
        )
    except pa.ArrowInvalid as error:
        problems.add(file, f"cannot be read ({truncate_text(str(error), 200)})")
        return np.zeros(0, dtype=np.int64), np.zeros((0, 5), dtype=np.int64)
    lines = np.setdiff1d(np.arange(1, len(table) + len(odd) + 1), [number for number, _ in odd])
    cells = [table.column(name).combine_chunks() for name in _COLUMNS[:4]]
    numeric = [pc.match_substring_regex(each, r"^\d{1,9}$").to_numpy(zero_copy_only=False) for each in cells]
    good = np.logical_and.reduce(numeric)
    odd += [(int(lines[row]), " ".join(table.slice(row, 1).to_pylist()[0].values())) for row in np.flatnonzero(~good)]
    entries = np.zeros((int(good.sum()), 5), dtype=np.int64)
    for column, each in enumerate(cells):
        entries[:, column] = each.filter(pa.array(good)).cast(pa.int64()).to_numpy()
    rows = []
    for line, text in sorted(odd):
        try:
            rows += [(line, *_parse_line(text, certainties))] if text.strip() else []
        except ValueError:
            problems.add(file, f"{truncate_text(repr(text))}: a line is {' '.join(_COLUMNS)}", line)
    more = np.array(rows, dtype=np.int64).reshape(-1, 6)
    return np.concatenate([lines[good], more[:, 0]]), np.concatenate([entries, more[:, 1:]])


def _parse_line(text: str, certainties: Mapping[int, str]) -> tuple[int, ...]:
    """Return the entry of a line; ``ValueError`` if it is none. With more columns the fourth may be no certainty."""
    parts = text.split()
    if len(parts) < len(_COLUMNS) or not all(part.isdecimal() and len(part) < 10 for part in parts[:3]):
        raise ValueError
    more = len(parts) > len(_COLUMNS)
    certainty = int(parts[3][:9]) if not more or parts[3].isdecimal() else _NO_CERTAINTY
    return (*map(int, parts[:3]), _NO_CERTAINTY if more and certainty not in certainties else certainty, int(more))


def _positions(values: NDArray[np.int64], known: Mapping[int, str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    numbers = np.array(list(known), dtype=np.int64)
    order = np.argsort(numbers)
    positions: NDArray[np.int64] = order[np.minimum(np.searchsorted(numbers[order], values), len(numbers) - 1)]
    return positions, numbers[positions] == values


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
        numbers = {text: number for number, text in files.certainties.items()}
        if certainty not in numbers:
            raise UnknownNameError("certainty", certainty, numbers)
        codes[files.labels.certainty < numbers[certainty]] = UNKNOWN
        share = 100 * float((codes == UNKNOWN).mean())
        notes.append(Note(f"labels of a certainty below '{certainty}' are unknown: {share:.1f} % of all"))
    notes.append(
        Note("train is the official training set, test the official test set, in the order of images.txt", "split")
    )
    train, test = (
        _split(files, name, codes, np.flatnonzero(files.training == (name == "train")), boxes)
        for name in ("train", "test")
    )
    return from_official_splits("cub", train, test, notes, _PUBLISHED)


def read_cub_certainty(path: str | os.PathLike[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the images in the order of ``images.txt``, and ``(images, 312)`` certainties of their labels.

    1 is not visible, 2 guessing, 3 probably, 4 definitely; 0 where the file has none.
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


def _read(path: str | os.PathLike[str], *, with_images: bool = False) -> _Files:
    root = find_root(Path(path), CUB_LAYOUT)
    problems = FileProblems(root)
    images = problems.read_names(root / "images.txt")
    attributes = _read_attributes(root, problems)
    certainties = problems.read_names(root / "attributes" / "certainties.txt")
    labels = None
    if not len(problems):  # otherwise most lines would name what the lists lack
        file = root / "attributes" / "image_attribute_labels.txt"
        labels = read_attribute_labels(file, images, attributes, certainties, problems)
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
    attributes = problems.read_names(file)
    if len(problems) == before and len(attributes) != _ATTRIBUTES:
        problems.add(file, f"{len(attributes)} attributes, and the published list has {_ATTRIBUTES}: another version?")
    return attributes


def _read_training(file: Path, images: Mapping[int, str], problems: FileProblems) -> NDArray[np.bool_]:
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
    before, found = len(problems), dict[int, tuple[int, tuple[float, ...]]]()
    for number, (line, text) in problems.read_numbered(file).items():
        try:
            values = tuple(map(float, text.split()))
        except ValueError:
            values = ()
        if len(values) != count:
            problems.add(file, f"{truncate_text(repr(text))}: after the number comes {pluralize(count, 'value')}", line)
        elif number not in images:
            problems.add(file, f"image {number} is not in images.txt", line)
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
        ),
        RequiredFile("attributes/certainties.txt", "number and name of every certainty"),
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
