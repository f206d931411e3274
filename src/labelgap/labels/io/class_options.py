"""What is done to a table once it is read: other names, other classes, and what follows from parents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
    """A table as it will be used, what was added to it, and what was done."""

    table: LabelTable
    revisions: Revisions = field(default_factory=Revisions)
    findings: tuple[Finding, ...] = ()


def resolve_class_names(options: TableOptions) -> dict[str, str]:
    """Return the final name of every tag that ``rename`` or ``aliases`` give another."""
    synonyms = read_name_pairs(options.aliases, "synonym", "tag") if options.aliases is not None else []
    pairs = [pair for pair in synonyms if pair[0] not in options.rename]
    return resolve_aliases([*pairs, *options.rename.items()], "--rename and --aliases" if pairs else "--rename")


def apply_class_options(
    table: LabelTable,
    options: TableOptions,
    names: Mapping[str, str],
    form: str,
    refuse: Callable[[Sequence[tuple[int, str]]], None],
) -> ResolvedTable:
    """Rename tags, keep those asked for, and add what follows from parents.

    Args:
        table: as it was read.
        options: ``rename``, ``classes`` and ``parents`` count here.
        names: the final name of every tag that has another.
        form: "wide" or "lists"; the tags of lists are in alphabetical order.
        refuse: raises an error about labels (row, class) that two names of one tag contradict each other on.
    """
    findings: list[Finding] = []
    for old, new in options.rename.items():
        if old not in table.classes and new.lower() not in (*RESERVED_COLUMNS, *LIST_COLUMNS):
            raise UnknownNameError("tag", truncate_text(old), map(truncate_text, table.classes), "(--rename OLD=NEW)")
    met = [old for old in table.classes if old in names]
    if met:
        table, torn = rename_classes(table, names, alphabetical=form == "lists")
        refuse(torn)
        findings.append(ClassesRenamed(tuple((old, names[old]) for old in met)))
    if options.classes is not None:
        table, said = _chosen(table, [names.get(name, name) for name in options.classes])
        findings += said
    revisions = Revisions()
    if options.parents is not None:
        pairs = read_name_pairs(options.parents, "child", "parent")
        found = implied_labels(table, [(names.get(child, child), names.get(parent, parent)) for child, parent in pairs])
        table, revisions = table.revised(found.revisions), found.revisions
        findings.append(HierarchyApplied(len(revisions), found.contradicted, tuple(found.unknown_names)))
    return ResolvedTable(table, revisions, (*findings, *similar_class_names(table)))


def _chosen(table: LabelTable, classes: Sequence[str]) -> tuple[LabelTable, list[Finding]]:
    """Keep some tags of a table, and say which others there were and which of them never occur."""
    classes = list(dict.fromkeys(classes))
    missing = [name for name in classes if name not in table.classes]
    if len(missing) == len(classes):
        raise UnknownNameError("tag", truncate_text(missing[0]), map(truncate_text, table.classes), "(--classes)")
    left_out = [name for name in table.classes if name not in classes]
    table, labels = select_classes(table, classes)
    findings: list[Finding] = [ClassesLeftOut(tuple(left_out), labels)] if left_out else []
    findings += [ClassNeverListed(name, nearest(name, left_out)) for name in missing]
    return table, findings
