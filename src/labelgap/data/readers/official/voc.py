"""PASCAL VOC2007 and VOC2012 in the devkit's own layout, as the single-positive papers read them.

``ImageSets/Main/CLASS_SPLIT.txt`` has a line per image: 1 where an object of the class is in it, 0 where only difficult
ones are, −1 where none is. VOC's −1 is absent, labelgap's −1 is unknown: all codes are translated. As in the papers a
difficult object counts as absent, rows are sorted by name and classes in alphabetical order.

Reference: Everingham et al., "The PASCAL Visual Object Classes (VOC) Challenge", IJCV 2010.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import numpy as np

from labelgap.core.errors import InputError, RunError
from labelgap.core.findings import Note
from labelgap.core.stored import parse_xml, read_bytes
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.layout import DatasetLayout, RequiredFile
from labelgap.data.readers.official.lists import FileProblems
from labelgap.data.readers.official.splits import Box, check_corners, from_official_splits, make_boxes, require_files
from labelgap.labels import ABSENT, PRESENT, LabelTable

__all__ = ["find_voc", "load_voc2007", "load_voc2012", "read_boxes", "voc_layout"]

_MAX_XML_BYTES: Final = 4 << 20
_ANNOTATIONS: Final = "Annotations"
_CODES: Final = {"1": PRESENT, "0": ABSENT, "-1": ABSENT}
"""The devkit's codes: present; only difficult objects, absent for the papers; absent."""


def load_voc2007(path: str | os.PathLike[str], *, boxes: bool = True) -> Dataset:
    """Read VOC2007: train and val are parts of ``trainval``, test is ``test``; without it, as VOC2012.

    Args:
        path: ``VOCdevkit``, the folder it lies in, or ``VOCdevkit/VOC2007``.
        boxes: whether to read where the objects are (``Annotations``); difficult ones are marked.
    """
    root = _root(path, "2007")
    has_test = any(_main(root).glob("*_test.txt")) and any(_main(root).glob("*_trainval.txt"))
    return _load(root, "voc2007", *(("trainval", "test") if has_test else ("train", "val")), boxes)


def load_voc2012(path: str | os.PathLike[str], *, boxes: bool = True) -> Dataset:
    """Read VOC2012: train and val are parts of the official ``train``, test is the official ``val``, as in the papers.

    Args:
        path: ``VOCdevkit``, the folder it lies in, or ``VOCdevkit/VOC2012``.
        boxes: whether to read where the objects are (``Annotations``); difficult ones are marked.
    """
    return _load(_root(path, "2012"), "voc2012", "train", "val", boxes)


def find_voc(path: Path, year: str) -> Path | None:
    """Return the folder of a year's devkit that a path leads to, or None."""
    places = [path / "VOCdevkit" / f"VOC{year}", path / f"VOC{year}", *([path] if path.name == f"VOC{year}" else [])]
    return next((place for place in places if _main(place).is_dir()), None)


def voc_layout(year: str) -> DatasetLayout:
    """Return where a year's devkit comes from, and which of its files are needed."""
    parts: dict[str, str] = {"train": "", "val": ""} if year == "2012" else {"trainval": "train", "test": "val"}
    pattern, content = "ImageSets/Main/*_{}.txt", "a file per class: the images of {} and 1, 0 or -1"
    lists = tuple(
        RequiredFile(pattern.format(part), content.format(part), (pattern.format(other),) if other else (), count=20)
        for part, other in parts.items()
    )
    return DatasetLayout(
        f"http://host.robots.ox.ac.uk/pascal/VOC/voc{year}/",
        "photos from Flickr, under Flickr's terms of use; the annotations come without a license",
        f"VOCdevkit/VOC{year}/",
        (
            RequiredFile("Annotations/*.xml", "boxes", optional=True),
            *lists,
            RequiredFile("JPEGImages/*.jpg", "the photos"),
        ),
        lambda path: find_voc(path, year),
    )


def _root(path: str | os.PathLike[str], year: str) -> Path:
    refuse_url(path, "images")
    given = Path(path)
    root = find_voc(given, year) or (given if _main(given).is_dir() else None)
    if root is None:
        raise InputError(
            f"{given} holds no VOC{year}: there is no VOC{year}/ImageSets/Main in it. "
            f"`labelgap datasets voc{year}` shows the files."
        )
    return root


def _main(root: Path) -> Path:
    return root / "ImageSets" / "Main"


def _load(root: Path, name: str, train_name: str, test_name: str, boxes: bool) -> Dataset:
    problems = FileProblems(root)
    read = {part: _read(root, part, problems) for part in (train_name, test_name)}
    problems.refuse()
    (train, train_difficult), (test, test_difficult) = read.values()
    if train.classes != test.classes:
        odd = sorted({*train.classes} ^ {*test.classes})
        raise InputError(f"{_main(root)}: {odd[0]} is a class of only one of {train_name} and {test_name}.")
    findings = [
        Note(
            "labels of ImageSets/Main: 1 = present, -1 = absent, 0 = difficult, taken as absent as in the papers "
            f"({train_difficult + test_difficult:,} labels); every label is known"
        ),
        Note(f"train is the official {train_name}, test the official {test_name}", "split"),
    ]
    splits = _split(root, "train", train, boxes, problems), _split(root, "test", test, boxes, problems)
    problems.refuse()
    return from_official_splits(name, *splits, findings)


def _split(root: Path, name: str, table: LabelTable, boxes: bool, problems: FileProblems) -> Split:
    files = [f"JPEGImages/{image}.jpg" for image in table.images]
    require_files(root, root, files, "Are all of its photos unpacked into JPEGImages?")
    images = FileImages(root, table.images, files)
    found = _boxes(root / _ANNOTATIONS, table, problems) if boxes and (root / _ANNOTATIONS).is_dir() else None
    return Split(name, images, table, boxes=found)


def _read(root: Path, split: str, problems: FileProblems) -> tuple[LabelTable, int]:
    """Read the per-class files of an official split: the labels, and how many of them are difficult."""
    ending = f"_{split}.txt"
    files = {file.name.removesuffix(ending): file for file in sorted(_main(root).glob(f"*{ending}"))}
    if not files:
        raise InputError(f"{_main(root)} has no files of classes such as aeroplane{ending}: is the devkit complete?")
    codes = {name: _read_class(file, problems) for name, file in files.items()}
    images = sorted({image for each in codes.values() for image in each})
    for name, each in codes.items():
        for image in images:
            if image not in each:
                problems.add(files[name], f"no line about {truncate_text(image)}")
    if not images:
        problems.add(_main(root), f"the files of {split} are empty")
    rows = [[_CODES[codes[name].get(image, "-1")] for name in files] for image in images]
    matrix = np.array(rows, dtype=np.int8).reshape(len(images), len(files))
    difficult = sum(code == "0" for each in codes.values() for code in each.values())
    return LabelTable.from_dense(matrix, list(files), images), difficult


def _read_class(file: Path, problems: FileProblems) -> dict[str, str]:
    """Read one file of ``image code`` lines, with one blank or two between them."""
    found: dict[str, str] = {}
    for number, line in problems.read_lines(file):
        parts = line.split()
        if len(parts) == 2 and parts[1] in _CODES and parts[0] not in found:
            found[parts[0]] = parts[1]
        else:
            what = "is listed again" if parts[0] in found else "a line is an image and 1, 0 or -1"
            problems.add(file, f"{truncate_text(repr(line))}: {what}", number)
    return found


def read_boxes(path: str | os.PathLike[str], table: LabelTable) -> Boxes:
    """Read the boxes of the images of a table: their names are those of the files, without ``.xml``.

    Args:
        path: a folder of annotations, or a devkit with a folder ``Annotations``.
        table: of the images and classes.
    """
    refuse_url(path, "annotations")
    given = Path(path)
    years = [Path(f"VOC{year}", _ANNOTATIONS) for year in ("2012", "2007")]
    places = [given / above / inside for above in ("VOCdevkit", "") for inside in years] + [given / _ANNOTATIONS]
    folder = next((place for place in places if place.is_dir()), given)
    for image in table.images:
        if Path(image).name != image:
            raise InputError(f"{folder} has no boxes of '{truncate_text(image)}': an image id is the name of a file.")
    if not any((folder / f"{image}.xml").exists() for image in table.images):
        raise InputError(f"{folder} has no file {table.images[0]}.xml, nor one of another image: no box is there.")
    problems = FileProblems(folder)
    boxes = _boxes(folder, table, problems)
    problems.refuse()
    return boxes


def _boxes(folder: Path, table: LabelTable, problems: FileProblems) -> Boxes:
    """Read the objects of every image; the devkit counts pixels from 1. An image without a file of them has none."""
    number = {name: column for column, name in enumerate(table.classes)}
    found: list[Box] = []
    for row, image in enumerate(table.images):
        file = folder / f"{image}.xml"
        if not file.exists():
            continue
        try:
            objects = parse_xml(read_bytes(file, limit=_MAX_XML_BYTES)).findall("object")
        except (RunError, ValueError) as error:
            problems.add(file, f"cannot be read ({truncate_text(str(error), 200)})")
            continue
        for place, each in enumerate(objects, 1):
            name = (each.findtext("name") or "").strip()
            try:
                if name in number:
                    difficult = (each.findtext("difficult") or "0").strip() == "1"
                    found.append((row, number[name], _corners(each), difficult))
            except ValueError as error:
                problems.add(file, f"object {place} ({name}): {truncate_text(str(error), 200)}")
    return make_boxes(found)


def _corners(element: ElementTree.Element) -> tuple[float, float, float, float]:
    """Return x0, y0, x1, y1 from 0; parts of an object (a person's head) have boxes of their own further in."""
    box = element.find("bndbox")
    if box is None:
        raise ValueError("it has no bndbox")
    left, top, right, bottom = (_edge(box, edge) for edge in ("xmin", "ymin", "xmax", "ymax"))
    return check_corners((left, top, right, bottom))


def _edge(box: ElementTree.Element, name: str) -> float:
    """Return an edge of a box, from 0."""
    text = box.findtext(name)
    try:
        return float(text or "") - 1.0
    except ValueError:
        raise ValueError(f"{name} is {'missing' if text is None else repr(text)}, not a number") from None
