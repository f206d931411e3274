"""MS COCO 2014 and 2017 in their own layout, as the single-positive papers read them.

A class is present where the image has an annotation of it, a crowd's included, and absent elsewhere. Images without
any annotation are left out, rows are sorted by the image's number *as a text* ("100" before "9"), and classes are in
the order of the file: the papers' draw of labels depends on all three.

Reference: Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from labelgap.core.errors import InputError
from labelgap.core.findings import Finding, Note
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.layout import DatasetLayout, RequiredFile
from labelgap.data.readers.official.coco_instances import Instances, read_instances
from labelgap.data.readers.official.lists import FileProblems
from labelgap.data.readers.official.splits import BoxList, from_official_splits
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
    refuse_url(path, "images")
    root = find_coco(Path(path), year)
    if root is None:
        raise InputError(f"{path} holds no COCO {year}: there is no annotations/instances_train{year}.json in it.")
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
