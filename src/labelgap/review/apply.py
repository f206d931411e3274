"""From decisions to a better table: what was observed, with what people said laid over it, and a list of what changed.

Only people's decisions are applied unless other sources are named. The table is written as any table is; beside it
``NAME.provenance.csv`` says of every label that is not as it was observed who said so and when.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.files import atomic_path
from labelgap.data.dataset import Dataset, Split
from labelgap.data.writers.formats import convert
from labelgap.labels import LabelTable, Revision, Revisions
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.labels.revisions import HUMAN_SOURCES
from labelgap.review.folder import ReviewFolder
from labelgap.review.store import SOURCE, decisions

__all__ = ["ApplyResult", "apply_decisions", "provenance_path"]

_STATES: Final = {PRESENT: "present", ABSENT: "absent", UNKNOWN: "unknown"}
_FORMATS: Final = {".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class ApplyResult:
    """What was written.

    Attributes:
        path: the table.
        provenance: the list of what changed.
        data: the data with the new labels.
        changed: labels that are not as they were observed, by source.
        decided: decisions of people that stand.
        soft: soft targets of models, which are no labels and were passed over.
    """

    path: Path
    provenance: Path
    data: Dataset
    changed: dict[str, int]
    decided: int
    soft: int


def provenance_path(path: Path) -> Path:
    """Return where the list of what changed lies.

    Example:
        >>> provenance_path(Path("better.csv")).name
        'better.provenance.csv'
    """
    return path.with_name(f"{path.stem}.provenance.csv")


def apply_decisions(
    folder: ReviewFolder, out: Path, sources: Sequence[str] = (), *, force: bool = False
) -> ApplyResult:
    """Write the table of a folder's data with decisions laid over it; the data themselves are never touched.

    A person's decision replaces what was observed; a model's revision fills only what is unknown, and counts as far as
    the epoch that the run kept.

    Args:
        folder: a run or a review.
        out: a ``.csv`` or ``.parquet`` file.
        sources: whose revisions to apply beside people's: names of methods, as in the run's ``revisions.parquet``.
        force: whether files that are there already may be replaced.
    """
    form = _FORMATS.get(out.suffix.lower())
    if form is None:
        raise InputError(f"--out {out}: a table is written as .csv or .parquet.")
    made = _revisions(folder, sources)
    provenance = provenance_path(out)
    if provenance.exists() and not force:
        raise InputError(f"{provenance} is there already. Write to another file, or replace it with --force.")
    wanted = [SOURCE, *sources]
    soft = sum(int(table.to_table()["target"].is_valid().to_numpy().sum()) for table in made.values())
    changes: list[tuple[str, Revision, int, int]] = []
    splits: dict[str, Split] = {}
    for split in folder.data.splits:
        said = _of(split, made)
        labels = split.labels.revised(said, wanted)
        splits[split.name] = replace(split, labels=labels)
        changes += [(split.name, *change) for change in _changed(split.labels, labels, said)]
    data = replace(folder.data, **splits)  # type: ignore[arg-type]
    convert(data, form, out, force=force)
    _write(provenance, changes)
    counted: dict[str, int] = {}
    for _, revision, _, _ in changes:
        counted[revision.source] = counted.get(revision.source, 0) + 1
    return ApplyResult(out, provenance, data, counted, sum(map(len, _people(made))), soft)


def _revisions(folder: ReviewFolder, sources: Sequence[str]) -> dict[str, Revisions]:
    """Return what is to be applied to each split: a model's revisions are about train."""
    made = {split.name: decisions(folder.path, split.name) for split in folder.data.splits}
    if sum(map(len, made.values())) != len(decisions(folder.path)):
        raise InputError(f"{folder.path} has decisions about a split that {folder.data.name} no longer has.")
    if not sources:
        return made
    run = folder.run
    known = sorted(set(run.revisions.to_table()["source"].to_pylist())) if run is not None else []
    for name in sources:
        if name != SOURCE and name not in known:
            hint = "`labelgap revisions RUN list` shows what there is." if known else "No method revised labels here."
            raise UnknownNameError("source", name, [*known, SOURCE], hint)
    if run is not None:
        kept = run.revisions.until(int(run.metrics["best_epoch"])) if run.finished else run.revisions
        made["train"] = kept + made["train"]
    return made


def _people(made: dict[str, Revisions]) -> list[list[Revision]]:
    return [[revision for revision in said if revision.source in HUMAN_SOURCES] for said in made.values()]


def _of(split: Split, made: dict[str, Revisions]) -> Revisions:
    """Return a split's revisions; one about an image that the data have lost, or never had there, is an error."""
    said = made[split.name]
    known = set(split.labels.images)
    lost = next((name for name in said.to_table()["image"].to_pylist() if name not in known), None)
    if lost is not None:
        raise InputError(
            f"a label of {lost} was revised, which is no longer in {split.name}: the data have changed since."
        )
    return said


def _changed(before: LabelTable, after: LabelTable, said: Revisions) -> list[tuple[Revision, int, int]]:
    """Return every label that is not as it was, with the revision that made it so."""
    row = {name: number for number, name in enumerate(before.images)}
    column = {name: number for number, name in enumerate(before.classes)}
    last: dict[tuple[int, int], Revision] = {}
    for revision in said:
        if revision.target is None:
            where = (row[revision.image], column[revision.class_name])
            standing = last.get(where)
            if standing is None or revision.source in HUMAN_SOURCES or standing.source not in HUMAN_SOURCES:
                last[where] = revision
    rows = sorted({number for number, _ in last})
    at = {number: order for order, number in enumerate(rows)}
    old, new = (table.batch(rows).numpy() if rows else None for table in (before, after))
    found = []
    for (number, place), revision in sorted(last.items(), key=lambda pair: pair[0]):
        assert old is not None and new is not None
        was, now = int(old[at[number], place]), int(new[at[number], place])
        if was != now:
            found.append((revision, was, now))
    return found


def _write(path: Path, changes: Sequence[tuple[str, Revision, int, int]]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["image", "split", "class", "before", "after", "source", "author", "time", "epoch"])
        for split, revision, was, now in changes:
            time = "" if revision.time is None else revision.time.isoformat(timespec="seconds")
            said = [revision.source, revision.author or "", time, revision.epoch if revision.epoch is not None else ""]
            writer.writerow([revision.image, split, revision.class_name, _STATES[was], _STATES[now], *said])
