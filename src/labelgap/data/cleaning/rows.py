"""The rows of a table that is being cleaned: which can be used, which are merged, and copies of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import Problem, ProblemsError
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.cleaning.changes import Change
from labelgap.data.cleaning.images import CheckedImages
from labelgap.data.cleaning.layouts import Layout
from labelgap.data.cleaning.table_row import TableRow
from labelgap.data.images import FileImages
from labelgap.data.readers.image_table import ImageOptions
from labelgap.data.scanning.duplicates import DuplicatePairs, cluster_ids, find_duplicates
from labelgap.labels.io.cells import Cell
from labelgap.labels.io.header import HeaderColumns
from labelgap.labels.io.raw_table import RawTable
from labelgap.labels.io.rows import image_name_problem
from labelgap.labels.io.similar_names import is_near_spelling
from labelgap.labels.io.table_file import SPLIT_NAMES, SPLITS

_CLASSES_SHOWN: Final = 5


def usable_rows(raw: RawTable, columns: HeaderColumns) -> tuple[list[TableRow], list[Change]]:
    """Return the rows that have all cells, an image and a split; an error where these are fewer than half."""
    changes = [Change(each.line, "left_out", each.message) for each in raw.unreadable]
    rows: list[TableRow] = []
    spelled: list[Change] = []
    for line, raw_cells in raw.rows:
        problem = _problem(columns, raw_cells)
        cells = raw_cells[: len(columns.header)]  # a copy: the file keeps its own
        if problem is None and columns.split is not None:
            written, name = str(cells[columns.split]), columns.header[columns.split]
            split = _split_name(written)
            if split is None:
                problem = f"'{truncate_text(written)}' under {name} is none of {', '.join(SPLITS)}"
                problem += f" (no split? --ignore-columns {name})"
            elif split != written:
                cells[columns.split] = split
                spelled.append(Change(line, "split", f"'{truncate_text(written)}' under {name}: {split} now"))
        if problem is not None:
            changes.append(Change(line, "left_out", problem))
        else:
            assert columns.image is not None
            rows.append(TableRow(line, cells, str(cells[columns.image])))
    if len(changes) > len(rows):
        problems = [Problem(change.line, change.text) for change in changes]
        outcome = "nothing was written: most of its rows would be left out"
        raise ProblemsError(raw.path, problems, outcome, unit=raw.unit)
    return rows, [*changes, *spelled]


def _problem(columns: HeaderColumns, cells: Sequence[Cell]) -> str | None:
    """Return why a row cannot be used; blank cells after the last column do not matter."""
    count = len(columns.header)
    if [*cells] == [*columns.header]:
        return "the header once more"
    if len(cells) < count or any(cells[count:]):
        return f"{len(cells)} cells where the header has {count}"
    image = "" if columns.image is None else str(cells[columns.image])
    return image_name_problem(image) if image else "no image is named"


def _split_name(text: str) -> str | None:
    """Return the split that a cell means, or None.

    Example:
        >>> [_split_name(text) for text in ("Train", "validation", "tset", "", "1")]
        ['train', 'val', 'test', None, None]
    """
    lower = text.casefold()
    near = {split for name, split in SPLIT_NAMES.items() if is_near_spelling(lower, name)}
    return SPLIT_NAMES.get(lower, near.pop() if len(near) == 1 else None)


def merge_rows(rows: Sequence[TableRow], images: CheckedImages, layout: Layout) -> tuple[list[TableRow], list[Change]]:
    """Merge the rows of one image into the first: what one of them knows is known, contradictions are unknown."""
    firsts: dict[str, TableRow] = {}
    changes: list[Change] = []
    for row in rows:
        first = firsts.setdefault(images.repeated.get(row.image, row.image), row)
        if first is not row:
            changes += _merge(first, row, layout)
    return list(firsts.values()), changes


def _merge(first: TableRow, row: TableRow, layout: Layout) -> list[Change]:
    """Merge a row into the first one of its image."""
    unit, name = layout.raw.unit, truncate_text(row.image)
    same = (row.labels, row.conflicts) == (first.labels, first.conflicts)
    added = [each for each in row.labels if each not in first.labels and each not in first.conflicts]
    conflicts = [each for each, state in row.labels.items() if not first.add_label(each, state)]
    for each in row.conflicts - first.conflicts:
        first.labels.pop(each, None)
        first.conflicts.add(each)
    text = f"{name} is listed again (first in {unit} {first.line}): merged"
    text += ", the labels are the same" if same else f", {pluralize(len(added), 'label')} added" if added else ""
    for column in layout.other_columns:
        before, here = first.cells[column.source], row.cells[column.source]
        if not before:
            first.cells[column.source] = here
        elif here and here != before:
            text += f"; {truncate_text(column.name)} stays '{truncate_text(str(before))}'"
    return [
        Change(row.line, "merged", text),
        *(
            Change(
                row.line, "unknown", f"'{truncate_text(each)}' of {name} contradicts {unit} {first.line}: unknown now"
            )
            for each in conflicts
        ),
    ]


def separate_copies(
    rows: Sequence[TableRow], images: CheckedImages, layout: Layout, options: ImageOptions
) -> tuple[list[TableRow], list[Change]]:
    """Name the images that are copies of others; of copies in several splits keep those in the last (test, val)."""
    files, unit, split = images.files, layout.raw.unit, layout.columns.split
    chosen = FileImages(images.images.root, [row.image for row in rows], [files[row.image] for row in rows])
    pairs = find_duplicates(chosen, images.known_scan(chosen), options.duplicates)
    changes = [
        _describe_copy(rows[first], rows[second], exact, unit)
        for first, second, exact in zip(pairs.first.tolist(), pairs.second.tolist(), pairs.exact.tolist(), strict=True)
    ]
    if split is None or options.allow_leaks:
        return list(rows), changes
    leaked = _leaked_rows(pairs, np.array([SPLITS.index(str(row.cells[split])) for row in rows], dtype=np.int64))
    for row, other in leaked.items():
        here, there = (f"{truncate_text(rows[each].image)} ({rows[each].cells[split]})" for each in (row, other))
        changes.append(Change(rows[row].line, "left_out", f"{here} is a copy of {there}, {unit} {rows[other].line}"))
    return [row for number, row in enumerate(rows) if number not in leaked], changes


def _leaked_rows(pairs: DuplicatePairs, splits: NDArray[np.int64]) -> dict[int, int]:
    """Return every row that has a copy in a later split, with the first such copy in the last one."""
    clusters = cluster_ids(pairs, len(splits))
    kept: dict[int, int] = {}
    for row in np.lexsort((np.arange(len(splits)), -splits)).tolist():
        kept.setdefault(int(clusters[row]), row)
    others = ((row, kept[int(cluster)]) for row, cluster in enumerate(clusters))
    return {row: other for row, other in others if splits[row] != splits[other]}


def _describe_copy(first: TableRow, second: TableRow, exact: bool, unit: str) -> Change:
    """Return the change that names two images that are copies, and the classes on which their labels disagree."""
    relation = "has the same content as" if exact else "looks the same as"
    text = f"{truncate_text(second.image)} {relation} {truncate_text(first.image)} ({unit} {first.line})"
    differ = [name for name, state in second.labels.items() if first.labels.get(name, state) != state]
    if differ:
        more = " …" if len(differ) > _CLASSES_SHOWN else ""
        text += f"; their labels contradict each other: {truncate_text(', '.join(differ[:_CLASSES_SHOWN]))}{more}"
    return Change(second.line, "copies", text)
