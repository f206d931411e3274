"""MS COCO 2014 and 2017 in their own layout, as the single-positive papers read them.

A class is present where the image has an annotation of it, a crowd's included, and absent elsewhere. Images without
any annotation are left out, rows are sorted by the image's number *as a text* ("100" before "9"), and classes are in
the order of the file: the papers' draw of labels depends on all three.

Reference: Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from labelgap.core.errors import InputError
from labelgap.core.findings import Note
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.layout import DatasetLayout, RequiredFile
from labelgap.data.readers.official.lists import FileProblems
from labelgap.data.readers.official.splits import Box, check_corners, from_official_splits, make_boxes, require_files
from labelgap.labels import ABSENT, PRESENT, LabelTable
from labelgap.labels.sparse import check_size

__all__ = ["coco_layout", "find_coco", "load_coco2014", "load_coco2017"]

_DIGITS: Final = re.compile("-?[0-9]{1,20}")
Corners = tuple[float, float, float, float]


def load_coco2014(path: str | os.PathLike[str]) -> Dataset:
    """Read COCO 2014: train and val are parts of train2014, test is val2014, as in the papers.

    Args:
        path: the folder with ``annotations/instances_train2014.json``, ``annotations/instances_val2014.json`` and the
            photos in ``train2014`` and ``val2014`` (or in ``images/train2014`` …); or one of the two files.
    """
    return _load(path, "2014")


def load_coco2017(path: str | os.PathLike[str]) -> Dataset:
    """Read COCO 2017: train and val are parts of train2017, test is val2017.

    Args:
        path: as for ``load_coco2014``, with 2017.
    """
    return _load(path, "2017")


def find_coco(path: Path, year: str) -> Path | None:
    """Return the folder of a year's COCO that a path leads to, or None."""
    if path.is_file():
        path = path.parent.parent if path.name in (f"instances_train{year}.json", f"instances_val{year}.json") else path
    elif path.name == "annotations":
        path = path.parent
    return path if _file(path, "train", year).is_file() else None


def coco_layout(year: str) -> DatasetLayout:
    """Return where a year's COCO comes from, and which of its files are needed."""
    parts = (("train", "train and val"), ("val", "test"))
    return DatasetLayout(
        "https://cocodataset.org/#download",
        "annotations CC BY 4.0; photos from Flickr, under Flickr's terms of use",
        "coco/",
        (
            *(RequiredFile(f"annotations/instances_{part}{year}.json", what) for part, what in parts),
            *(RequiredFile(f"{part}{year}/*.jpg", "photos", (f"images/{part}{year}/*.jpg",)) for part, _ in parts),
        ),
        lambda path: find_coco(path, year),
        tried=False,
    )


def _file(root: Path, split: str, year: str) -> Path:
    return root / "annotations" / f"instances_{split}{year}.json"


def _load(path: str | os.PathLike[str], year: str) -> Dataset:
    refuse_url(path, "images")
    root = find_coco(Path(path), year)
    if root is None:
        raise InputError(f"{path} holds no COCO {year}: there is no annotations/instances_train{year}.json in it.")
    problems = FileProblems(root)
    found = {split: _read(_file(root, split, year), problems) for split in ("train", "val")}
    problems.refuse()
    if [*found["train"].categories.values()] != [*found["val"].categories.values()]:
        raise InputError(f"{root / 'annotations'}: train{year} and val{year} have other categories.")
    (train, train_empty), (test, test_empty) = (_split(root, name, year, each) for name, each in found.items())
    findings = [
        Note("a class with an annotation (a crowd's too) is present, all others are absent; every label is known"),
        Note(
            f"{train_empty + test_empty:,} images without any annotation are left out; rows sorted by number as a text"
        ),
        Note(f"train is the official train{year}, test the official val{year}", "split"),
    ]
    return from_official_splits(f"coco{year}", train, test, findings)


class _Annotation(NamedTuple):
    image: int
    category: int
    corners: Corners | None
    crowd: bool


@dataclass(frozen=True)
class _Instances:
    """A file of instances: names of categories and files of images by their numbers, and annotations of these."""

    categories: dict[int, str] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    annotations: list[_Annotation] = field(default_factory=list)

    def add_category(self, entry: Mapping[str, Any]) -> None:
        """Add an entry of ``categories``."""
        _add(self.categories, entry["id"], entry["name"])

    def add_image(self, entry: Mapping[str, Any]) -> None:
        """Add an entry of ``images``."""
        _add(self.files, entry["id"], entry["file_name"])

    def add_annotation(self, entry: Mapping[str, Any], *, checked: bool) -> None:
        """Add an entry of ``annotations``, whose image and category must exist where it is checked."""
        image, category = _number(entry["image_id"]), _number(entry["category_id"])
        if checked and image not in self.files:
            raise ValueError(f"image {image} is not among the images")
        if checked and category not in self.categories:
            raise ValueError(f"category {category} does not exist")
        corners = _corners(entry["bbox"]) if entry.get("bbox") else None
        self.annotations.append(_Annotation(image, category, corners, bool(entry.get("iscrowd", 0))))


def _read(path: Path, problems: FileProblems) -> _Instances:
    """Read a file of instances; every entry that is not as it should be is a problem."""
    found, before = _Instances(), len(problems)
    content = _read_json(path, problems)
    if content is None:
        return found
    _read_entries(path, content, "categories", found.add_category, problems)
    _read_entries(path, content, "images", found.add_image, problems)
    checked = len(problems) == before  # an annotation of what could not be read is no further problem
    _read_entries(path, content, "annotations", partial(found.add_annotation, checked=checked), problems)
    if not found.annotations and len(problems) == before:
        problems.add(path, "has no annotations")
    return found


def _read_entries(
    path: Path,
    content: Mapping[str, Any],
    name: str,
    add: Callable[[Mapping[str, Any]], None],
    problems: FileProblems,
) -> None:
    """Add every entry of a list; one that cannot be is a problem, with its place counted from 0, as in JSON paths."""
    entries = content.get(name)
    if not isinstance(entries, list):
        problems.add(path, f"is not a file of COCO instances: there is no list '{name}'")
        return
    for number, entry in enumerate(entries):
        try:
            if not isinstance(entry, dict):
                raise TypeError(f"{truncate_text(repr(entry))} is no object")
            add(entry)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else truncate_text(str(error), 200)
            problems.add(path, f"{name}[{number}]: {reason}")


def _add(found: dict[int, str], number: Any, text: Any) -> None:
    """Add a text by its number; ``ValueError`` for a number that is there already."""
    if _number(number) in found:
        raise ValueError(f"the id {number} is listed again")
    found[_number(number)] = str(text)


def _split(root: Path, split: str, year: str, found: _Instances) -> tuple[Split, int]:
    """Return an official split, and how many of its images have no annotations."""
    column_of = {number: column for column, number in enumerate(found.categories)}
    ids = sorted({each.image for each in found.annotations}, key=str)
    check_size(len(ids), len(column_of))
    row_of = {number: row for row, number in enumerate(ids)}
    codes = np.full((len(ids), len(column_of)), ABSENT, dtype=np.int8)
    boxes: list[Box] = []
    for each in found.annotations:
        row, column = row_of[each.image], column_of[each.category]
        codes[row, column] = PRESENT
        if each.corners is not None:
            boxes.append((row, column, each.corners, each.crowd))
    table = LabelTable.from_dense(codes, list(found.categories.values()), [found.files[number] for number in ids])
    folder = f"{split}{year}"
    place = next((place for place in (folder, f"images/{folder}") if (root / place).is_dir()), folder)
    paths = [f"{place}/{name}" for name in table.images]
    require_files(_file(root, split, year), root, paths, f"Are all photos unpacked into {root / folder}?")
    images = FileImages(root, table.images, paths)
    name = "train" if split == "train" else "test"
    return Split(name, images, table, boxes=make_boxes(boxes)), len(found.files) - len(ids)


def _corners(box: Any) -> Corners:
    """Turn x, y, width, height into inclusive corners."""
    try:
        left, top, width, height = map(float, box)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("a bbox is four numbers") from None
    return check_corners((left, top, left + width - 1, top + height - 1))


def _number(value: Any) -> int:
    """Return the number of an image or a category; an error for one that is not whole, or has more than 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{truncate_text(repr(value))} is not a number")
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is not a whole number")
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError(f"{truncate_text(repr(value))} is not a whole number")
    if abs(number := int(value)) >= 2**63:
        raise ValueError("a number is too large")
    return number


def _read_json(path: Path, problems: FileProblems) -> dict[str, Any] | None:
    """Read a file of instances without its segmentations, which are most of it; None, with a problem, for any other."""
    if not path.is_file():  # opening a pipe would wait for ever
        problems.add(path, "is not a file" if path.exists() else "does not exist")
        return None
    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file, object_hook=_without_segmentation, parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        problems.add(path, f"cannot be read ({truncate_text(str(error), 200) or 'it does not fit into memory'})")
        return None
    if not isinstance(content, dict):
        problems.add(path, "is not a file of COCO instances: it holds no object")
        return None
    return content


def _without_segmentation(value: dict[str, Any]) -> dict[str, Any]:
    value.pop("segmentation", None)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
