"""The classes of Open Images: ids such as ``/m/012mj``, their names, and lists of those to use."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.text import truncate_text
from labelgap.data.readers.openimages.files import CLASS_CHOICES, OpenImagesFiles
from labelgap.labels.io.problems import ProblemList

_SURROGATE: Final = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8."""


@dataclass(frozen=True)
class ClassList:
    """The classes to use.

    Attributes:
        ids: of the classes.
        names: of the classes, unique.
        others: id → name of the classes that are not used.
        complete: whether a class that is in neither is an error.
    """

    ids: tuple[str, ...]
    names: tuple[str, ...]
    others: Mapping[str, str]
    complete: bool


def class_choice(classes: str | Sequence[str] | None) -> str | None:
    """Return which of ``CLASS_CHOICES`` is meant; "all" where classes are named, None where nothing is said.

    Example:
        >>> class_choice("boxable"), class_choice(["trainable"]), class_choice(["Cat", "Dog"])
        ('boxable', 'trainable', 'all')
    """
    if classes is None:
        return None
    words = [classes] if isinstance(classes, str) else list(classes)
    return words[0] if len(words) == 1 and words[0] in CLASS_CHOICES else "all"


def read_classes(layout: OpenImagesFiles, classes: str | Sequence[str] | None, problems: ProblemList) -> ClassList:
    """Read the names of all classes, and choose those to use: in the order of their list, or as they are named.

    Two classes of one name get their ids added.
    """
    described = _read_descriptions(layout.descriptions, layout.root, problems)
    ids = list(described)
    if layout.chosen is not None and layout.chosen != layout.descriptions:
        ids = _read_list(layout.chosen, layout.root, described, problems)
    if not ids:
        file = layout.chosen or layout.descriptions
        problems.append(f"{file.relative_to(layout.root)} has no classes")
    problems.refuse()
    repeated = Counter(described.values())
    names = {each: name if repeated[name] == 1 else f"{name} ({each})" for each, name in described.items()}
    words = [layout.choice] if classes is None else [classes] if isinstance(classes, str) else list(classes)
    if words not in [[choice] for choice in CLASS_CHOICES]:
        known = {**{name: each for each, name in names.items()}, **{each: each for each in described}}
        if not words or (alone := next((word for word in words if word in CLASS_CHOICES), None)):
            what = f"'{alone}' stands for a whole list, and cannot be joined with others" if words else "there are none"
            raise InputError(f"classes={','.join(words)}: {what}.")
        if unknown := next((word for word in words if word not in known), None):
            raise UnknownNameError(
                "class of Open Images called", unknown, {**known, **dict.fromkeys(CLASS_CHOICES, "")}
            )
        ids = list(dict.fromkeys(known[word] for word in words))
    used = set(ids)
    others = {each: name for each, name in names.items() if each not in used}
    return ClassList(tuple(ids), tuple(names[each] for each in ids), others, layout.described_all)


def _read_descriptions(path: Path, root: Path, problems: ProblemList) -> dict[str, str]:
    """Read ``id,name`` lines; V6 and V7 have a header, the versions before have none."""
    name, found, lines = path.relative_to(root).as_posix(), dict[str, str](), dict[str, int]()
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        try:
            for cells in reader:
                each, text = cells[0] if cells else "", ""
                if reader.line_num == 1 and each == "LabelName":
                    continue
                if len(cells) < 2 or not each.strip():
                    text = "a line is the id of a class and its name"
                elif _SURROGATE.search("".join(cells)):
                    text = "bytes that are no UTF-8 text: is the file damaged?"
                elif each in found:
                    text = f"the class {truncate_text(each)} is listed again (first in line {lines[each]})"
                else:
                    found[each], lines[each] = cells[1].strip() or each, reader.line_num
                if text:
                    problems.append(f"{name}, line {reader.line_num}: {text}")
        except csv.Error as error:
            what = f"no CSV ({error}); is a quote opened and never closed?"
            problems.append(f"{name}, line {reader.line_num}: {what}")
    return found


def _read_list(path: Path, root: Path, described: dict[str, str], problems: ProblemList) -> list[str]:
    """Read an id per line, the first cell of it; a list of V3 and V4 has nothing else."""
    name, found = path.relative_to(root).as_posix(), dict[str, int]()
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        for number, line in enumerate(file, 1):
            each = line.strip().partition(",")[0].strip('"')
            if not each or (number == 1 and each == "LabelName"):
                continue
            if each in found:
                text = f"the class {truncate_text(each)} is listed again (first in line {found[each]})"
            elif each not in described:
                text = f"the class {truncate_text(each)} has no name in the class descriptions"
            else:
                found[each] = number
                continue
            problems.append(f"{name}, line {number}: {text}")
    return list(found)
