"""Write a table that can be used: rows without a usable image are left out, rows of one image are merged.

Nothing is guessed about labels: what contradicts itself or is no state becomes unknown, and is named. The file itself
is never changed.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, Problem, ProblemsError, UnknownNameError
from labelgap.core.files import atomic_path
from labelgap.core.findings import Finding
from labelgap.core.text import quote_formulas, truncate_text
from labelgap.data.cleaning.changes import Change
from labelgap.data.cleaning.images import check_images
from labelgap.data.cleaning.layouts import Layout, ListLayout, WideLayout
from labelgap.data.cleaning.rows import merge_rows, separate_copies, usable_rows
from labelgap.data.cleaning.table_row import TableRow
from labelgap.data.dataset import Dataset
from labelgap.data.opening import recognize_format
from labelgap.data.readers.image_table import ImageOptions, build_dataset, image_folder
from labelgap.labels.io.cells import Cell
from labelgap.labels.io.class_names import resolve_class_names
from labelgap.labels.io.findings import MoreSimilarClasses, SimilarClasses
from labelgap.labels.io.header import SAMPLE_ROWS, parse_header
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.raw_table import RawTable, read_raw_csv, read_raw_parquet
from labelgap.labels.io.rows import Row, parse_rows
from labelgap.labels.io.table_file import TableFile, TableOptions

_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {"csv": (".csv", ".tsv"), "parquet": (".parquet",)}
_TABLE_OPTIONS: Final = tuple(field.name for field in fields(TableOptions))
_IMAGE_OPTIONS: Final = ("duplicates", "allow_leaks")
_CSV_OPTIONS: Final = ("encoding", "delimiter")


@dataclass(frozen=True)
class FixedTable:
    """What ``fix_table`` wrote.

    Attributes:
        source: the table that it read.
        unit: what the lines of the changes count: "line", or "row" in files without lines.
        path: the clean table.
        changes_path: the list of changes.
        rows: number of rows of the source.
        changes: all changes by line; ``copies`` are only named.
        proposals: classes that are perhaps one, for ``rename``; nothing was done about them.
        data: the clean table as it is read.
    """

    source: Path
    unit: str
    path: Path
    changes_path: Path
    rows: int
    changes: tuple[Change, ...]
    proposals: tuple[Finding, ...]
    data: Dataset

    def to_json(self) -> dict[str, Any]:
        """Return everything but the data as plain values."""
        return {
            "format": 1,
            "source": str(self.source),
            "unit": self.unit,
            "path": str(self.path),
            "changes_path": str(self.changes_path),
            "rows": self.rows,
            "images": sum(map(len, self.data.splits)),
            "classes": list(self.data.classes),
            "changes": [asdict(change) for change in self.changes],
            "proposals": [proposal.to_json() for proposal in self.proposals],
        }


def changes_path(path: Path) -> Path:
    """Return the path of the list of changes.

    Example:
        >>> changes_path(Path("clean.csv")).name
        'clean.changes.csv'
    """
    return path.with_name(f"{path.stem}.changes.csv")


def fix_table(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    **options: Any,
) -> FixedTable:
    """Write a clean copy of a CSV or Parquet table of labels, in the same layout, and a list of all changes.

    Left out are rows whose image is missing or cannot be read, rows that are no rows, columns that hold no classes,
    and, where the table has a split, images of train and val with a copy in test. Rows of one image are merged: a
    label that one of them knows is known, and one that they contradict each other about becomes unknown. Spellings
    that differ in case become the most frequent one. All of this is in ``changes``, with its line.

    Args:
        path: the table; it is never changed.
        out: the clean table, of the same format.
        images: the folder that the names of images are relative to; that of the table when None.
        force: whether existing files may be replaced.
        **options: of ``load_csv`` and ``load_parquet``. ``rename`` and ``aliases`` are applied to the clean table.
    """
    out = Path(out)
    kind, path = _table_format(path)
    for name in options:
        if name not in (known := (*_TABLE_OPTIONS, *_IMAGE_OPTIONS, *_CSV_OPTIONS)):
            raise UnknownNameError("option", name, known)
    table_options = TableOptions(**{name: options[name] for name in _TABLE_OPTIONS if name in options})
    image_options = ImageOptions(**{name: options[name] for name in _IMAGE_OPTIONS if name in options})
    _check_output(path, out, kind, force)
    if kind == "csv":
        raw = read_raw_csv(path, table_options, **{name: options.get(name) for name in _CSV_OPTIONS})
    else:
        raw = read_raw_parquet(path)
    folder = image_folder(path, images)
    return _fix(raw, out, folder, table_options, image_options)


def _table_format(text: str | os.PathLike[str]) -> tuple[str, Path]:
    """Return the format of a table and its path, given the path or ``csv=path``."""
    name, _, place = os.fspath(text).partition("=")
    path = Path(text).expanduser()
    if name in _SUFFIXES and place and not path.exists():
        path = Path(place).expanduser()
    else:
        name = recognize_format(path) if path.exists() else ""
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    if name not in _SUFFIXES:
        raise InputError(f"{path} is read as {name}: only tables of labels, CSV and Parquet, can be fixed.")
    return name, path


def _check_output(path: Path, out: Path, kind: str, force: bool) -> None:
    """Raise an error where the clean table may not be written."""
    suffixes = dict.fromkeys([*_SUFFIXES[kind], path.suffix.lower()])
    if out.suffix.lower() not in suffixes:
        raise InputError(
            f"{out}: the clean table has the format of {path}, so its name ends in {' or '.join(suffixes)}."
        )
    for place in (out, changes_path(out)):
        if place.exists() and place.samefile(path):
            raise InputError(f"{place} is the table itself, which is never overwritten. Write to another file.")
        if place.exists() and not force:
            raise InputError(f"{place} exists already. Write to another file, or replace it with --force.")


def _fix(raw: RawTable, out: Path, folder: Path, options: TableOptions, image_options: ImageOptions) -> FixedTable:
    header = ProblemList(raw.path, raw.unit)
    sample = [cells for _, cells in raw.rows[:SAMPLE_ROWS]]
    columns = parse_header(raw.line, raw.header, options, resolve_class_names(options), header, sample)
    if columns.image is None or not (columns.lists or columns.class_columns):
        _parse(raw, [(raw.line, [*raw.header]), *raw.rows], options)  # raises one error with all problems
    rows, changes = usable_rows(raw, columns)
    images = check_images(raw, folder, rows)
    changes += [
        Change(row.line, "left_out", images.problems[row.image]) for row in rows if row.image in images.problems
    ]
    rows = [row for row in rows if row.image not in images.problems]
    layout = (ListLayout if columns.lists else WideLayout)(raw, columns, rows, options)
    if not layout.has_classes:
        _parse(raw, [(raw.line, [*raw.header]), *raw.rows], options)
    changes += [*layout.changes, *(change for row in rows for change in layout.read_labels(row))]
    rows, merged = merge_rows(rows, images, layout)
    rows, copies = separate_copies(rows, images, layout, image_options)
    _refuse_unwritable(raw, rows, layout)
    clean: list[Row] = [(row.line, layout.write_cells(row)) for row in rows]
    names: list[Cell] = [column.name for column in layout.output]
    remaining = replace(options, rename={}, aliases=None, classes=layout.chosen_classes)
    file = _parse(raw, [(raw.line, names), *clean], remaining, layout.all_classes)
    try:
        data = build_dataset(file, folder, images.files, {}, image_options, images.findings, images.known_scan)
    except ProblemsError as error:
        raise _undecided(error) from None
    listed = tuple(sorted([*changes, *merged, *copies]))
    with atomic_path(changes_path(out)) as temporary, temporary.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow([raw.unit, "kind", "change"])
        writer.writerows(quote_formulas((change.line, change.kind, change.text)) for change in listed)
    raw.write(out, layout.output, clean, layout.names)
    proposals = tuple(each for each in data.findings if isinstance(each, SimilarClasses | MoreSimilarClasses))
    data = replace(data, name=out.name)
    return FixedTable(raw.path, raw.unit, out, changes_path(out), len(raw.rows), listed, proposals, data)


def _parse(
    raw: RawTable, rows: Sequence[Row], options: TableOptions, classes: Sequence[str] | None = None
) -> TableFile:
    """Parse rows as the readers do; what is still wrong is for the user to decide."""
    try:
        return parse_rows(iter(rows), options, ProblemList(raw.path, raw.unit), classes=classes)
    except ProblemsError as error:
        raise _undecided(error) from None


def _undecided(error: ProblemsError) -> ProblemsError:
    return ProblemsError(error.path, error.problems, "nothing was written: --fix cannot decide these", unit=error.unit)


def _refuse_unwritable(raw: RawTable, rows: Sequence[TableRow], layout: Layout) -> None:
    """Raise an error for labels that have to become unknown where a list cannot say so."""
    if not layout.columns.lists or layout.options.unlisted != "absent":
        return
    reason = "is present and absent; with --unlisted absent no list can say that it is unknown"
    problems = [Problem(row.line, f"'{truncate_text(name)}' {reason}") for row in rows for name in row.conflicts]
    if problems:
        raise _undecided(ProblemsError(raw.path, problems, unit=raw.unit))
