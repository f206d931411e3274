"""The options about classes: renames, aliases, selection and hierarchy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from labelgap.core.errors import InputError, UnknownNameError, nearest
from labelgap.core.findings import Finding
from labelgap.core.text import truncate_text
from labelgap.labels.io.dialect import detect_dialect, open_text
from labelgap.labels.io.findings import (
    ClassesLeftOut,
    ClassesRenamed,
    ClassNeverListed,
    HierarchyApplied,
)
from labelgap.labels.io.header import LIST_COLUMNS, RESERVED_COLUMNS
from labelgap.labels.io.hierarchy import describe_cycle, implied_labels
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.records import split_records
from labelgap.labels.io.similar_names import similar_class_names
from labelgap.labels.io.table_file import TableOptions
from labelgap.labels.revisions import Revisions
from labelgap.labels.table import LabelTable

_MAX_SHOWN: Final = 10
_MAX_COMPARISONS: Final = 100_000
_HEADERS: Final = frozenset({"alias", "child", "class", "from", "name", "new", "old", "parent", "synonym", "tag", "to"})


def resolve_class_names(options: TableOptions) -> dict[str, str]:
    """Return the final name of every class that ``rename`` or ``aliases`` renames."""
    synonyms = read_name_pairs(Path(options.aliases), "synonym", "tag") if options.aliases is not None else []
    pairs = [pair for pair in synonyms if pair[0] not in options.rename]
    return resolve_aliases([*pairs, *options.rename.items()], "--rename and --aliases" if pairs else "--rename")


def apply_class_options(
    table: LabelTable,
    options: TableOptions,
    names: Mapping[str, str],
    alphabetical: bool,
    refuse_conflicts: Callable[[Sequence[tuple[int, str]]], None],
) -> tuple[LabelTable, Revisions, list[Finding]]:
    """Rename classes, select those in ``options.classes``, and add the labels that the hierarchy implies.

    ``refuse_conflicts`` raises an error for labels (row, class) that are present under one name and absent under
    another. Returned are the table, the revisions that the hierarchy added to it, and what was done.
    """
    findings: list[Finding] = []
    classes = {*table.classes}
    for old, new in options.rename.items():
        if old not in classes and new.lower() not in (*RESERVED_COLUMNS, *LIST_COLUMNS):
            raise UnknownNameError("tag", truncate_text(old), map(truncate_text, table.classes), "(--rename OLD=NEW)")
    if renamed := [old for old in table.classes if old in names]:
        table, conflicts = rename_classes(table, names, alphabetical=alphabetical)
        refuse_conflicts(conflicts)
        findings.append(ClassesRenamed(tuple((old, names[old]) for old in renamed)))
    if options.classes is not None:
        table, selected = _select(table, [names.get(name, name) for name in options.classes])
        findings += selected
    revisions = Revisions()
    if options.parents is not None:
        pairs = read_name_pairs(Path(options.parents), "child", "parent")
        revisions, contradicted, unknown_names = implied_labels(
            table, [(names.get(child, child), names.get(parent, parent)) for child, parent in pairs]
        )
        table = table.revised(revisions)
        findings.append(HierarchyApplied(len(revisions), contradicted, unknown_names))
    return table, revisions, [*findings, *similar_class_names(table)]


def _select(table: LabelTable, classes: Sequence[str]) -> tuple[LabelTable, list[Finding]]:
    """Keep some classes of a table; find which others it has and which of those selected never occur."""
    classes = list(dict.fromkeys(classes))
    in_table, selected_names = {*table.classes}, {*classes}
    missing = [name for name in classes if name not in in_table]
    if len(missing) == len(classes):
        raise UnknownNameError("tag", truncate_text(missing[0]), map(truncate_text, table.classes), "(--classes)")
    left_out = [name for name in table.classes if name not in selected_names]
    number = {name: column for column, name in enumerate(classes)}
    columns = np.array([number.get(name, -1) for name in table.classes], dtype=np.int64)[table.columns]
    kept = columns >= 0
    findings: list[Finding] = [ClassesLeftOut(tuple(left_out), int((~kept).sum()))] if left_out else []
    compared = max(1, min(_MAX_SHOWN, _MAX_COMPARISONS // max(len(left_out), 1)))
    findings += [
        ClassNeverListed(name, nearest(name, left_out) if number < compared else None)
        for number, name in enumerate(missing)
    ]
    selected = LabelTable.from_entries(table.rows[kept], columns[kept], table.values[kept], classes, table.images)
    return selected, findings


def read_name_pairs(path: Path, first: str, second: str) -> list[tuple[str, str]]:
    """Read a CSV of two columns, with or without a header, or raise one error with all problems."""
    dialect = detect_dialect(path, None, None, lambda cells: len(cells) == 2)
    pairs, problems = list[tuple[str, str]](), ProblemList(path)
    with open_text(path, dialect.encoding) as file:
        for line, cells in split_records(file, dialect.delimiter, dialect.skip, problems):
            if len(cells) == 2 and all(cells):
                pairs.append((cells[0], cells[1]))
            else:
                problems.add(line, f"a line is {first},{second}; this has {len(cells)} cells")
    problems.fixable = False  # it is no table of labels
    problems.refuse()
    return pairs[1:] if pairs and {*map(str.casefold, pairs[0])} <= _HEADERS else pairs


def resolve_aliases(pairs: Iterable[tuple[str, str]], where: str) -> dict[str, str]:
    """Return the final name of every alias; an alias of two names and a cycle are errors.

    Example:
        >>> resolve_aliases([("puppy", "dog"), ("dog", "Dog")], "rename")
        {'puppy': 'Dog', 'dog': 'Dog'}
    """
    direct: dict[str, str] = {}
    for old, new in pairs:
        if direct.setdefault(old, new) != new:
            names = (truncate_text(name) for name in (old, direct[old], new))
            raise InputError("{}: '{}' stands for '{}' and for '{}'. It can stand for one tag.".format(where, *names))
    direct = {old: new for old, new in direct.items() if old != new}
    final: dict[str, str] = {}
    for old in direct:
        name, path = old, dict[str, None]()
        while name in direct and name not in final:
            if name in path:
                raise InputError(f"{where}: {describe_cycle([*path])} is a cycle.")
            path[name] = None
            name = direct[name]
        final |= dict.fromkeys(path, final.get(name, name))
    return {old: final[old] for old in direct}


def rename_classes(
    table: LabelTable, names: Mapping[str, str], *, alphabetical: bool = False
) -> tuple[LabelTable, list[tuple[int, str]]]:
    """Rename classes; those that get the same name are merged.

    Present or absent replaces unknown. A label that is present in one merged class and absent in another is a conflict:
    it is returned as (row, class) and is unknown in the table.

    Example:
        >>> table = LabelTable.from_dense([[1, -1], [0, 1]], classes=["dog", "Dog"])
        >>> renamed, conflicts = rename_classes(table, {"dog": "Dog"})
        >>> renamed.to_dense().tolist(), conflicts
        ([[1], [-1]], [(1, 'Dog')])
    """
    new_names = [names.get(name, name) for name in table.classes]
    classes = sorted(set(new_names)) if alphabetical else list(dict.fromkeys(new_names))
    number = {name: column for column, name in enumerate(classes)}
    columns = np.array([number[name] for name in new_names], dtype=np.int64)[table.columns]
    places = table.rows * max(len(classes), 1) + columns
    place, first, which = np.unique(places, return_index=True, return_inverse=True)
    value = table.values[first]
    conflicts = np.unique(place[which[table.values != value[which]]])
    kept = ~np.isin(place, conflicts)
    row, column = np.divmod(place[kept], max(len(classes), 1))
    renamed = LabelTable.from_entries(row, column, value[kept], classes, table.images)
    return renamed, [(int(at) // len(classes), classes[int(at) % len(classes)]) for at in conflicts]
