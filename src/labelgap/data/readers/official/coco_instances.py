"""A file of COCO instances: categories, images and annotations by their ids, each entry checked.

Segmentations, which are most of a file, are not kept in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from labelgap.core.text import truncate_text
from labelgap.data.readers.official.lists import FileProblems
from labelgap.data.readers.official.splits import Corners, check_corners

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

    Attributes:
        ids: of all entries, also of those without a text that can be used.
        complete: whether the id of every entry could be read; if not, any unknown id may be that of such an entry.
        strangers: the ids of annotations that no entry has: the number of the first annotation, and how many have it.
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
            identity = _number(entry["id"])
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
        image, category = _number(entry["image_id"]), _number(entry["category_id"])
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
        _check_repeated(path, name, texts, problems)
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


def _check_repeated(path: Path, name: str, texts: _Texts, problems: FileProblems) -> None:
    """Add a problem of every text that several ids have."""
    first: dict[str, int] = {}
    for number, text in texts.texts.items():
        if first.setdefault(text, number) != number:
            what = f"'{truncate_text(text)}' is the {texts.key} of the ids {first[text]} and {number}"
            problems.add(path, f"{name}: {what}")


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
