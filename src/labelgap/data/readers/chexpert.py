"""Chest radiographs with labels taken from reports: CheXpert's tables, and those of MIMIC-CXR.

A cell is 1 (present), 0 (absent), −1 (*uncertain*: the report hedges) or blank (not mentioned: unknown). What an
uncertain label becomes is a decision that changes results, so it is asked for.

CheXpert: ``train.csv`` and ``valid.csv`` with ``Path, Sex, Age, Frontal/Lateral, AP/PA`` and a column per observation.
MIMIC-CXR-JPG: ``mimic-cxr-2.0.0-chexpert.csv`` with a row per study, and ``mimic-cxr-2.0.0-split.csv`` with its images.

References: Irvin et al., "CheXpert", AAAI 2019; Johnson et al., "MIMIC-CXR-JPG", 2019.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, describe_missing_path
from labelgap.core.findings import Finding, Note
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import LabelsCounted, LeaksAllowed
from labelgap.data.images import FileImages, path_inside
from labelgap.data.readers.common import DatasetLayout, RequiredFile
from labelgap.data.readers.image_paths import is_file, refuse_url
from labelgap.data.readers.table import image_folder
from labelgap.data.scanning import DuplicatePairs
from labelgap.data.split import assign_splits
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.io.dialect import open_text, split_records
from labelgap.labels.io.parse import image_name_problem, is_no_class
from labelgap.labels.io.table_file import ProblemList, TableFile, check_choice

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
    """The rows of one table, or of several splits; ``lines`` count in ``lines_of``, the file that names the images.

    ``codes`` are PRESENT, ABSENT, UNKNOWN and UNCERTAIN; ``studies`` says whether rows are joined from studies.
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
    (images,), lines, classes, codes = _read_columns(path, ("Path",), ignored, problems)
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
    (subjects, studies), lines, classes, codes = _read_columns(path, ("subject_id", "study_id"), ignored, problems)
    row_of: dict[str, int] = {}
    for row, study in enumerate(studies):
        if (first := row_of.setdefault(study, row)) != row:
            where = f"{path.name}, line {lines[row]}"
            problems.append(f"{where}: study {truncate_text(study)} is listed again (line {lines[first]})")
    place = path.with_name(f"{MIMIC_PREFIX}split.csv")
    named = ("dicom_id", "study_id", "subject_id", "split")
    (dicoms, of_study, of_subject, splits), image_lines, _, _ = _read_columns(place, named, None, problems)
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


def _read_columns(path: Path, named: Sequence[str], ignored: Sequence[str] | None, problems: ProblemList) -> Columns:
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


_STATES: Final = {"unknown": UNKNOWN, "present": PRESENT, "absent": ABSENT}
_NO_HEADER: Final = "its first columns are not Path, Sex, Age …: it is no table of CheXpert"
_MAX_MISSING: Final = 1000
_TRIED: Final = 20
_PATIENT: Final = re.compile(r"(?:^|/)(patient\d+|p\d{8})(?=/)")
_HEADER: Final = re.compile(rb'^(?:\xef\xbb\xbf)?"?Path"?,"?(?:Sex|Age|Frontal/Lateral|No Finding)"?,')


def load_chexpert(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    uncertain: str | None = None,
    val: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
    ignore_columns: Sequence[str] = (),
    allow_leaks: bool = False,
    seed: int = 0,
) -> Dataset:
    """Read tables of observations; train, val and test are the files as they were published.

    Without ``valid.csv`` all images are train: a linear head is cross-validated over patients, and where a network is
    trained the val that is held out is one of patients.

    Args:
        path: the folder with ``train.csv`` (and ``valid.csv``, ``test.csv``), or the training table itself; or the
            folder of MIMIC-CXR-JPG.
        images: the folder that paths are relative to; found when not given, with or without their first part, which
            names the version ("CheXpert-v1.0-small").
        uncertain: what −1 becomes: "unknown", "present" or "absent". An error where the tables have one and it is not
            given.
        val: a table of val images in place of ``valid.csv``.
        test: a table of test images in place of ``test.csv``.
        classes: the observations to use, in this order; all of them when not given.
        ignore_columns: columns that are neither observations nor known facts about the image.
        allow_leaks: whether a patient may be in two splits.
        seed: of the val that is held out where a network is trained.
    """
    refuse_url(path, "tables")
    if uncertain is not None:
        check_choice("uncertain", uncertain, tuple(_STATES))
    given = {"val": val, "test": test}
    file = find_chexpert(Path(path))
    if file is None:
        raise InputError(_describe_missing(Path(path)))
    problems = ProblemList(file.parent, unit="")
    tables, findings = _read_tables(file, given, ignore_columns, problems)
    if not tables[0].images:
        problems.refuse()
    names = _class_names(tables, classes, problems)
    folder, place = _find_images(file.parent, images, tables[0])
    _check_images(tables, folder, place, problems)
    problems.refuse()
    tables = [table.with_classes(names) for table in tables]
    _refuse_uncertain(file.parent, tables, uncertain)
    findings = [_uncertain_note(tables, uncertain), *findings]
    labels = LabelTable.concatenate([_labels(table, uncertain) for table in tables])
    return _dataset(file, tables, labels, (folder, place), findings, allow_leaks)


def find_chexpert(path: Path) -> Path | None:
    """Return the training table that a path leads to, or None; other tables called train.csv are not meant."""
    if path.is_file():
        return path if path.name.startswith(MIMIC_PREFIX) or _has_header(path) else None
    mimic = path / f"{MIMIC_PREFIX}chexpert.csv"
    train = path / "train.csv"
    return mimic if mimic.is_file() else train if train.is_file() and _has_header(train) else None


def _describe_missing(path: Path) -> str:
    if not path.exists():
        return describe_missing_path(path)
    table = path if path.is_file() else path / "train.csv"
    if table.is_file():
        return f"{table}, line 1: {_NO_HEADER}."
    packed = (path / f"{MIMIC_PREFIX}chexpert.csv.gz").exists()
    remedy = f" Unpack {MIMIC_PREFIX}*.csv.gz: gunzip -k." if packed else ""
    what = f"there is no train.csv, and no {MIMIC_PREFIX}chexpert.csv, in it."
    return f"{path} holds no table of CheXpert: {what}{remedy}"


def _has_header(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix == ".csv" and _HEADER.match(file.read(200)) is not None
    except OSError:
        return False


def _read_tables(
    file: Path,
    given: Mapping[str, str | os.PathLike[str] | None],
    ignored: Sequence[str],
    problems: ProblemList,
) -> tuple[list[ObservationTable], list[Finding]]:
    """Read the tables of all splits, train first."""
    if file.name.startswith(MIMIC_PREFIX):
        if any(given.values()):
            raise InputError(
                f"{file.parent}: MIMIC-CXR names the splits in {MIMIC_PREFIX}split.csv; leave val and test out."
            )
        return read_mimic(file, ignored, problems)
    found = [("train", file)]
    for split, name in (("val", "valid.csv"), ("test", "test.csv")):
        other = given[split]
        place = file.with_name(name) if other is None else Path(other)
        if other is not None or (place.is_file() and place != file):
            found.append((split, place))
    return [read_table(place, split, ignored, problems) for split, place in found], []


def _class_names(
    tables: Sequence[ObservationTable], chosen: Sequence[str] | None, problems: ProblemList
) -> tuple[str, ...]:
    """Return the observations to use; every table has all of those of train, and no other."""
    names = tables[0].classes
    for table in tables[1:]:
        for name in sorted({*names} ^ {*table.classes}) if table.classes else ():
            what = "has no column" if name in names else "has a column that train has not:"
            problems.add(1, f"{table.path.name}, line 1: it {what} '{truncate_text(name)}'")
    for name in chosen or ():
        if name not in names:
            problems.add(1, f"{tables[0].path.name}, line 1: there is no column '{truncate_text(name)}' (classes)")
    return tuple(chosen) if chosen is not None else names


Place = Callable[[str], str]
"""From a path in a table to one below the folder of images."""


def _find_images(folder: Path, images: str | os.PathLike[str] | None, table: ObservationTable) -> tuple[Path, Place]:
    """Return the folder of images, and what is done to paths: their first part may be the name of that folder."""
    roots = [folder, folder.parent] if images is None else [image_folder(folder / "_", images)]
    places: tuple[Place, ...] = (str, _without_first_part)
    for root, place in product(roots, places):
        for image in filter(None, table.images[:_TRIED]):  # the first one may be missing
            if path_inside(root, root / place(image)) is not None and is_file(root / place(image)):
                return root, place
    return roots[0], _without_first_part if images is None and not table.studies else str


def _without_first_part(path: str) -> str:
    return path.partition("/")[2] or path


def _check_images(tables: Sequence[ObservationTable], folder: Path, place: Place, problems: ProblemList) -> None:
    """Report images that are listed twice, that lie elsewhere, or that do not exist."""
    listed: dict[str, str] = {}
    missing = total = 0
    before = len(problems)
    for table in tables:
        for image, line in zip(table.images, table.lines, strict=True):
            if not image:  # reported already
                continue
            total += 1
            where = f"{table.lines_of.name}, line {line}"
            path = folder / place(image)
            if (first := listed.setdefault(image, where)) != where:
                problems.append(f"{where}: {truncate_text(image)} is listed again (first in {first})")
            elif path_inside(folder, path) is None:
                problems.append(f"{where}: {truncate_text(image)} lies outside of {folder}")
            elif not is_file(path):
                missing += 1
                if missing <= _MAX_MISSING:
                    problems.append(f"{where}: {path} does not exist")
    if missing == total and not before:
        raise InputError(
            f"{tables[0].path}: none of its {total:,} images is in {folder}, e.g. {place(tables[0].images[0])}. "
            "Where are they? (--images DIR)"
        )
    if missing > _MAX_MISSING:
        problems.append(f"{missing:,} images do not exist")


def _refuse_uncertain(folder: Path, tables: Sequence[ObservationTable], uncertain: str | None) -> None:
    counts = {table.path.name: int((table.codes == UNCERTAIN).sum()) for table in tables}
    if uncertain is None and any(counts.values()):
        each = ", ".join(f"{count:,} in {name}" for name, count in counts.items() if count)
        raise InputError(
            f"{folder} has {sum(counts.values()):,} uncertain labels (-1: {each}). Say what they become: "
            "--uncertain unknown, --uncertain present or --uncertain absent. No choice is made for you."
        )


def _labels(table: ObservationTable, uncertain: str | None) -> LabelTable:
    codes = table.codes.copy()
    codes[codes == UNCERTAIN] = _STATES[uncertain or "unknown"]
    return LabelTable.from_dense(codes, table.classes, table.images)


def _dataset(
    file: Path,
    tables: Sequence[ObservationTable],
    labels: LabelTable,
    images: tuple[Path, Place],
    findings: Sequence[Finding],
    allow_leaks: bool,
) -> Dataset:
    """Return the data set: the splits of the files, and the images of one patient in one group."""
    splits = tuple(split for table in tables for split in table.splits)
    patients = tuple(patient for table in tables for patient in map(_patient, table.images))
    rows = TableFile(
        path=file,
        table=labels,
        splits=splits if len({*splits}) > 1 else None,
        groups=patients,
        lines=np.concatenate([np.asarray(table.lines, dtype=np.int64) for table in tables]),
        findings=(),
        sources=tuple(table.lines_of for table in tables for _ in table.images),
    )
    parts, groups, split_findings = assign_splits(rows, DuplicatePairs.of([], exact=True), allow_leaks)
    together = "" if any(isinstance(each, LeaksAllowed) for each in split_findings) else ", each in one split or fold"
    folder, place = images
    files = FileImages(folder, labels.images, [place(image) for image in labels.images])
    made = {
        name: Split(name, files.select(members), labels.select(members), groups=groups[members])
        for name, members in parts.items()
        if len(members)
    }
    counted = Note(f"{pluralize(len({*patients} - {''}), 'patient')}{together}", "split")
    all_findings = (*findings, LabelsCounted.of([labels]), counted, *split_findings)
    return Dataset.of(file.parent.resolve().name, made, all_findings)


def _patient(image: str) -> str:
    """Return the patient that the path of an image names; empty where it names none."""
    found = _PATIENT.search(image)
    return "" if found is None else found[1]


def _uncertain_note(tables: Sequence[ObservationTable], uncertain: str | None) -> Note:
    count = sum(int((table.codes == UNCERTAIN).sum()) for table in tables)
    became = f"{count:,} uncertain labels (-1) are {uncertain}, as asked" if count else "no label is uncertain"
    return Note(f"1 = present, 0 = absent, blank = unknown; {became}")


def _quick_check(file: Path) -> str | None:
    if file.name.startswith(MIMIC_PREFIX):
        split = f"{MIMIC_PREFIX}split.csv"
        return (
            None if file.with_name(split).is_file() else f"{split} is missing, which names the images and their splits"
        )
    return None if _has_header(file) else _NO_HEADER


CHEXPERT_LAYOUT: Final = DatasetLayout(
    "Stanford ML Group (stanfordmlgroup.github.io/competitions/chexpert); MIMIC-CXR-JPG: PhysioNet",
    "a research use agreement that each user signs; no redistribution",
    "CheXpert-v1.0/",
    (
        RequiredFile(
            "train.csv",
            "Path, Sex, Age, Frontal/Lateral, AP/PA and an observation per column",
            (f"{MIMIC_PREFIX}chexpert.csv",),
            check=_quick_check,
        ),
        RequiredFile("valid.csv", "val, in the same layout", optional=True),
        RequiredFile("test.csv", "test, in the same layout", optional=True),
        RequiredFile(
            "train/*/*/*.jpg",
            "patient00001/study1/view1_frontal.jpg; or elsewhere: --images",
            ("train/*/*/*.png", "files/*/*/*/*.jpg"),
        ),
    ),
    lambda path: None if (file := find_chexpert(path)) is None else file.parent,
    ("What uncertain labels (-1) become is asked for: --uncertain unknown, present or absent.",),
    tried=False,
)
