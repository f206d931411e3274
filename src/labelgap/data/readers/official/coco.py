"""MS COCO 2014 and 2017 in their own layout, as the single-positive papers read them.

A class is present where the image has an annotation of it, a crowd's included, and absent elsewhere. Images without
any annotation are left out, rows are sorted by the image's number *as a text* ("100" before "9"), and classes are in
the order of the file: the papers' draw of labels depends on all three.

Reference: Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from labelgap.core.errors import InputError
from labelgap.core.findings import Note
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.layout import DatasetLayout, RequiredFile
from labelgap.data.readers.official.splits import Box, check_corners, from_official_splits, make_boxes, require_files
from labelgap.labels import ABSENT, PRESENT, LabelTable
from labelgap.labels.sparse import check_size

__all__ = ["coco_layout", "find_coco", "load_coco2014", "load_coco2017"]

_MAX_DIGITS: Final = 20


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
    train, train_empty = _read(root, "train", year)
    test, test_empty = _read(root, "val", year)
    if train.labels.classes != test.labels.classes:
        raise InputError(f"{root / 'annotations'}: train{year} and val{year} have other categories.")
    findings = [
        Note("a class with an annotation (a crowd's too) is present, all others are absent; every label is known"),
        Note(
            f"{train_empty + test_empty:,} images without any annotation are left out; rows sorted by number as a text"
        ),
        Note(f"train is the official train{year}, test the official val{year}", "split"),
    ]
    return from_official_splits(f"coco{year}", train, test, findings)


def _read(root: Path, split: str, year: str) -> tuple[Split, int]:
    """Read an official split, and count the images without annotations."""
    path = _file(root, split, year)
    content = _read_json(path)
    try:
        return _parse(root, path, split, year, content)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        what = f"{type(error).__name__}: {error}" if not isinstance(error, KeyError) else f"no {error}"
        raise InputError(f"{path} is not a file of COCO instances ({truncate_text(what, 200)}).") from None


def _parse(root: Path, path: Path, split: str, year: str, content: Mapping[str, Any]) -> tuple[Split, int]:
    categories = {_number(each["id"]): column for column, each in enumerate(content["categories"])}
    classes = [str(each["name"]) for each in content["categories"]]
    files = {_number(each["id"]): str(each["file_name"]) for each in content["images"]}
    annotations = content["annotations"]
    ids = sorted({_number(each["image_id"]) for each in annotations}, key=str)
    for number in ids:
        if number not in files:
            raise InputError(f"{path}: image {number} has annotations, but is not among the images.")
    check_size(len(ids), len(classes))
    row_of = {number: row for row, number in enumerate(ids)}
    codes = np.full((len(ids), len(classes)), ABSENT, dtype=np.int8)
    found: list[Box] = []
    for each in annotations:
        row, column = row_of[_number(each["image_id"])], categories.get(_number(each["category_id"]))
        if column is None:
            raise InputError(
                f"{path}: annotation {truncate_text(str(each.get('id')))} is of category {each['category_id']}, "
                "which does not exist."
            )
        codes[row, column] = PRESENT
        if each.get("bbox"):
            found.append((row, column, _corners(each["bbox"]), bool(each.get("iscrowd", 0))))
    if not ids:
        raise InputError(f"{path} has no annotations.")
    table = LabelTable.from_dense(codes, classes, [files[number] for number in ids])
    folder = f"{split}{year}"
    place = next((place for place in (folder, f"images/{folder}") if (root / place).is_dir()), folder)
    paths = [f"{place}/{name}" for name in table.images]
    require_files(path, root, paths, f"Are all photos unpacked into {root / folder}?")
    images = FileImages(root, table.images, paths)
    name = "train" if split == "train" else "test"
    return Split(name, images, table, boxes=make_boxes(found)), len(files) - len(ids)


def _corners(box: Sequence[float]) -> tuple[float, float, float, float]:
    """Turn x, y, width, height into inclusive corners."""
    left, top, width, height = map(float, box)
    return check_corners((left, top, left + width - 1, top + height - 1))


def _number(value: Any) -> int:
    """Return the number of an image or a category; an error for one that is not whole, or has more than 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{truncate_text(repr(value))} is not a number")
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is not a whole number")
    if (isinstance(value, str) and len(value) > _MAX_DIGITS) or abs(number := int(value)) >= 2**63:
        raise ValueError("a number is too large")
    return number


def _read_json(path: Path) -> dict[str, Any]:
    """Read a file of instances without its segmentations, which are most of it."""
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise InputError(f"{path} is not a file.")
    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file, object_hook=_without_segmentation, parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        reason = truncate_text(str(error), 200) or "it does not fit into memory"
        raise InputError(f"{path} cannot be read ({reason}).") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a file of COCO instances: it holds no object.")
    return content


def _without_segmentation(value: dict[str, Any]) -> dict[str, Any]:
    value.pop("segmentation", None)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
