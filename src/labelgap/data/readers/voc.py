"""PASCAL VOC2007 and VOC2012 in the devkit's own layout, as the single-positive papers read them.

A difficult object counts as absent, rows are sorted by name and classes in alphabetical order. Reference: Everingham et
al., "The PASCAL Visual Object Classes (VOC) Challenge", IJCV 2010.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

import numpy as np

from labelgap.core.errors import InputError, RunError
from labelgap.core.findings import Caution, Finding, Note
from labelgap.core.stored import parse_xml, read_bytes
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.findings import ImagesNotListed, some_names
from labelgap.data.images import FileImages, path_inside
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
from labelgap.data.readers.image_paths import refuse_url
from labelgap.labels import ABSENT, PRESENT, LabelTable

_CODES: Final = {"1": PRESENT, "0": ABSENT, "-1": ABSENT}
"""The devkit's codes: present; only difficult objects, absent for the papers; absent."""


def load_voc2007(path: str | os.PathLike[str], *, boxes: bool = True) -> Dataset:
    """Read VOC2007: train and val are parts of ``trainval``, test is ``test``; without it, as VOC2012.

    Args:
        path: ``VOCdevkit``, the folder it lies in, or ``VOCdevkit/VOC2007``.
        boxes: whether to read where the objects are (``Annotations``); difficult ones are marked.
    """
    return _load(_root(path, "2007"), "2007", boxes)


def load_voc2012(path: str | os.PathLike[str], *, boxes: bool = True) -> Dataset:
    """Read VOC2012: train and val are parts of the official ``train``, test is the official ``val``, as in the papers.

    Args:
        path: ``VOCdevkit``, the folder it lies in, or ``VOCdevkit/VOC2012``.
        boxes: whether to read where the objects are (``Annotations``); difficult ones are marked.
    """
    return _load(_root(path, "2012"), "2012", boxes)


def find_voc(path: Path, year: str) -> Path | None:
    """Return the folder of a year's devkit that a path leads to, or None."""
    places = [path / "VOCdevkit" / f"VOC{year}", path / f"VOC{year}", *([path] if path.name == f"VOC{year}" else [])]
    return next((place for place in places if _main(place).is_dir()), None)


def voc_layout(year: str) -> DatasetLayout:
    """Return where a year's devkit comes from, and which of its files are needed."""
    parts: dict[str, str] = {"train": "", "val": ""} if year == "2012" else {"trainval": "train", "test": "val"}
    pattern, content = "ImageSets/Main/*_{}.txt", "a file per class: the images of {} and 1, 0 or -1"
    lists = tuple(
        RequiredFile(pattern.format(part), content.format(part), (pattern.format(other),) if other else ())
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


def _parts(root: Path, year: str) -> tuple[str, str]:
    has_test = any(_main(root).glob("*_test.txt")) and any(_main(root).glob("*_trainval.txt"))
    return ("trainval", "test") if year == "2007" and has_test else ("train", "val")


def _root(path: str | os.PathLike[str], year: str) -> Path:
    given = Path(path)
    return given if _main(given).is_dir() else find_root(given, voc_layout(year))


def _main(root: Path) -> Path:
    return root / "ImageSets" / "Main"


@dataclass(frozen=True)
class _OfficialSplit:
    """The code of every image and class of an official split; ``left_out`` counts images that its list lacks."""

    name: str
    classes: tuple[str, ...]
    images: tuple[str, ...]
    codes: tuple[tuple[str, ...], ...]
    left_out: int

    @property
    def files(self) -> list[str]:
        return [f"JPEGImages/{image}.jpg" for image in self.images]


def _load(root: Path, year: str, boxes: bool) -> Dataset:
    problems = FileProblems(root)
    train_name, test_name = _parts(root, year)
    official = _read_lists(root, train_name, test_name, problems)
    folder = root / ANNOTATIONS
    lists = {each.name: BoxList() for each in official}
    without: list[str] = []
    with_boxes = boxes and folder.is_dir()
    if with_boxes:
        for each in official:
            without += read_annotations(folder, each.images, each.classes, lists[each.name], problems)
    warnings: list[Finding] = [
        ImagesNotListed(f"{each.name}.txt", len(each.images), each.left_out) for each in official if each.left_out
    ]
    if without:
        count = pluralize(len(without), "image has", "images have")
        warnings.append(Caution(f"{count} no file of boxes: {some_names(without)}", "images"))
    warnings += [finding for each in official for finding in lists[each.name].findings()]
    problems.refuse(warnings)
    findings: list[Finding] = [
        Note(
            "labels of ImageSets/Main: 1 = present, -1 = absent, 0 = difficult, taken as absent as in the papers "
            f"({sum(codes.count('0') for each in official for codes in each.codes):,} labels); every label is known"
        ),
        Note(f"train is the official {train_name}, test the official {test_name}", "split"),
        *warnings,
    ]
    splits = []
    for name, each in zip(("train", "test"), official, strict=True):
        codes = np.array([[_CODES[code] for code in row] for row in each.codes], dtype=np.int8)
        table = LabelTable.from_dense(codes, each.classes, each.images)
        drawn = lists[each.name].boxes() if with_boxes else None
        splits.append(Split(name, FileImages(root, each.images, each.files), table, boxes=drawn))
    train, test = splits
    return from_official_splits(f"voc{year}", train, test, findings)


def _read_lists(root: Path, train_name: str, test_name: str, problems: FileProblems) -> list[_OfficialSplit]:
    """Read the lists of both splits, and look for their photos."""
    train, test = official = [_read(root, part, problems) for part in (train_name, test_name)]
    if train.classes and test.classes:
        for name in sorted({*train.classes} ^ {*test.classes}):
            there, other = (train, test) if name in train.classes else (test, train)
            problems.add(_main(root), f"there is {name}_{there.name}.txt, and no {name}_{other.name}.txt")
    photos = [file for each in official for file in each.files]
    problems.check_images(photos, "Are all of its photos unpacked into JPEGImages?")
    return official


def _read(root: Path, split: str, problems: FileProblems) -> _OfficialSplit:
    """Read the per-class files of an official split, and the list of its images, which may be a part of theirs.

    An image that most files have is labeled: the others lack a line of it. One that few have is a wrong line of these.
    """
    ending = f"_{split}.txt"
    files = {file.name.removesuffix(ending): file for file in sorted(_main(root).glob(f"*{ending}"))}
    if not files:
        problems.add(_main(root), f"has no files of classes such as aeroplane{ending}: is the devkit complete?")
    read = {name: _read_class(file, problems) for name, file in files.items()}
    named = Counter(image for each in read.values() for image in each.lines)
    known = {image for each in read.values() for image in each.codes}
    labeled = {image for image in known if 2 * named[image] >= len(files)}
    members = labeled
    if files and not named:
        problems.add(_main(root), f"the files of {split} are empty")
    elif (file := _main(root) / f"{split}.txt").is_file() and files:
        members = known & _read_list(file, named, problems)
    images = sorted(members)
    for name, each in read.items():
        odd = [image for image in each.codes if image not in labeled and image not in members]
        wrong = [f"{_first(odd)}: in {named[odd[0]]} of {len(files)} files of classes only"] if odd else []
        missing = [image for image in images if image not in each.lines]
        wrong += [f"no line about {_first(missing)}"] if missing else []
        if wrong:
            problems.add(files[name], "; ".join(wrong), each.lines[odd[0]] if odd else None)
    rows = tuple(tuple(each.codes.get(image, "-1") for each in read.values()) for image in images)
    return _OfficialSplit(split, tuple(files), tuple(images), rows, len(labeled - members))


def _read_list(file: Path, named: Container[str], problems: FileProblems) -> set[str]:
    listed = {line.split()[0]: number for number, line in reversed(problems.read_lines(file))}
    if unknown := sorted((number, image) for image, number in listed.items() if image not in named):
        images = _first([image for _, image in unknown])
        problems.add(file, f"{images}: no label, in no file of a class (*_{file.name})", unknown[0][0])
    if not listed:
        problems.add(file, "is empty; without it all images of the files of classes are used")
    return {*listed}


def _first(images: Sequence[str]) -> str:
    more = f" and {len(images) - 1:,} more" if len(images) > 1 else ""
    return f"{truncate_text(images[0])}{more}"


class _ClassFile(NamedTuple):
    """The codes of the images in the file of a class, and the first line of every image, also of one without a code."""

    codes: dict[str, str]
    lines: dict[str, int]


def _read_class(file: Path, problems: FileProblems) -> _ClassFile:
    """Read one file of ``image code`` lines, with one blank or two between them."""
    found = _ClassFile({}, {})
    for number, line in problems.read_lines(file):
        image, *codes = line.split()
        if problems.is_new(image, found.lines, file, number):
            if len(codes) == 1 and codes[0] in _CODES:
                found.codes[image] = codes[0]
            else:
                problems.add(file, f"{truncate_text(repr(line))}: a line is an image and 1, 0 or -1", number)
    return found


ANNOTATIONS: Final = "Annotations"
_MAX_XML_BYTES: Final = 4 << 20


def read_boxes(path: str | os.PathLike[str], table: LabelTable) -> Boxes:
    """Read the boxes of the images of a table, ``IMAGE.xml``, from a devkit or its folder of annotations."""
    refuse_url(path, "annotations")
    given = Path(path)
    years = [Path(f"VOC{year}", ANNOTATIONS) for year in ("2012", "2007")]
    places = [given / above / inside for above in ("VOCdevkit", "") for inside in years] + [given / ANNOTATIONS]
    folder = next((place for place in places if place.is_dir()), given)
    for image in table.images:
        if Path(image).name != image:
            raise InputError(f"{folder} has no boxes of '{truncate_text(image)}': an image id is the name of a file.")
    if not any((folder / f"{image}.xml").exists() for image in table.images):
        raise InputError(f"{folder} has no file {table.images[0]}.xml, nor one of another image: no box is there.")
    problems = FileProblems(folder)
    boxes = BoxList()
    read_annotations(folder, table.images, table.classes, boxes, problems)
    problems.refuse()
    return boxes.boxes()


def read_annotations(
    folder: Path, images: Sequence[str], classes: Sequence[str], boxes: BoxList, problems: FileProblems
) -> list[str]:
    """Read the objects of every image; the devkit counts pixels from 1. Returned are the files that are not there."""
    number = {name: column for column, name in enumerate(classes)}
    missing = []
    for row, image in enumerate(images):
        file = folder / f"{image}.xml"
        if path_inside(folder, file) is None or not os.path.lexists(file):
            missing.append(file.name)
            continue
        try:
            annotation = parse_xml(read_bytes(file, limit=_MAX_XML_BYTES))
        except (RunError, ValueError) as error:
            problems.add(file, f"cannot be read ({truncate_text(str(error), 200)})")
            continue
        texts = [annotation.findtext(f"size/{name}", "").strip() for name in ("width", "height")]
        width, height = ((float(text) if text.isdecimal() else 0.0) or math.inf for text in texts)
        for place, each in enumerate(annotation.findall("object"), 1):
            name = (each.findtext("name") or "").strip()
            what = f"object {place} ({truncate_text(name)})"
            if name not in number:
                boxes.leave_out(f"{file.name}, {what}")
                continue
            try:
                difficult = (each.findtext("difficult") or "0").strip() == "1"
                boxes.add(row, number[name], _corners(each), difficult, f"{file.name}, {what}", (width, height))
            except ValueError as error:
                problems.add(file, f"{what}: {truncate_text(str(error), 200)}")
    return missing


def _corners(element: ElementTree.Element) -> Corners:
    """Return x0, y0, x1, y1 from 0; parts of an object (a person's head) have boxes of their own further in."""
    box = element.find("bndbox")
    if box is None:
        raise ValueError("it has no bndbox")
    edges = []
    for name in ("xmin", "ymin", "xmax", "ymax"):
        text = box.findtext(name, "")
        try:
            edges.append(float(text) - 1.0)
        except ValueError:
            raise ValueError(f"{name} is {text!r}, not a number") from None
    left, top, right, bottom = edges
    return check_corners((left, top, right, bottom))
