"""Options applied to a parsed table: renamed classes, selected classes, the class hierarchy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labelgap.core.errors import UnknownNameError, nearest
from labelgap.core.findings import Finding
from labelgap.core.text import truncate_text
from labelgap.labels.io.class_names import (
    read_name_pairs,
    rename_classes,
    resolve_aliases,
    select_classes,
    similar_class_names,
)
from labelgap.labels.io.findings import ClassesLeftOut, ClassesRenamed, ClassNeverListed, HierarchyApplied
from labelgap.labels.io.header import LIST_COLUMNS, RESERVED_COLUMNS
from labelgap.labels.io.hierarchy import implied_labels
from labelgap.labels.io.table_file import TableOptions
from labelgap.labels.revisions import Revisions
from labelgap.labels.table import LabelTable

__all__ = ["ResolvedTable", "apply_class_options", "resolve_class_names"]


@dataclass(frozen=True)
class ResolvedTable:
    """A table after all options, the labels that the hierarchy added, and what was done."""

    table: LabelTable
    revisions: Revisions = field(default_factory=Revisions)
    findings: tuple[Finding, ...] = ()


def resolve_class_names(options: TableOptions) -> dict[str, str]:
    """Return the final name of every class that ``rename`` or ``aliases`` renames."""
    synonyms = read_name_pairs(Path(options.aliases), "synonym", "tag") if options.aliases is not None else []
    pairs = [pair for pair in synonyms if pair[0] not in options.rename]
    return resolve_aliases([*pairs, *options.rename.items()], "--rename and --aliases" if pairs else "--rename")


def apply_class_options(
    table: LabelTable,
    options: TableOptions,
    names: Mapping[str, str],
    form: str,
    refuse_conflicts: Callable[[Sequence[tuple[int, str]]], None],
) -> ResolvedTable:
    """Rename classes, select those in ``options.classes``, and add the labels that the hierarchy implies.

    Args:
        table: as it was parsed.
        options: ``rename``, ``classes`` and ``parents`` are used.
        names: the final name of every renamed class.
        form: "wide" or "lists"; the classes of lists are in alphabetical order.
        refuse_conflicts: raises an error for labels (row, class) that are present under one name of a class and absent
            under another.
    """
    findings: list[Finding] = []
    for old, new in options.rename.items():
        if old not in table.classes and new.lower() not in (*RESERVED_COLUMNS, *LIST_COLUMNS):
            raise UnknownNameError("tag", truncate_text(old), map(truncate_text, table.classes), "(--rename OLD=NEW)")
    if renamed := [old for old in table.classes if old in names]:
        table, conflicts = rename_classes(table, names, alphabetical=form == "lists")
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
    return ResolvedTable(table, revisions, (*findings, *similar_class_names(table)))


def _select(table: LabelTable, classes: Sequence[str]) -> tuple[LabelTable, list[Finding]]:
    """Keep some classes of a table; find which others it has and which of those selected never occur."""
    classes = list(dict.fromkeys(classes))
    missing = [name for name in classes if name not in table.classes]
    if len(missing) == len(classes):
        raise UnknownNameError("tag", truncate_text(missing[0]), map(truncate_text, table.classes), "(--classes)")
    left_out = [name for name in table.classes if name not in classes]
    table, labels = select_classes(table, classes)
    findings: list[Finding] = [ClassesLeftOut(tuple(left_out), labels)] if left_out else []
    findings += [ClassNeverListed(name, nearest(name, left_out)) for name in missing]
    return table, findings
