"""The lists and label files of NUS-WIDE: concepts, images, and a file of 0 and 1 for each concept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.core.text import truncate_text
from labelgap.data.readers.official.lists import FileProblems
from labelgap.labels.io.rows import image_name_problem

CONCEPTS: Final = 81
_MAX_WRONG_LINES: Final = 5
"""Lines of one file of labels that are reported."""
_MAX_NAME: Final = 100
_BLANKS: Final = b" \t\r\n\v\f"


def read_concepts(root: Path, problems: FileProblems) -> list[str]:
    """Return the concepts in the order of their list."""
    places = (root / "ConceptsList" / "Concepts81.txt", root / "Concepts81.txt")
    file = next((place for place in places if place.is_file()), places[0])
    before = len(problems)
    found: dict[str, int] = {}
    for line, name in problems.read_lines(file):
        if name in found:
            problems.add(file, f"the concept {truncate_text(name)} is listed again (first in line {found[name]})", line)
        elif len(name) > _MAX_NAME or not name.isprintable() or "/" in name or "\\" in name:
            problems.add(file, f"{truncate_text(repr(name))} is not the name of a concept", line)
        else:
            found[name] = line
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
        if problem is None and name in found:
            problem = f"{truncate_text(name)} is listed again (first in line {found[name]:,})"
        if problem is None:
            found[name] = line
        else:
            problems.add(file, problem, line)
    if not found and len(problems) == before:
        problems.add(file, "is empty")
    return ImageList(found, len(texts))


def read_labels(
    root: Path, classes: list[str], listed: Mapping[str, ImageList], problems: FileProblems
) -> tuple[dict[str, NDArray[np.int8]], str]:
    """Return the labels of every part, ``(images, concepts)``, and which of the published folders they come from."""
    for folder in (root / "Groundtruth", root):
        if (folder / "TrainTestLabels").is_dir():
            columns = {
                part: _read_columns(folder / "TrainTestLabels", f"_{part}.txt", classes, images.rows, problems)
                for part, images in listed.items()
            }
            return columns, "TrainTestLabels"
        if (folder / "AllLabels").is_dir():
            return _from_all_labels(root, folder / "AllLabels", classes, listed, problems), "AllLabels"
    problems.add(root / "Groundtruth", "neither TrainTestLabels nor AllLabels is in it")
    return {}, ""


def _from_all_labels(
    root: Path, folder: Path, classes: list[str], listed: Mapping[str, ImageList], problems: FileProblems
) -> dict[str, NDArray[np.int8]]:
    everything = read_list(root / "ImageList" / "Imagelist.txt", problems)
    if not everything.lines:
        return {}
    row_of = {name: row for row, name in enumerate(everything.lines)}
    codes = _read_columns(folder, ".txt", classes, everything.rows, problems)
    found = {}
    for part, images in listed.items():
        for name, line in images.lines.items():
            if name not in row_of:
                file = root / "ImageList" / f"{part}Imagelist.txt"
                problems.add(file, f"{truncate_text(name)} is not in Imagelist.txt", line)
        found[part] = codes[[row_of.get(name, 0) for name in images.lines]]
    return found


def _read_columns(folder: Path, ending: str, classes: list[str], rows: int, problems: FileProblems) -> NDArray[np.int8]:
    """Read the file of every concept, a line per image."""
    codes = np.zeros((rows, len(classes)), dtype=np.int8)
    files = {f"Labels_{name}{ending}": column for column, name in enumerate(classes)}
    for file in sorted(folder.glob(f"Labels_*{ending}")):
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
