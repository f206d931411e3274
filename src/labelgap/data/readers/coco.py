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
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from labelgap.core.findings import Finding, Note
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.readers.common import (
    BoxList,
    Corners,
    DatasetLayout,
    FileProblems,
    RequiredFile,
    check_corners,
    find_root,
    from_official_splits,
)
from labelgap.labels import ABSENT, PRESENT, LabelTable
from labelgap.labels.sparse import check_size


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
    root = find_root(Path(path), coco_layout(year))
    problems = FileProblems(root)
    found = {split: read_instances(_file(root, split, year), problems) for split in ("train", "val")}
    _check_categories(root, year, found["train"], found["val"], problems)
    for each in found.values():
        check_size(len(each.annotated()), len(each.categories.texts))
    files = [file for split, each in found.items() for file in each.paths(_photos(root, split, year))]
    problems.check_images(files, f"Are all photos unpacked into train{year} and val{year}?")
    problems.refuse()
    boxes = {split: BoxList() for split in found}
    train, test = (_split(root, split, year, each, boxes[split]) for split, each in found.items())
    empty = sum(len(each.images.texts) - len(each.annotated()) for each in found.values())
    findings: list[Finding] = [
        Note("a class with an annotation (a crowd's too) is present, all others are absent; every label is known"),
        Note(f"{empty:,} images without any annotation are left out; rows sorted by number as a text"),
        Note(f"train is the official train{year}, test the official val{year}", "split"),
        *(finding for each in boxes.values() for finding in each.findings()),
    ]
    return from_official_splits(f"coco{year}", train, test, findings)


def _check_categories(root: Path, year: str, train: Instances, val: Instances, problems: FileProblems) -> None:
    """Compare the names of both files, unless one of them could not be read completely."""
    ours, theirs = list(train.categories.texts.values()), list(val.categories.texts.values())
    if not (train.categories.sound and val.categories.sound) or ours == theirs:
        return
    odd = sorted({*ours} ^ {*theirs})
    what = f"{truncate_text(', '.join(odd), 100)} in one only" if odd else "the same in another order"
    problems.add(root / "annotations", f"train{year} and val{year} have other categories: {what}")


def _photos(root: Path, split: str, year: str) -> str:
    """Return the folder of a split's photos, below the root."""
    folder = f"{split}{year}"
    return next((place for place in (folder, f"images/{folder}") if (root / place).is_dir()), folder)


def _split(root: Path, split: str, year: str, found: Instances, boxes: BoxList) -> Split:
    """Return an official split, and add its boxes to a list."""
    names, files = found.categories.texts, found.images.texts
    column_of = {number: column for column, number in enumerate(names)}
    ids = found.annotated()
    row_of = {number: row for row, number in enumerate(ids)}
    codes = np.full((len(ids), len(column_of)), ABSENT, dtype=np.int8)
    file = _file(root, split, year).name
    for each in found.annotations:
        row, column = row_of[each.image], column_of[each.category]
        codes[row, column] = PRESENT
        if each.corners is not None:
            boxes.add(row, column, each.corners, each.crowd, f"{file}, annotations[{each.place}]")
    table = LabelTable.from_dense(codes, list(names.values()), [files[number] for number in ids])
    images = FileImages(root, table.images, found.paths(_photos(root, split, year)))
    return Split("train" if split == "train" else "test", images, table, boxes=boxes.boxes())


_DIGITS: Final = re.compile("-?[0-9]{1,20}")


class _Annotation(NamedTuple):
    place: int
    image: int
    category: int
    corners: Corners | None
    crowd: bool


@dataclass
class _Texts:
    """Texts by id: the names of categories, or the files of images.

    An id may lack a usable text. ``complete`` says whether every id could be read. ``strangers`` are ids of annotations
    that no entry has: the number of the first annotation, and how many have it.
    """

    key: str
    texts: dict[int, str] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)
    complete: bool = False
    strangers: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether there are entries, all have a text, and annotations have no other ids."""
        return self.complete and 0 < len(self.ids) == len(self.texts) and not self.strangers

    def refer(self, identity: int, annotation: int) -> None:
        """Note that an annotation has this id."""
        if self.complete and identity not in self.ids:
            first, count = self.strangers.get(identity, (annotation, 0))
            self.strangers[identity] = first, count + 1

    def add(self, number: int, entry: Mapping[str, Any]) -> None:
        """Add an entry; an error where it has no id or no text, or one that is there already."""
        try:
            identity = _whole_number(entry["id"])
        except (KeyError, TypeError, ValueError, OverflowError):
            self.complete = False
            raise
        if identity in self.ids:
            raise ValueError(f"the id {identity} is listed again")
        self.ids.add(identity)
        text = entry[self.key]
        if isinstance(text, bool) or not isinstance(text, str | int | float) or not str(text).strip():
            raise TypeError(f"{self.key} is {truncate_text(repr(text))}")
        self.texts[identity] = str(text)


@dataclass
class Instances:
    """A file of instances: names of categories and files of images by their ids, and annotations of these."""

    categories: _Texts = field(default_factory=lambda: _Texts("name"))
    images: _Texts = field(default_factory=lambda: _Texts("file_name"))
    annotations: list[_Annotation] = field(default_factory=list)

    def add_annotation(self, number: int, entry: Mapping[str, Any]) -> None:
        """Add an entry of ``annotations``."""
        image, category = _whole_number(entry["image_id"]), _whole_number(entry["category_id"])
        self.images.refer(image, number)
        self.categories.refer(category, number)
        corners = _corners(entry["bbox"]) if entry.get("bbox") else None
        self.annotations.append(_Annotation(number, image, category, corners, bool(entry.get("iscrowd", 0))))

    def annotated(self) -> list[int]:
        """Return the ids of the images that have an annotation, sorted as texts."""
        return sorted({each.image for each in self.annotations}, key=str)

    def paths(self, folder: str) -> list[str]:
        """Return the photos of the images that have an annotation, below a folder."""
        texts = self.images.texts
        return [f"{folder}/{texts[image]}" for image in self.annotated() if image in texts]


def read_instances(path: Path, problems: FileProblems) -> Instances:
    """Read a file of instances; every entry that is not as it should be is a problem."""
    found = Instances()
    content = _read_json(path, problems)
    if content is None:
        return found
    for name, texts in (("categories", found.categories), ("images", found.images)):
        entries = content.get(name)
        texts.complete = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
        _read_entries(path, content, name, texts.add, problems)
        firsts: dict[str, int] = {}
        for number, text in texts.texts.items():
            if firsts.setdefault(text, number) != number:
                what = f"'{truncate_text(text)}' is the {texts.key} of the ids {firsts[text]} and {number}"
                problems.add(path, f"{name}: {what}")
    _read_entries(path, content, "annotations", found.add_annotation, problems)
    for what, texts in (
        ("image {} is not among the images", found.images),
        ("category {} does not exist", found.categories),
    ):
        for identity, (first, count) in texts.strangers.items():
            more = f" (and {count - 1:,} more annotations of it)" if count > 1 else ""
            problems.add(path, f"annotations[{first}]: {what.format(identity)}{more}")
    if content.get("annotations") == []:
        problems.add(path, "has no annotations")
    return found


def _read_entries(
    path: Path,
    content: Mapping[str, Any],
    name: str,
    add: Callable[[int, Mapping[str, Any]], None],
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
            add(number, entry)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else truncate_text(str(error), 200)
            problems.add(path, f"{name}[{number}]: {reason}")


def _corners(box: Any) -> Corners:
    """Turn x, y, width, height into inclusive corners."""
    try:
        left, top, width, height = map(float, box)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("a bbox is four numbers") from None
    return check_corners((left, top, left + width - 1, top + height - 1))


def _whole_number(value: Any) -> int:
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
