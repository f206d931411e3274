"""Where the files of Open Images lie: V3 has a folder per split, V4 to V7 have the split in the name of the file.

The names are those of the published archives and download pages. Files may lie in the folder itself or in those that
the archives unpack to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labelgap.data.readers.layout import DatasetLayout, RequiredFile
from labelgap.labels.io.problems import ProblemList

OFFICIAL_SPLITS: Final = {"train": "train", "val": "validation", "test": "test"}
"""The official name of every split."""
CLASS_CHOICES: Final = ("trainable", "boxable", "all")
"""What ``classes`` can be instead of names."""
_TRAINABLE: Final = "classes-trainable.txt"
_DESCRIPTIONS: Final = "class-descriptions.csv"
_BOXABLE: Final = "class-descriptions-boxable.csv"
_PREFIXES: Final = ("oidv7-", "oidv6-", "")
_ARCHIVES: Final = (
    *("2018_04", "2017_11", "2017_07", "images_2017_11", "annotations_human_2017_11", "annotations_machine_2017_11"),
    *("annotations_human_bbox_2017_11", "classes_2017_11", "classes", "annotations", "labels", "metadata", "csv"),
)
"""Folders that the archives unpack to, and that people sort the files into."""
_HUMAN, _HUMAN_LATER = "annotations-human.csv", "annotations-human-imagelabels.csv"
_HUMAN_BOXABLE: Final = "annotations-human-imagelabels-boxable.csv"
_MACHINE, _MACHINE_LATER = "annotations-machine.csv", "annotations-machine-imagelabels.csv"
_BOXES, _BOXES_LATER = "annotations-human-bbox.csv", "annotations-bbox.csv"
_IMAGES_LATER: Final = "images-with-labels-with-rotation.csv"
"""The files of a split in V3, and after the name of the split in later versions."""


@dataclass(frozen=True)
class OpenImagesSplit:
    """The files of a split.

    Attributes:
        human: the labels that people verified.
        machine: the labels that a network gave; None where it was not asked for.
        boxes: None where they were not asked for.
        images: the list of all images, or None.
    """

    human: Path
    machine: Path | None = None
    boxes: Path | None = None
    images: Path | None = None


@dataclass(frozen=True)
class OpenImagesFiles:
    """The files of a folder.

    Attributes:
        root: the folder.
        version: "V3" or "V4 to V7".
        choice: which of ``CLASS_CHOICES`` is read.
        splits: by the name of the split.
        descriptions: the names of classes.
        described_all: whether ``descriptions`` has all classes, not only those with boxes.
        chosen: the list of the classes to use; None for all of ``descriptions``.
    """

    root: Path
    version: str
    choice: str
    splits: dict[str, OpenImagesSplit]
    descriptions: Path
    described_all: bool
    chosen: Path | None


def _find_openimages(path: Path) -> Path | None:
    """Return a folder that has verified training labels of Open Images, or None."""
    return path if path.is_dir() and any(_find_labels(path).values()) else None


def _find_labels(root: Path) -> dict[str, Path | None]:
    """Return for both layouts the file of verified training labels, or None."""
    return {version: _find(root, _human_names(version, "train", boxable=True)) for version in ("V4 to V7", "V3")}


def find_layout(
    root: Path, choice: str | None, *, machine: bool, boxes: bool, problems: ProblemList
) -> OpenImagesFiles:
    """Find all files that are needed; what is missing is one error. Without a choice of classes the files choose."""
    found, choice = _find_labels(root), choice or _default_choice(root)
    version = next((version for version, file in found.items() if file is not None), "V3")
    splits = {}
    for name, official in OFFICIAL_SPLITS.items():
        human = _require(root, _human_names(version, official, boxable=choice == "boxable"), problems)
        if human is None and (other := _find(root, _human_names("V3" if version != "V3" else "V4 to V7", official))):
            problems.append(f"{other.relative_to(root)} is of another version than the labels of train")
        labels, drawn = (
            _require(root, _names(version, official, v3, later), problems) if asked else None
            for asked, v3, later in ((machine, _MACHINE, _MACHINE_LATER), (boxes, _BOXES, _BOXES_LATER))
        )
        splits[name] = OpenImagesSplit(human or root, labels, drawn, _find(root, _image_lists(version, official)))
    full, boxable = (_find(root, _prefixed(name)) for name in (_DESCRIPTIONS, _BOXABLE))
    descriptions = full or (boxable if choice == "boxable" else None)
    if descriptions is None:
        _require(root, _prefixed(_DESCRIPTIONS), problems)
    lists = {"trainable": _prefixed(_TRAINABLE), "boxable": ("classes-bbox.txt",)}
    chosen = boxable if choice == "boxable" and boxable else None
    if choice in lists and chosen is None:
        chosen = _require(root, lists[choice], problems, "; --classes all takes every class")
    if problems and version == "V3" and any(root.glob("*2016_08*")):
        problems.append("this looks like Open Images V1 (2016_08): labelgap reads V2 to V7")
    problems.refuse()
    return OpenImagesFiles(root, version, choice, splits, descriptions or root, full is not None, chosen)


def _default_choice(root: Path) -> str:
    """Return "trainable" where their list is there; else all classes that are described."""
    if _find(root, _prefixed(_TRAINABLE)) is not None:
        return "trainable"
    only_boxable = _find(root, _prefixed(_DESCRIPTIONS)) is None and _find(root, _prefixed(_BOXABLE))
    return "boxable" if only_boxable else "all"


def _prefixed(name: str) -> list[str]:
    return [f"{prefix}{name}" for prefix in _PREFIXES]


def _names(version: str, official: str, v3: str, later: str) -> list[str]:
    """Return the paths that a file of a split can have, the newest version first."""
    if version == "V3":
        return [f"{official}/{v3}"]
    spellings = (official, *(["val"] if official == "validation" else []))
    return [
        f"{folder}{prefix}{name}-{later}"
        for folder in ("", f"{official}/")
        for prefix in _PREFIXES
        for name in spellings
    ]


def _human_names(version: str, official: str, *, boxable: bool = False) -> list[str]:
    names = _names(version, official, _HUMAN, _HUMAN_LATER)
    if boxable and version != "V3":
        names += _names(version, official, _HUMAN, _HUMAN_BOXABLE)
    return names


def _image_lists(version: str, official: str) -> list[str]:
    """Return the lists that have every image with a label; those of images with boxes are not among them."""
    rotated = _names(version, official, "images.csv", _IMAGES_LATER)
    return rotated if version == "V3" else [*rotated, "image_ids_and_rotation.csv"]


def _places(root: Path) -> Iterator[Path]:
    yield root
    for name in _ARCHIVES:
        if (root / name).is_dir():
            yield root / name


def _find(root: Path, names: Iterable[str]) -> Path | None:
    places = list(_places(root))
    return next((place / name for name in names for place in places if (place / name).is_file()), None)


def _require(root: Path, names: Sequence[str], problems: ProblemList, remedy: str = "") -> Path | None:
    """Return a file; a problem where none of its names exists."""
    found = _find(root, names)
    if found is None:
        shortest = min(names, key=len)
        rest = ", ".join(name for name in names if name != shortest and (len(names) < 4 or "/" not in name))
        others = f" (or {rest})" if rest else ""
        problems.append(f"{shortest}{others} is missing{remedy}")
    return found


def _file(official: str, v3: str, later: str, content: str, *, optional: bool = False) -> RequiredFile:
    """Return a file of a split, as V3 and the later versions have it."""
    spelled = "val*" if official == "validation" else official
    names = f"*{spelled}-{later}", *([f"*{spelled}-{_HUMAN_BOXABLE}"] if later == _HUMAN_LATER else [])
    return RequiredFile(f"{official}/{v3}", content, (f"*/{official}/{v3}", *names), optional)


def _class_file(name: str, content: str, *others: str, optional: bool = False) -> RequiredFile:
    return RequiredFile(name, content, (f"*/{name}", f"oidv*-{name}", *others), optional)


OPENIMAGES_LAYOUT: Final = DatasetLayout(
    "storage.googleapis.com/openimages/web (V4 to V7), github.com/openimages/dataset (V3); images: CVDF",
    "annotations CC BY 4.0 (Google); images listed as CC BY 2.0, to be verified for each",
    "openimages/",
    (
        _class_file(_DESCRIPTIONS, "id and name of every class", f"*{_BOXABLE}", f"*/{_BOXABLE}"),
        _class_file(_TRAINABLE, "the classes in use, unless --classes says otherwise; without it all", optional=True),
        *(
            _file(official, v3, later, content, optional=optional)
            for official in OFFICIAL_SPLITS.values()
            for v3, later, content, optional in (
                (_HUMAN, _HUMAN_LATER, "verified labels", False),
                ("images.csv", _IMAGES_LATER, "all images", True),
                (_MACHINE, _MACHINE_LATER, "labels of a network, for --machine", True),
                (_BOXES, _BOXES_LATER, "where objects are, for --boxes", True),
            )
        ),
        RequiredFile("train/*.jpg", "ID.jpg", ("train_0/*.jpg", "images/train/*.jpg", "images/*.jpg"), optional=True),
    ),
    _find_openimages,
    (
        "a label is known where people verified it: Confidence 1 is present, 0 is absent; all others are unknown",
        "images may lie in train, validation and test, in train_0 to train_f, or in one folder; --images names another",
    ),
    tried=False,
)
