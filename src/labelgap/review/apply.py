"""Apply decisions: the observed labels with the reviewers' decisions over them, and a list of what changed.

Only decisions of people are applied unless other sources are named. Beside the table, ``NAME.provenance.csv`` lists
every label that differs from the observed one, with its source, author and time.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.files import atomic_path
from labelgap.core.text import quote_formulas
from labelgap.data.dataset import Dataset, Split
from labelgap.data.writers.formats import convert
from labelgap.labels import LabelTable, Revision, Revisions
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.revisions import HUMAN_SOURCES
from labelgap.review.folder import ReviewFolder
from labelgap.review.store import SOURCE, read_decisions

__all__ = ["ApplyResult", "apply_decisions", "provenance_path"]

_STATES: Final = {PRESENT: "present", ABSENT: "absent", UNKNOWN: "unknown"}
_FORMATS: Final = {".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class ApplyResult:
    """What ``apply_decisions`` wrote.

    Attributes:
        path: the table.
        provenance: the list of changes.
        data: the data with the new labels.
        changed: number of labels that differ from the observed ones, by source.
        decided: number of decisions of people.
        soft: number of soft targets of models, which are not labels and were left out.
    """

    path: Path
    provenance: Path
    data: Dataset
    changed: dict[str, int]
    decided: int
    soft: int


def provenance_path(path: Path) -> Path:
    """Return the path of the list of changes.

    Example:
        >>> provenance_path(Path("better.csv")).name
        'better.provenance.csv'
    """
    return path.with_name(f"{path.stem}.provenance.csv")


def apply_decisions(
    folder: ReviewFolder,
    out: Path,
    sources: Sequence[str] = (),
    *,
    force: bool = False,
    decided: Sequence[tuple[str, Revision]] | None = None,
) -> ApplyResult:
    """Write the table of a folder's data with decisions applied; the data themselves are never changed.

    A person's decision replaces the observed label. A model's revision fills only unknown labels, and counts up to the
    epoch that the run selected. The decisions are those of one moment, also while people are deciding.

    Args:
        folder: a run or a review.
        out: a ``.csv`` or ``.parquet`` file.
        sources: methods whose revisions to apply as well, as in the run's ``revisions.parquet``.
        force: replace existing files.
        decided: the decisions, as ``read_decisions`` returned them; read now when None.
    """
    table_format = _FORMATS.get(out.suffix.lower())
    if table_format is None:
        raise InputError(f"--out {out}: a table is written as .csv or .parquet.")
    revisions = _revisions(folder, sources, read_decisions(folder.path) if decided is None else decided)
    provenance = provenance_path(out)
    if provenance.exists() and not force:
        raise InputError(f"{provenance} already exists. Write to another file, or replace it with --force.")
    changes: list[tuple[str, Revision, int, int]] = []
    splits: dict[str, Split] = {}
    for split in folder.data.splits:
        _check_names(split, revisions[split.name])
        labels = split.labels.revised(revisions[split.name], [SOURCE, *sources])
        splits[split.name] = replace(split, labels=labels)
        changes += [(split.name, *change) for change in _changes(split.labels, labels, revisions[split.name])]
    data = replace(folder.data, **splits)  # type: ignore[arg-type]
    convert(data, table_format, out, force=force)
    _write_provenance(provenance, changes)
    every = [revision for table in revisions.values() for revision in table]
    return ApplyResult(
        path=out,
        provenance=provenance,
        data=data,
        changed=dict(Counter(revision.source for _, revision, _, _ in changes)),
        decided=sum(revision.source in HUMAN_SOURCES for revision in every),
        soft=sum(revision.target is not None for revision in every),
    )


def _revisions(
    folder: ReviewFolder, sources: Sequence[str], decided: Sequence[tuple[str, Revision]]
) -> dict[str, Revisions]:
    """Return the revisions to apply by split; those of a model are about train."""
    by_split: dict[str, list[Revision]] = {split.name: [] for split in folder.data.splits}
    for split, revision in decided:
        if split not in by_split:
            raise InputError(f"{folder.path} has decisions about {split!r}, a split that the data no longer have.")
        by_split[split].append(revision)
    revisions = {split: Revisions(made) for split, made in by_split.items()}
    if not sources:
        return revisions
    run = folder.run
    known = sorted(set(run.revisions.to_table()["source"].to_pylist())) if run is not None else []
    for name in sources:
        if name != SOURCE and name not in known:
            hint = "`labelgap revisions RUN list` lists the revisions." if known else "No method revised labels here."
            raise UnknownNameError("source", name, [*known, SOURCE], hint)
    if run is not None:
        selected = run.revisions.until(int(run.metrics["best_epoch"])) if run.finished else run.revisions
        revisions["train"] = selected + revisions["train"]
    return revisions


def _check_names(split: Split, revisions: Revisions) -> None:
    table = revisions.to_table()
    for column, known in (("image", split.labels.images), ("class", split.labels.classes)):
        names = set(known)
        lost = next((name for name in table[column].to_pylist() if name not in names), None)
        if lost is not None:
            raise InputError(
                f"a label of {lost} was revised, but {split.name} no longer has that {column}: the data have changed."
            )


def _changes(before: LabelTable, after: LabelTable, revisions: Revisions) -> list[tuple[Revision, int, int]]:
    """Return every changed label as (revision that changed it, old value, new value)."""
    rows = {name: number for number, name in enumerate(before.images)}
    columns = {name: number for number, name in enumerate(before.classes)}
    effective: dict[tuple[int, int], Revision] = {}
    for revision in revisions:
        if revision.target is None:
            position = (rows[revision.image], columns[revision.class_name])
            previous = effective.get(position)
            if previous is None or revision.source in HUMAN_SOURCES or previous.source not in HUMAN_SOURCES:
                effective[position] = revision
    if not effective:
        return []
    revised = sorted({row for row, _ in effective})
    index = {row: number for number, row in enumerate(revised)}
    old, new = (table.batch(revised).numpy() for table in (before, after))
    values = (
        (revision, int(old[index[row], column]), int(new[index[row], column]))
        for (row, column), revision in sorted(effective.items(), key=lambda pair: pair[0])
    )
    return [change for change in values if change[1] != change[2]]


def _write_provenance(path: Path, changes: Sequence[tuple[str, Revision, int, int]]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["image", "split", "class", "before", "after", "source", "author", "time", "epoch"])
        for split, revision, before, after in changes:
            time = "" if revision.time is None else revision.time.isoformat(timespec="seconds")
            origin = [revision.source, revision.author or "", time, "" if revision.epoch is None else revision.epoch]
            cells = [revision.image, split, revision.class_name, _STATES[before], _STATES[after], *origin]
            writer.writerow(quote_formulas(cells))
