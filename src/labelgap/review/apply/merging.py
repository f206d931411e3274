"""What people decided and models revised, of several reviews and runs, as one revision for each label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable, Revision, Revisions
from labelgap.labels.revisions import HUMAN_SOURCES, ProvenanceEntry
from labelgap.review.folder import ReviewFolder
from labelgap.review.new_classes.merging import ClassSpellings
from labelgap.review.store import SOURCE


@dataclass(frozen=True)
class RevisedLabel:
    """A revision, and the run or review it comes from."""

    split: str
    revision: Revision
    run: str


def merge_decisions(
    folders: Sequence[ReviewFolder], decided: Sequence[Sequence[tuple[str, Revision]]]
) -> tuple[list[RevisedLabel], int]:
    """Return one decision for each label, the newest, in the order of time; and how many labels have contradictions.

    An image that has moved to another split since is found by its name.
    """
    data = folders[0].data
    places, spellings = [(split.name, {*split.labels.images}) for split in data.splits], ClassSpellings(data)
    merged: dict[tuple[str, str, str], list[RevisedLabel]] = {}
    for folder, made in zip(folders, decided, strict=True):
        for split, revision in spellings.rename(folder.path, made):
            image = revision.image
            found = [name for name, images in places if image in images]
            if not found:
                raise InputError(f"{folder.path} has a decision about {image}, which {data.name} does not have.")
            place = split if split in found else found[0]
            each = RevisedLabel(place, revision, str(folder.path))
            merged.setdefault((place, image, revision.class_name), []).append(each)
    contradicted = sum(len({each.revision.value for each in said}) > 1 for said in merged.values())
    newest = [max(said, key=_time) for said in merged.values()]
    return sorted(newest, key=_time), contradicted


def _time(each: RevisedLabel) -> float:
    return 0.0 if each.revision.time is None else each.revision.time.timestamp()


def model_revisions(folders: Sequence[ReviewFolder], sources: Sequence[str]) -> list[RevisedLabel]:
    """Return what the models of some methods revised; it is about train."""
    runs = [folder.run for folder in folders if folder.run is not None and sources]
    known = sorted({name for run in runs for name in run.revisions.to_table()["source"].to_pylist()})
    for name in sources:
        if name != SOURCE and name not in known:
            hint = "`labelgap revisions RUN list` lists the revisions." if known else "No method revised labels here."
            raise UnknownNameError("source", name, [*known, SOURCE], hint)
    found: list[RevisedLabel] = []
    for run in runs:
        selected = run.revisions.until(int(run.metrics["best_epoch"])) if run.finished else run.revisions
        found += [RevisedLabel("train", each, str(run.path)) for each in selected if each.source in sources]
    return found


def revise(
    data: Dataset, revised: Sequence[RevisedLabel], sources: Sequence[str]
) -> tuple[Dataset, list[ProvenanceEntry]]:
    """Return the data with revised labels, and the labels that a person decided or a model changed."""
    splits, entries = {}, list[ProvenanceEntry]()
    for split in data.splits:
        own = [each for each in revised if each.split == split.name]
        labels = split.labels.revised(Revisions(each.revision for each in own), sources)
        splits[split.name] = replace(split, labels=labels)
        entries += _entries(split.labels, labels, own)
    return replace(data, **splits), entries  # type: ignore[arg-type]


def _entries(before: LabelTable, after: LabelTable, revised: Sequence[RevisedLabel]) -> list[ProvenanceEntry]:
    """Return the entries of one split, in the order of rows and classes."""
    rows = {name: number for number, name in enumerate(before.images)}
    columns = {name: number for number, name in enumerate(before.classes)}
    effective: dict[tuple[int, int], RevisedLabel] = {}
    for each in revised:
        if each.revision.target is None:
            position = (rows[each.revision.image], columns[each.revision.class_name])
            previous = effective.get(position)
            if (
                previous is None
                or each.revision.source in HUMAN_SOURCES
                or previous.revision.source not in HUMAN_SOURCES
            ):
                effective[position] = each
    places = sorted(effective)
    old, new = (
        table.codes_at([row for row, _ in places], [column for _, column in places]) for table in (before, after)
    )
    entries = []
    for place, observed, value in zip(places, old.tolist(), new.tolist(), strict=True):
        each = effective[place]
        entry = ProvenanceEntry(each.split, replace(each.revision, value=value), observed, each.run)
        if entry.by_person or observed != value:
            entries.append(entry)
    return entries
