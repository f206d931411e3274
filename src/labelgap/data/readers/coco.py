"""MS COCO 2014 and 2017 in their own layout, as the single-positive papers read them.

A class is present where the image has an annotation of it, a crowd's included, and absent elsewhere. Images without
any annotation are left out, rows are sorted by the image's number *as a text* ("100" before "9"), and classes are in
the order of the file: the papers' draw depends on all three. Reference: Lin et al., "Microsoft COCO", ECCV 2014.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from labelgap.core.findings import Finding, Note
from labelgap.core.stored import validation_reason
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
        path: the same as in ``load_coco2014``, with 2017.
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
    ours, theirs = (list(each.categories.values()) for each in found.values())
    if ours != theirs and not len(problems):
        odd = sorted({*ours} ^ {*theirs})
        what = f"{truncate_text(', '.join(odd), 100)} in one only" if odd else "the same in another order"
        problems.add(root / "annotations", f"train{year} and val{year} have other categories: {what}")
    for each in found.values():
        check_size(len(each.annotated()), len(each.categories))
    files = [file for split, each in found.items() for file in each.paths(_photos(root, split, year))]
    problems.check_images(files, f"Are all photos unpacked into train{year} and val{year}?")
    problems.refuse()
    boxes = {split: BoxList() for split in found}
    train, test = (_split(root, split, year, each, boxes[split]) for split, each in found.items())
    empty = sum(len(each.images) - len(each.annotated()) for each in found.values())
    findings: list[Finding] = [
        Note("a class with an annotation (a crowd's too) is present, all others are absent; every label is known"),
        Note(f"{empty:,} images without any annotation are left out; rows sorted by number as a text"),
        Note(f"train is the official train{year}, test the official val{year}", "split"),
        *(finding for each in boxes.values() for finding in each.findings()),
    ]
    return from_official_splits(f"coco{year}", train, test, findings)


def _photos(root: Path, split: str, year: str) -> str:
    folder = f"{split}{year}"
    return next((place for place in (folder, f"images/{folder}") if (root / place).is_dir()), folder)


def _split(root: Path, split: str, year: str, found: Instances, boxes: BoxList) -> Split:
    names, files = found.categories, found.images
    column_of = {number: column for column, number in enumerate(names)}
    ids = found.annotated()
    row_of = {number: row for row, number in enumerate(ids)}
    codes = np.full((len(ids), len(column_of)), ABSENT, dtype=np.int8)
    file = _file(root, split, year).name
    for place, each in found.annotations.items():
        row, column = row_of[each.image_id], column_of[each.category_id]
        codes[row, column] = PRESENT
        if each.bbox is not None:
            boxes.add(row, column, each.bbox, bool(each.iscrowd), f"{file}, annotations[{place}]")
    table = LabelTable.from_dense(codes, list(names.values()), [files[number] for number in ids])
    images = FileImages(root, table.images, found.paths(_photos(root, split, year)))
    return Split("train" if split == "train" else "test", images, table, boxes=boxes.boxes())


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


_Id = Annotated[int, BeforeValidator(_no_bool), Field(ge=-(2**63), lt=2**63)]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_CONFIG: Final = ConfigDict(extra="ignore", coerce_numbers_to_str=True)


def _corners(box: Any) -> Corners | None:
    """Turn x, y, width, height into inclusive corners."""
    try:
        left, top, width, height = map(float, box or (0, 0, 0, 0))
    except (TypeError, ValueError, OverflowError):
        raise ValueError("a bbox is four numbers") from None
    return check_corners((left, top, left + width - 1, top + height - 1)) if box else None


@pydantic_dataclass(frozen=True, slots=True, config=_CONFIG)
class _Category:
    id: _Id
    name: _Text


@pydantic_dataclass(frozen=True, slots=True, config=_CONFIG)
class _Image:
    id: _Id
    file_name: _Text


@pydantic_dataclass(frozen=True, slots=True, config=_CONFIG)
class _Annotation:
    image_id: _Id
    category_id: _Id
    bbox: Annotated[Any, AfterValidator(_corners)] = None
    iscrowd: Any = 0


E = TypeVar("E")


@dataclass
class Instances:
    """A file of instances: names of categories and files of images by their ids, and annotations by their places."""

    categories: dict[int, str] = field(default_factory=dict)
    images: dict[int, str] = field(default_factory=dict)
    annotations: dict[int, _Annotation] = field(default_factory=dict)

    def annotated(self) -> list[int]:
        """Return the ids of the images that have an annotation, sorted as texts."""
        return sorted({each.image_id for each in self.annotations.values()}, key=str)

    def paths(self, folder: str) -> list[str]:
        """Return the photos of the images that have an annotation, below a folder."""
        return [f"{folder}/{self.images[image]}" for image in self.annotated() if image in self.images]


def read_instances(path: Path, problems: FileProblems) -> Instances:
    """Read a file of instances; every entry that is not as it should be is a problem."""
    found = Instances()
    if (content := _read_json(path, problems)) is None:
        return found
    complete = {}
    for name, kind, key, texts in (
        ("categories", _Category, "name", found.categories),
        ("images", _Image, "file_name", found.images),
    ):
        before, firsts = len(problems), dict[str, int]()
        entries: Mapping[int, _Category | _Image] = _read_entries(path, content, name, kind, problems)
        for number, entry in entries.items():
            text = getattr(entry, key)
            if texts.setdefault(entry.id, text) is not text:
                problems.add(path, f"{name}[{number}]: the id {entry.id} is listed again")
            elif (first := firsts.setdefault(text, entry.id)) != entry.id:
                what = f"'{truncate_text(text)}' is the {key} of the ids {first} and {entry.id}"
                problems.add(path, f"{name}: {what}")
        complete[name] = len(problems) == before
    found.annotations = _read_entries(path, content, "annotations", _Annotation, problems)
    for name, key, what, texts in (
        ("images", "image_id", "image {} is not among the images", found.images),
        ("categories", "category_id", "category {} does not exist", found.categories),
    ):
        counts = (
            Counter(getattr(each, key) for each in found.annotations.values()) if complete[name] else Counter[int]()
        )
        for number in counts.keys() - texts.keys():
            place = next(place for place, each in found.annotations.items() if getattr(each, key) == number)
            more = f" (and {counts[number] - 1:,} more annotations of it)" if counts[number] > 1 else ""
            problems.add(path, f"annotations[{place}]: {what.format(number)}{more}")
    if content.get("annotations") == []:
        problems.add(path, "has no annotations")
    return found


def _read_entries(
    path: Path, content: Mapping[str, Any], name: str, kind: type[E], problems: FileProblems
) -> dict[int, E]:
    entries = content.get(name)
    if not isinstance(entries, list):
        problems.add(path, f"is not a file of COCO instances: there is no list '{name}'")
        return {}
    adapter, wrong = TypeAdapter(list[kind]), set[int]()  # type: ignore[valid-type]
    try:
        return dict(enumerate(adapter.validate_python(entries)))
    except ValidationError as error:
        for each in error.errors(include_url=False):
            place, *key = each["loc"]
            wrong.add(int(place))
            reason = "it is no object" if each["type"] == "dataclass_type" else validation_reason(each)
            problems.add(path, f"{name}[{place}]{''.join(f'.{part}' for part in key)}: {reason}")
    sound = {place: entry for place, entry in enumerate(entries) if place not in wrong}
    return dict(zip(sound, adapter.validate_python([*sound.values()]), strict=True))


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
