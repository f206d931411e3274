"""NUS-WIDE in its published layout: 81 concepts, the official training and test images.

Images without any concept are kept (161,789 / 107,859) or dropped (125,448 / 83,898, Kobayashi 2023). Reference: Chua
et al., "NUS-WIDE: A Real-World Web Image Database from National University of Singapore", CIVR 2009.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.findings import Finding, Note
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import ImagesSkipped
from labelgap.data.images import FileImages
from labelgap.data.readers.common import DatasetLayout, FileProblems, RequiredFile, find_root, from_official_splits
from labelgap.labels import PRESENT, LabelTable
from labelgap.labels.io.parse import image_name_problem
from labelgap.labels.io.table_file import check_choice

CONCEPTS: Final = 81
_MAX_WRONG_LINES: Final = 5  # lines of one file of labels that are reported
_MAX_NAME: Final = 100
_BLANKS: Final = b" \t\r\n\v\f"


def read_concepts(root: Path, problems: FileProblems) -> list[str]:
    """Return the concepts in the order of their list."""
    places = (root / "ConceptsList" / "Concepts81.txt", root / "Concepts81.txt")
    file = next((place for place in places if place.is_file()), places[0])
    before = len(problems)
    found: dict[str, int] = {}
    for line, name in problems.read_lines(file):
        if len(name) > _MAX_NAME or not name.isprintable() or "/" in name or "\\" in name:
            problems.add(file, f"{truncate_text(repr(name))} is not the name of a concept", line)
        else:
            problems.is_new(name, found, file, line)
    if len(problems) == before and len(found) != CONCEPTS:
        problems.add(file, f"{len(found)} concepts, and the published list has {CONCEPTS}: another version?")
    return list(found)


class ImageList(NamedTuple):
    """The lines of the images, whose paths have "/"; and the number of lines, also of those that name no image."""

    lines: dict[str, int]
    rows: int


def read_list(file: Path, problems: FileProblems) -> ImageList:
    """Read a list of images; a line that names none, or one again, is a problem."""
    found: dict[str, int] = {}
    before = len(problems)
    texts = problems.read_lines(file)
    for line, text in texts:
        name = text.replace("\\", "/")
        problem = image_name_problem(name)
        if problem is None and (name.startswith("/") or ":" in name or ".." in name.split("/")):
            problem = f"{truncate_text(repr(text))} leads to another folder"
        if problem is None:
            problems.is_new(name, found, file, line)
        else:
            problems.add(file, problem, line)
    if not found and len(problems) == before:
        problems.add(file, "is empty")
    return ImageList(found, len(texts))


def read_labels(folder: Path, part: str, classes: list[str], rows: int, problems: FileProblems) -> NDArray[np.int8]:
    """Return the labels of a part, ``(images, concepts)``: a file of every concept, a line per image."""
    codes = np.zeros((rows, len(classes)), dtype=np.int8)
    files = {f"Labels_{name}_{part}.txt": column for column, name in enumerate(classes)}
    for file in sorted(folder.glob(f"Labels_*_{part}.txt")):
        if file.name not in files:
            problems.add(file, "is of a concept that is not in Concepts81.txt")
    for name, column in files.items():
        values = _read_column(folder / name, rows, problems)
        if values is not None:
            codes[:, column] = values
    return codes


def _read_column(file: Path, rows: int, problems: FileProblems) -> NDArray[np.int8] | None:
    """Read lines of 0 or 1; None, with problems, where there are others, or not as many as images."""
    content = problems.read(file) if file.is_file() else None
    if content is None:
        problems.add(file, "is missing")
        return None
    digits = content.translate(None, _BLANKS)
    if len(digits) == len(content.split()) == rows and not digits.translate(None, b"01"):
        return (np.frombuffer(digits, dtype=np.uint8) - ord("0")).astype(np.int8)
    lines = [line.strip() for line in content.splitlines()]
    wrong = [(number, line) for number, line in enumerate(lines, 1) if line not in (b"0", b"1", b"")]
    for number, line in wrong[:_MAX_WRONG_LINES]:
        problems.add(file, f"{truncate_text(line.decode(errors='replace'))!r}: a line is 1 or 0", number)
    if len(wrong) > _MAX_WRONG_LINES:
        problems.add(file, f"{len(wrong) - _MAX_WRONG_LINES:,} more lines that are neither 1 nor 0")
    labels = sum(map(bool, lines))
    if labels != rows:
        problems.add(file, f"{labels:,} labels, and the list has {rows:,} images: truncated, or another version?")
    return None


_PARTS: Final = ("Train", "Test")
_PUBLISHED: Final = {"keep": (161_789, 107_859), "drop": (125_448, 83_898)}
"""Images of train and test, with and without those that have none of the concepts."""


def load_nuswide(
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    unlabeled: str = "keep",
    on_bad_image: str = "error",
) -> Dataset:
    """Read NUS-WIDE: train and val are parts of the official training images, test is the official test.

    Args:
        path: the folder with ``ConceptsList``, ``ImageList`` and ``Groundtruth``, or the one it lies in.
        images: the folder of the images, as listed (``actor/0001_2124494179.jpg``) or all in one folder;
            ``Flickr`` or ``images`` below the path when not given.
        unlabeled: "keep" or "drop" images that have none of the 81 concepts; before val is taken from train.
        on_bad_image: "error" names all images that are not there, "skip" leaves them out: Flickr has lost many.
    """
    check_choice("unlabeled", unlabeled, ("keep", "drop"))
    check_choice("on_bad_image", on_bad_image, ("error", "skip"))
    root = find_root(Path(path), NUSWIDE_LAYOUT)
    problems = FileProblems(root)
    classes = read_concepts(root, problems)
    listed = {part: read_list(root / "ImageList" / f"{part}Imagelist.txt", problems) for part in _PARTS}
    for name, line in listed["Test"].lines.items():
        if name in listed["Train"].lines:
            file = root / "ImageList" / "TestImagelist.txt"
            problems.add(file, f"{truncate_text(name)} is in TrainImagelist.txt too", line)
    folders = [root / "Groundtruth" / "TrainTestLabels", root / "TrainTestLabels"]
    labels = next((folder for folder in folders if folder.is_dir()), folders[0])
    codes = {part: read_labels(labels, part, classes, each.rows, problems) for part, each in listed.items()}
    place = None if images is None else Path(images).expanduser()
    folder, files = _find_images(root, place, listed, problems, on_bad_image == "skip")
    problems.refuse()
    findings: list[Finding] = [
        Note("labels of TrainTestLabels: 1 = present, 0 = absent; every label is known"),
        Note("train is the official training list, test the official test list, in their order", "split"),
    ]
    if skipped := tuple(name for each in listed.values() for name in each.lines if name not in files):
        findings.append(ImagesSkipped(skipped))
    splits = []
    for part, each in listed.items():
        table = LabelTable.from_dense(codes[part], classes, list(each.lines))
        table = table.select([row for row, name in enumerate(table.images) if name in files])
        source = FileImages(folder, table.images, [files[name] for name in table.images])
        splits.append(Split(part.lower(), source, table))
    train, test = _without_unlabeled(splits, unlabeled, findings)
    return from_official_splits("nuswide", train, test, findings, _PUBLISHED[unlabeled])


def find_nuswide(path: Path) -> Path | None:
    """Return the folder of NUS-WIDE that a path leads to, or None."""
    places = (path, *(path / name for name in ("NUS-WIDE", "NUS_WIDE", "nuswide")))
    return next((place for place in places if (place / "ImageList" / "TrainImagelist.txt").is_file()), None)


def _find_images(
    root: Path, place: Path | None, listed: Mapping[str, ImageList], problems: FileProblems, skip: bool
) -> tuple[Path, dict[str, str]]:
    """Return the folder and the files of the images; one that is not there is a problem, unless it may be skipped."""
    places = [place] if place is not None else [root / "Flickr", root / "images"]
    folder = next((each for each in places if each.is_dir()), None)
    if folder is None:
        problems.add(places[0], "does not exist: the images of NUS-WIDE. They may be elsewhere: --images FOLDER")
        return places[0], {}
    names = [name for images in listed.values() for name in images.lines]
    there = {parent: _names_in(folder / parent) for parent in {"", *(name.rpartition("/")[0] for name in names)}}
    files: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in names:
        parent, _, last = name.rpartition("/")
        if last in there[parent]:
            files[name] = name
        elif last in there[""]:  # all images in one folder
            files[name] = last
            if (other := taken.setdefault(last, name)) != name:
                problems.add(folder / last, f"could be {other} and {name}: keep the folders of the published paths")
    if not (skip and all(any(name in files for name in images.lines) for images in listed.values())):
        missing = ((folder / name, "does not exist") for name in names if name not in files)
        problems.add_images(missing, "To train without the missing images: --on-bad-image skip")
    return folder, files


def _names_in(folder: Path) -> set[str]:
    with suppress(OSError):
        return {child.name for child in folder.iterdir()}
    return set()


def _without_unlabeled(splits: list[Split], unlabeled: str, findings: list[Finding]) -> list[Split]:
    """Drop the images without a concept where that is asked for; say how many there are."""
    labeled = [(split.labels.to_dense() == PRESENT).any(axis=1) for split in splits]
    count = sum(int((~each).sum()) for each in labeled)
    if unlabeled == "drop":
        splits = [split.select(np.flatnonzero(rows)) for split, rows in zip(splits, labeled, strict=True)]
        if not all(map(len, splits)):
            raise InputError("no image of train or test has a concept: nothing is left.")
        findings.append(Note(f"{count:,} images without any concept are left out"))
    elif count:
        findings.append(Note(f"{count:,} images without any concept are kept; --unlabeled drop leaves them out"))
    return splits


NUSWIDE_LAYOUT: Final = DatasetLayout(
    "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html",
    "as its page says, for research; every photo is under the terms that its owner chose on Flickr",
    "NUS-WIDE/",
    (
        RequiredFile("ConceptsList/Concepts81.txt", "the concepts", ("Concepts81.txt",)),
        RequiredFile("ImageList/TrainImagelist.txt", "161,789 paths"),
        RequiredFile("ImageList/TestImagelist.txt", "107,859 paths"),
        *(
            RequiredFile(f"Groundtruth/{path}", "1 or 0 per image of the list", (path,))
            for path in (f"TrainTestLabels/Labels_*_{part}.txt" for part in _PARTS)
        ),
        RequiredFile("Flickr/*/*.jpg", "the images, or anywhere: --images", ("images/*.jpg", "images/*/*.jpg")),
    ),
    find_nuswide,
    (
        "--unlabeled drop leaves out images without a concept: 125,448 / 83,898 images, as in the two-way paper",
        "--on-bad-image skip leaves out images that Flickr no longer has; val is then cut from what is there",
        "the version of Cole et al. (120,000 / 30,000 / 60,260) exists as .npy files only",
    ),
    tried=False,
)
