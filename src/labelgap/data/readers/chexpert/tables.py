"""Read the tables of CheXpert and MIMIC-CXR: cells are 1, 0, −1 (uncertain) or blank; all problems are collected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.findings import Finding, Note
from labelgap.core.text import truncate_text
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.io.dialect import open_text
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.records import split_records
from labelgap.labels.io.rows import image_name_problem, is_no_class

UNCERTAIN: Final = 2
"""The code of a label that the table calls uncertain, until it is decided what it becomes."""
MIMIC_PREFIX: Final = "mimic-cxr-2.0.0-"
_CELLS: Final = {
    **dict.fromkeys(("1", "1.0"), PRESENT),
    **dict.fromkeys(("0", "0.0"), ABSENT),
    **dict.fromkeys(("-1", "-1.0"), UNCERTAIN),
    "": UNKNOWN,
}
_INVALID: Final = 3
_RULE: Final = "a cell is 1 (present), 0 (absent), -1 (uncertain) or blank (unknown)"
_FACTS: Final = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", "subject_id", "study_id", "dicom_id", "split")
"""Columns that are no observations."""
_MIMIC_SPLITS: Final = {"train": "train", "validate": "val", "test": "test"}


@dataclass(frozen=True, eq=False)
class ObservationTable:
    """The rows of one table, or of several splits.

    Attributes:
        path: the file of the observations.
        lines_of: the file that ``lines`` counts in: the one that names the images.
        images: paths as the table has them.
        lines: the line of every image.
        splits: the split of every image.
        classes: the names of the observations.
        codes: ``(N, K)`` of PRESENT, ABSENT, UNKNOWN and UNCERTAIN.
        studies: whether the rows are joined from studies.
    """

    path: Path
    lines_of: Path
    images: Sequence[str]
    lines: Sequence[int]
    splits: Sequence[str]
    classes: tuple[str, ...]
    codes: NDArray[np.int8]
    studies: bool = False

    def with_classes(self, names: Sequence[str]) -> ObservationTable:
        """Return the table with some of its observations, in this order."""
        columns = [self.classes.index(name) for name in names]
        return replace(self, classes=tuple(names), codes=self.codes[:, columns])


def read_table(path: Path, split: str, ignored: Sequence[str], problems: ProblemList) -> ObservationTable:
    """Read a table with a row per image, named under ``Path``."""
    (images,), lines, classes, codes = _read(path, ("Path",), ignored, problems)
    for row, (image, line) in enumerate(zip(images, lines, strict=True)):
        if not image:
            problems.append(f"{path.name}, line {line}: no image is named under Path")
        elif (problem := image_name_problem(image)) is not None:
            problems.append(f"{path.name}, line {line}: {problem}")
            images[row] = ""  # no file of that name is looked for
    return ObservationTable(path, path, images, lines, [split] * len(images), classes, codes)


def read_mimic(
    path: Path, ignored: Sequence[str], problems: ProblemList
) -> tuple[list[ObservationTable], list[Finding]]:
    """Read MIMIC-CXR's observations of studies, and give them to the images that its table of splits names."""
    (subjects, studies), lines, classes, codes = _read(path, ("subject_id", "study_id"), ignored, problems)
    row_of: dict[str, int] = {}
    for row, study in enumerate(studies):
        if (first := row_of.setdefault(study, row)) != row:
            where = f"{path.name}, line {lines[row]}"
            problems.append(f"{where}: study {truncate_text(study)} is listed again (line {lines[first]})")
    place = path.with_name(f"{MIMIC_PREFIX}split.csv")
    named = ("dicom_id", "study_id", "subject_id", "split")
    (dicoms, of_study, of_subject, splits), image_lines, _, _ = _read(place, named, None, problems)
    problems.refuse()
    chosen, rows, ours = list[int](), list[int](), list[str]()
    for number, (study, subject, split) in enumerate(zip(of_study, of_subject, splits, strict=True)):
        where = f"{place.name}, line {image_lines[number]}"
        labeled = row_of.get(study)
        if split not in _MIMIC_SPLITS:
            problems.append(f"{where}: '{truncate_text(split)}' under split: train, validate or test")
        elif labeled is not None and subjects[labeled] != subject:
            problems.append(f"{where}: study {study} is of {subjects[labeled]} in line {lines[labeled]}")
        elif labeled is not None:
            chosen.append(number)
            rows.append(labeled)
            ours.append(_MIMIC_SPLITS[split])
    if not chosen:
        problems.add(0, f"{place.name} names no image of a study of {path.name}")
    problems.refuse()
    images = [
        f"files/p{of_subject[number][:2]}/p{of_subject[number]}/s{of_study[number]}/{dicoms[number]}.jpg"
        for number in chosen
    ]
    used = len({*rows})
    note = (
        f"an image has the labels of its study ({used:,} studies); "
        f"{len(dicoms) - len(chosen):,} images without labels and {len(studies) - used:,} labeled studies without "
        "images are left out"
    )
    table = ObservationTable(
        path, place, images, [image_lines[number] for number in chosen], ours, classes, codes[rows], studies=True
    )
    return [table], [Note(note)]


Columns = tuple[list[list[str]], list[int], tuple[str, ...], NDArray[np.int8]]


def _read(path: Path, named: Sequence[str], ignored: Sequence[str] | None, problems: ProblemList) -> Columns:
    """Return columns by name, the line of every row, and names and codes of the other columns, which are observations.

    There are none where ``ignored`` is None.
    """
    empty: Columns = ([[] for _ in named], [], (), np.empty((0, 0), dtype=np.int8))
    if not path.is_file():
        problems.add(0, f"{path.name} {'is not a file' if path.exists() else 'does not exist'}")
        return empty
    own = ProblemList(path)
    with open_text(path, "utf-8-sig") as file:
        records = split_records(file, ",", 0, own)
        line, header = next(records, (1, []))
        found = _check_header(path, line, header, named, ignored, problems)
        if found is None:
            return empty
        places, numbers = found
        columns: list[list[str]] = [[] for _ in places]
        lines: list[int] = []
        codes = bytearray()
        wrong: list[list[tuple[int, str]]] = [[] for _ in numbers]
        for line, cells in _checked(records, len(header), own):
            lines.append(line)
            for column, place in zip(columns, places, strict=True):
                column.append(cells[place])
            for number, bad in zip(numbers, wrong, strict=True):
                code = _CELLS.get(cells[number], _INVALID)
                if code == _INVALID:
                    bad.append((line, cells[number]))
                codes.append(code & 0xFF)
    for problem in own.found:
        problems.append(f"{path.name}, line {problem.line}: {problem.message}")
    names = tuple(header[number] for number in numbers)
    for name, bad in zip(names, wrong, strict=True):
        _report(path, name, bad, len(lines), problems)
    if not lines:
        problems.add(0, f"{path.name} has a header and no rows")
    matrix = np.frombuffer(bytes(codes), dtype=np.int8).reshape(len(lines), len(names))
    return columns, lines, names, matrix


def _checked(
    records: Iterator[tuple[int, list[str]]], width: int, problems: ProblemList
) -> Iterator[tuple[int, list[str]]]:
    for line, cells in records:
        if len(cells) == width:
            yield line, cells
        else:
            what = "; is the file complete?" if len(cells) < width else ""
            problems.add(line, f"{len(cells)} cells where the header has {width}{what}")


def _check_header(
    path: Path, line: int, header: list[str], named: Sequence[str], ignored: Sequence[str] | None, problems: ProblemList
) -> tuple[list[int], list[int]] | None:
    """Return the numbers of the named columns and of the observations; None where the rows cannot be read.

    A column that is there twice or has no name is a problem, but the rows are read, so that theirs are told as well.
    """
    for name in dict.fromkeys(name for name in header if header.count(name) > 1):
        problems.append(f"{path.name}, line {line}: the column '{truncate_text(name)}' is there twice")
    for name in named:
        if name not in header:
            shown = ", ".join(map(truncate_text, header[:6]))
            problems.append(f"{path.name}, line {line}: there is no column '{name}' (it has {shown} …)")
    left_out = {*_FACTS, *(ignored or ())}
    numbers = [] if ignored is None else [n for n, name in enumerate(header) if name not in left_out]
    if ignored is not None and not numbers:
        problems.append(f"{path.name}, line {line}: there is no column of an observation")
    if any(not header[number] for number in numbers):
        problems.append(f"{path.name}, line {line}: a column has no name")
    readable = all(name in header for name in named) and (ignored is None or numbers)
    return ([header.index(name) for name in named], numbers) if readable else None


def _report(path: Path, name: str, bad: Sequence[tuple[int, str]], rows: int, problems: ProblemList) -> None:
    """Report cells that are no state: each of them, or the column where most of its cells are."""
    if is_no_class(len(bad), rows):
        line, cell = bad[0]
        example = f"'{truncate_text(cell)}' in line {line} and {len(bad) - 1:,} more"
        what = f"the column '{truncate_text(name)}' is no observation ({example}): --ignore-columns leaves it out"
        problems.append(f"{path.name}, line 1: {what}")
        return
    for line, cell in bad:
        problems.append(f"{path.name}, line {line}: '{truncate_text(cell)}' under {name}: {_RULE}")
