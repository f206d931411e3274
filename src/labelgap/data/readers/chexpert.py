"""Chest radiographs with labels taken from reports: CheXpert's tables, and those of MIMIC-CXR.

A cell is 1, 0, −1 (*uncertain*: the report hedges) or blank (not mentioned: unknown). References: Irvin et al.,
"CheXpert", AAAI 2019; Johnson et al., "MIMIC-CXR-JPG", 2019.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Final

import numpy as np

from labelgap.core.errors import InputError, ProblemsError, describe_missing_path
from labelgap.core.findings import Note
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.dataset import Dataset
from labelgap.data.findings import LeaksAllowed, count_labels
from labelgap.data.images import FileImages, path_inside
from labelgap.data.readers.common import DatasetLayout, FileProblems, RequiredFile
from labelgap.data.readers.image_paths import is_file, refuse_url
from labelgap.data.readers.table import image_folder, join_tables, split_images
from labelgap.data.scanning import DuplicatePairs
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.io.dialect import open_text, split_records
from labelgap.labels.io.formats import read_csv
from labelgap.labels.io.table_file import ProblemList, TableFile, TableOptions, check_choice

MIMIC_PREFIX: Final = "mimic-cxr-2.0.0-"
_FACTS: Final = ("Sex", "Age", "Frontal/Lateral", "AP/PA", "dicom_id", "split")  # columns that are no observations
_MIMIC_SPLITS: Final = {"train": "train", "validate": "val", "test": "test"}
_STATES: Final = {"unknown": UNKNOWN, "present": PRESENT, "absent": ABSENT}
_NO_HEADER: Final = "its first columns are not Path, Sex, Age …: it is no table of CheXpert"
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
        seed: the seed of the val that is held out where a network is trained.
    """
    refuse_url(path, "tables")
    if uncertain is not None:
        check_choice("uncertain", uncertain, tuple(_STATES))
    file = find_chexpert(Path(path))
    if file is None:
        raise InputError(_describe_missing(Path(path)))
    mimic = file.name.startswith(MIMIC_PREFIX)
    if mimic and (val or test):
        raise InputError(
            f"{file.parent}: MIMIC-CXR names the splits in {MIMIC_PREFIX}split.csv; leave val and test out."
        )
    names = {"study_id": "image", "subject_id": "group"} if mimic else {"Path": "image"}
    options = TableOptions(
        classes=classes, ignore_columns=ignore_columns, rename=names, minus_one=_STATES[uncertain or "unknown"]
    )
    finder = _ImageFinder(file, images)
    problems = FileProblems(file.parent)
    if mimic:
        tables = {"train": _read(file, options, problems)}
        problems.refuse()
        rows, notes = _join_studies(tables["train"], finder, problems)
    else:
        tables, notes = _read_splits(file, {"val": val, "test": test}, options, finder, problems), []
        rows = tables["train"]
    if finder.missing == finder.checked and len(problems) == finder.missing:
        raise InputError(
            f"{file}: none of its {finder.checked:,} images is in {finder.folder}, e.g. {finder.example}. "
            "Where are they? (--images DIR)"
        )
    problems.refuse()
    for split in [name for name in tables if name != "train"]:
        rows = join_tables(rows, tables[split], split)
    notes = [_uncertain_note(file.parent, tables.values(), uncertain), *notes]
    return _dataset(file, rows, finder, notes, allow_leaks)


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


def _read(path: Path, options: TableOptions, problems: FileProblems, finder: _ImageFinder | None = None) -> TableFile:
    """Read a table; facts about the images are no observations. An empty one, with problems, where it is wrong."""
    header = [name for cells in _first_rows(path, 1) for name in cells]
    ignored = [name for name in header if name in _FACTS or name in options.ignore_columns]
    options = replace(options, ignore_columns=ignored)
    try:
        check = finder or (lambda name, line: None)
        return read_csv(path, options, encoding="utf-8", delimiter=",", check_image=check)
    except ProblemsError as error:
        for problem in error.problems:
            problems.add(path, problem.message, problem.line)
    nothing = LabelTable.from_dense(np.empty((0, 0), dtype=np.int8))
    return TableFile(path, nothing, None, None, np.empty(0, dtype=np.int64), ())


def _first_rows(path: Path, count: int) -> list[list[str]]:
    with open_text(path, "utf-8-sig") as file:
        return [cells for _, cells in islice(split_records(file, ",", 0, ProblemList(path)), count)]


def _read_splits(
    file: Path,
    given: Mapping[str, str | os.PathLike[str] | None],
    options: TableOptions,
    finder: _ImageFinder,
    problems: FileProblems,
) -> dict[str, TableFile]:
    paths = {"train": file}
    for split, name in (("val", "valid.csv"), ("test", "test.csv")):
        other = given[split]
        place = file.with_name(name) if other is None else Path(other)
        if other is not None or (place.is_file() and place != file):
            paths[split] = place
    tables = {split: _read(path, options, problems, finder) for split, path in paths.items()}
    ours = tables["train"].table.classes
    for split, table in tables.items():
        for name in sorted({*ours} ^ {*table.table.classes}) if ours and table.table.classes else ():
            what = "has no column" if name in ours else "has a column that train has not:"
            problems.add(paths[split], f"it {what} '{truncate_text(name)}'", 1)
    return tables


def _join_studies(studies: TableFile, finder: _ImageFinder, problems: FileProblems) -> tuple[TableFile, list[Note]]:
    """Give MIMIC-CXR's observations of studies to the images that its table of splits names."""
    place = studies.path.with_name(f"{MIMIC_PREFIX}split.csv")
    if not place.is_file():
        problems.add(place, "is not a file" if place.exists() else "does not exist")
        problems.refuse()
    row_of = {study: row for row, study in enumerate(studies.table.images)}
    subjects = studies.groups or ()
    images, lines, splits, rows, total = list[str](), list[int](), list[str](), list[int](), 0
    own = ProblemList(place)
    with open_text(place, "utf-8-sig") as file:
        records = split_records(file, ",", 0, own)
        _, header = next(records, (1, []))
        for line, cells in records:
            total += 1
            row = dict(zip(header, cells, strict=False))
            dicom, study, subject, split = (row.get(key, "") for key in ("dicom_id", "study_id", "subject_id", "split"))
            labeled = row_of.get(study)
            image = f"files/p{subject[:2]}/p{subject}/s{study}/{dicom}.jpg"
            if len(cells) != len(header) or not dicom:
                own.add(line, f"{len(cells)} cells where the header has {len(header)}, or no dicom_id")
            elif split not in _MIMIC_SPLITS:
                own.add(line, f"'{truncate_text(split)}' under split: train, validate or test")
            elif labeled is not None and subjects[labeled] != subject:
                own.add(line, f"study {study} is of {subjects[labeled]} in line {studies.lines[labeled]}")
            elif labeled is not None and (problem := finder(image, line)) is not None:
                own.add(line, problem)
            elif labeled is not None:
                images.append(image)
                lines.append(line)
                splits.append(_MIMIC_SPLITS[split])
                rows.append(labeled)
    for each in own.found:
        problems.add(place, each.message, each.line)
    if not finder.checked and not len(problems):
        problems.add(place, f"names no image of a study of {studies.path.name}")
    used = len({*rows})
    note = (
        f"an image has the labels of its study ({used:,} studies); {total - len(rows):,} images without labels and "
        f"{len(row_of) - used:,} labeled studies without images are left out"
    )
    table = LabelTable.from_dense(studies.table.batch(np.array(rows, dtype=np.int64)), studies.table.classes, images)
    joined = replace(studies, table=table, splits=tuple(splits), lines=np.array(lines), sources=(place,) * len(rows))
    return joined, [Note(note)]


class _ImageFinder:
    """Finds the images of tables, whose paths may begin with the name of the folder that they lie in."""

    def __init__(self, file: Path, images: str | os.PathLike[str] | None) -> None:
        self.checked = self.missing = 0
        self.example = ""
        roots = [file.parent, file.parent.parent] if images is None else [image_folder(file, images)]
        mimic = file.name.startswith(MIMIC_PREFIX)
        header, *cells = _first_rows(file, 1 + _TRIED) or [[]]  # the first image may be missing
        first = [dict(zip(header, each, strict=False)).get("Path", "") for each in cells]
        places: tuple[Callable[[str], str], ...] = (str, _without_first_part)
        for self.folder, self.place in product(roots, places):
            if any(name and self._exists(name) for name in first):
                return
        self.folder, self.place = roots[0], _without_first_part if images is None and not mimic else str

    def _exists(self, name: str) -> bool:
        path = self.folder / self.place(name)
        return path_inside(self.folder, path) is not None and is_file(path)

    def __call__(self, name: str, line: int) -> str | None:
        self.checked += 1
        self.example = self.example or self.place(name)
        if self._exists(name):
            return None
        self.missing += 1
        path = self.folder / self.place(name)
        inside = path_inside(self.folder, path) is not None
        return f"{path} does not exist" if inside else f"{truncate_text(name)} lies outside of {self.folder}"


def _without_first_part(path: str) -> str:
    return path.partition("/")[2] or path


def _uncertain_note(folder: Path, tables: Iterable[TableFile], uncertain: str | None) -> Note:
    """Say what uncertain labels became; an error where there are some, and nothing was asked for."""
    counts = {table.path.name: table.uncertain for table in tables}
    total = sum(counts.values())
    if uncertain is None and total:
        each = ", ".join(f"{count:,} in {name}" for name, count in counts.items() if count)
        raise InputError(
            f"{folder} has {total:,} uncertain labels (-1: {each}). Say what they become: "
            "--uncertain unknown, --uncertain present or --uncertain absent. No choice is made for you."
        )
    became = f"{total:,} uncertain labels (-1) are {uncertain}, as asked" if total else "no label is uncertain"
    return Note(f"1 = present, 0 = absent, blank = unknown; {became}")


def _dataset(file: Path, rows: TableFile, finder: _ImageFinder, notes: Sequence[Note], allow_leaks: bool) -> Dataset:
    """Return the data set: the splits of the files, and the images of one patient in one group."""
    labels = rows.table
    matches = map(_PATIENT.search, labels.images)
    patients = tuple("" if found is None else found[1] for found in matches)
    given = rows.splits if rows.splits and len({*rows.splits}) > 1 else None
    sources = rows.sources or (rows.path,) * len(labels)
    grouped = replace(rows, splits=given, groups=patients, sources=sources)
    files = FileImages(finder.folder, labels.images, [finder.place(image) for image in labels.images])
    parts, split_findings = split_images(grouped, files, DuplicatePairs.of([], exact=True), allow_leaks)
    together = "" if any(isinstance(each, LeaksAllowed) for each in split_findings) else ", each in one split or fold"
    counted = Note(f"{pluralize(len({*patients} - {''}), 'patient')}{together}", "split")
    findings = (*notes, count_labels([labels]), counted, *split_findings)
    return Dataset.of(file.parent.resolve().name, parts, findings)


CHEXPERT_LAYOUT: Final = DatasetLayout(
    "Stanford ML Group (stanfordmlgroup.github.io/competitions/chexpert); MIMIC-CXR-JPG: PhysioNet",
    "a research use agreement that each user signs; no redistribution",
    "CheXpert-v1.0/",
    (
        RequiredFile(
            "train.csv",
            "Path, Sex, Age, Frontal/Lateral, AP/PA and an observation per column",
            (f"{MIMIC_PREFIX}chexpert.csv",),
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
