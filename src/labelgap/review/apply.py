"""Apply decisions: the observed labels with the reviewers' decisions over them, and a list of who decided what.

A CSV or Parquet file of labels keeps its layout, columns and row order. Decisions of several reviews are merged; where
two contradict each other, the newer one counts. ``NAME.provenance.csv`` lists every label that a person decided, now or
before, and every one that a model changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.text import fold_name, truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.readers.table import open_table
from labelgap.data.writers.formats import check_target, convert
from labelgap.labels import LabelTable, Revision, Revisions
from labelgap.labels.codes import UNKNOWN
from labelgap.labels.io.rewrite import RewriteResult, rewrite_table
from labelgap.labels.io.table_file import TableOptions
from labelgap.labels.revisions import ProvenanceEntry, provenance_path, read_provenance, write_provenance
from labelgap.review.acceptance import MACHINE
from labelgap.review.additions import check_class_name, taken_names
from labelgap.review.candidates import Candidates
from labelgap.review.folder import ReviewFolder, drawn_rows
from labelgap.review.store import SOURCE, read_classes, read_decisions


@dataclass(frozen=True)
class RevisedLabel:
    """A revision, and the run or review it comes from."""

    split: str
    revision: Revision
    run: str


def merge_decisions(
    folders: Sequence[ReviewFolder], decided: Sequence[Sequence[tuple[str, Revision]]]
) -> tuple[list[RevisedLabel], int]:
    """Return the newest decision for each label, by time, found by image name; and how many contradicted."""
    data = folders[0].data
    places = [(split.name, {*split.labels.images}) for split in data.splits]
    spelling = {fold_name(name): name for name in data.classes}
    merged: dict[tuple[str, str, str], list[RevisedLabel]] = {}
    for folder, made in zip(folders, decided, strict=True):
        names = _class_names(data, folder.path, {revision.class_name for _, revision in made}, spelling)
        for split, revision in made:
            name, image = names[revision.class_name], revision.image
            found = [place for place, images in places if image in images]
            if not found:
                raise InputError(f"{folder.path} has a decision about {image}, which {data.name} does not have.")
            place = split if split in found else found[0]
            each = RevisedLabel(place, replace(revision, class_name=name), str(folder.path))
            merged.setdefault((place, image, name), []).append(each)
    contradicted = sum(len({each.revision.value for each in said}) > 1 for said in merged.values())
    return sorted((max(said, key=_time) for said in merged.values()), key=_time), contradicted


def _class_names(data: Dataset, path: Path, decided: set[str], spelling: dict[str, str]) -> dict[str, str]:
    """Return the names that the decided classes of a review have in the table; the first ``spelling`` counts."""
    names = {name: name for name in decided & {*data.classes}}
    others = sorted(decided - {*names})
    added = read_classes(path) if others else []
    for name in others:
        if name not in added:
            raise InputError(
                f"{path} has a decision about the class {truncate_text(name)!r}, which {data.name} does not have."
            )
        if fold_name(name) not in spelling:
            spelling[fold_name(name)] = check_class_name(name, (), taken=taken_names(data))
        names[name] = spelling[fold_name(name)]
    return names


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
    """Return the data with revised labels, those of models first, and the labels that are decided or changed now."""
    splits, entries = {}, list[ProvenanceEntry]()
    for split in data.splits:
        own = [each for each in revised if each.split == split.name]
        labels = split.labels.revised(Revisions(each.revision for each in own), sources)
        splits[split.name] = replace(split, labels=labels)
        entries += _entries(split.labels, labels, own)
    return replace(data, **splits), entries  # type: ignore[arg-type]


def _entries(before: LabelTable, after: LabelTable, revised: Sequence[RevisedLabel]) -> list[ProvenanceEntry]:
    rows = {name: number for number, name in enumerate(before.images)}
    columns = {name: number for number, name in enumerate(before.classes)}
    labels = [each for each in revised if each.revision.target is None]
    # what people decided comes after what models revised
    effective = {(rows[each.revision.image], columns[each.revision.class_name]): each for each in labels}
    places = sorted(effective)
    at = [row for row, _ in places], [column for _, column in places]
    entries = []
    for place, old, new in zip(places, before.codes_at(*at).tolist(), after.codes_at(*at).tolist(), strict=True):
        each = effective[place]
        entry = ProvenanceEntry(each.split, replace(each.revision, value=new), old, each.run)
        if entry.by_person or old != new:
            entries.append(entry)
    return entries


@dataclass(frozen=True)
class ApplyResult:
    """What ``apply_decisions`` wrote."""

    path: Path  # the table
    provenance: Path  # the list of who decided what
    data: Dataset  # the data with the new labels
    changed: dict[str, int]  # number of labels that differ from the observed ones, by source
    decided: int  # number of labels that people decided
    contradicted: int  # of these, labels on which two reviews contradict each other
    soft: int  # number of soft targets of models, which are not labels and were left out
    kept: int  # "can't tell" about labels that stay as they are, since the lists of the table cannot say unknown
    # what the table's own format had no room for; None where it is written in labelgap's
    own_format: RewriteResult | None
    added: tuple[str, ...]  # classes that people added, and the table did not have
    # the tables of val and test that were written too, by the name of the split: where these are files of their own,
    # and are not as they were
    others: dict[str, Path]


def apply_decisions(
    folders: ReviewFolder | Sequence[ReviewFolder],
    out: Path,
    sources: Sequence[str] = (),
    *,
    force: bool = False,
    decided: Sequence[Sequence[tuple[str, Revision]]] | None = None,
    accepted: Sequence[Revision] = (),
) -> ApplyResult:
    """Write the table of the first folder's data with decisions applied; the data themselves are never changed.

    A person's decision replaces the observed label. A model's revision, of the methods in ``sources``, fills only
    unknown labels, and counts up to the epoch that the run selected. ``decided`` of each folder, as ``read_decisions``
    returned them, are read now when not given. ``accepted`` are labels of train by the machine of the first folder.
    """
    given = [folders] if isinstance(folders, ReviewFolder) else list(folders)
    data, table_format = given[0].data, _table_format(out, given[0].data)
    provenance = provenance_path(out)
    if provenance.exists() and not force:
        raise InputError(f"{provenance} already exists. Write to another file, or replace it with --force.")
    check_target(data, out, force)
    merged, contradicted = merge_decisions(given, decided or [read_decisions(folder.path) for folder in given])
    sure = [each for each in merged if each.revision.value != UNKNOWN]
    names = dict.fromkeys(each.revision.class_name for each in sure)
    added = tuple(name for name in names if name not in data.classes)
    people = [each for each in merged if each.revision.class_name in (*data.classes, *added)]
    own, kept = _writes_own_format(data, table_format, added), 0
    if own and data.recipe["options"].get("unlisted") == "absent":
        kept, people = len(people) - len(sure), sure
    machine = [RevisedLabel("train", each, str(given[0].path)) for each in accepted]
    revised = [*model_revisions(given, sources), *machine, *people]
    new, entries = revise(_with_classes(data, added), revised, [SOURCE, MACHINE, *sources])
    changed = [entry for entry in entries if entry.before != entry.revision.value]
    if own:
        own_format, others = _rewrite_tables(data, changed, added, out, force)
    else:
        convert(new, table_format, out, force=force)
        own_format, others = None, {}
    write_provenance(provenance, [*entries, *_earlier_entries(data, entries)])
    return ApplyResult(
        path=out,
        provenance=provenance,
        data=new,
        changed=dict(Counter(entry.revision.source for entry in changed)),
        decided=len(merged),
        contradicted=contradicted,
        soft=sum(each.revision.target is not None for each in revised),
        kept=kept,
        own_format=own_format,
        added=added,
        others=others,
    )


def _with_classes(data: Dataset, names: Sequence[str]) -> Dataset:
    classes, splits = (*data.classes, *names), {}
    for split in data.splits if names else ():
        truth = None if split.truth is None else split.truth.with_classes(classes)
        splits[split.name] = replace(split, labels=split.labels.with_classes(classes), truth=truth)
    return replace(data, **splits)  # type: ignore[arg-type]


def _table_format(out: Path, data: Dataset) -> str:
    formats, name = {".csv": "csv", ".parquet": "parquet"}, str(data.recipe.get("name"))
    if name in formats.values():
        formats = {Path(str(data.recipe.get("path") or "")).suffix.lower(): name, **formats}
    table_format = formats.get(out.suffix.lower())
    if table_format is None:
        raise InputError(f"--out {out}: a table is written as .csv or .parquet.")
    return table_format


def _writes_own_format(data: Dataset, table_format: str, added: Sequence[str] = ()) -> bool:
    """Whether the table can be written as the data's own file, in which lists may be unable to say unknown."""
    if data.recipe.get("name") != table_format or data.recipe["steps"]:
        return False
    return not added or data.recipe["options"].get("unlisted") != "absent"


def _earlier_entries(data: Dataset, entries: Sequence[ProvenanceEntry]) -> list[ProvenanceEntry]:
    """Return what people decided or accepted for the table that is the data now, but not what was decided again."""
    source, label = data.recipe.get("path"), attrgetter("revision.image", "revision.class_name")
    earlier, again = read_provenance(provenance_path(Path(source))) if source else [], {*map(label, entries)}
    kept = (entry for entry in earlier if entry.by_person or entry.revision.source == MACHINE)
    return [entry for entry in kept if label(entry) not in again]


def _rewrite_tables(
    data: Dataset, changed: Sequence[ProvenanceEntry], added: Sequence[str], out: Path, force: bool
) -> tuple[RewriteResult, dict[str, Path]]:
    """Write the new labels into the data's own format; val and test of their own go to NAME.val.csv if they change."""
    changes: dict[str, dict[str, int]] = {}
    for entry in changed:
        changes.setdefault(entry.revision.image, {})[entry.revision.class_name] = entry.revision.value
    given: Mapping[str, Any] = data.recipe["options"]
    options = TableOptions.of(given)

    def rewrite(path: Path, place: Path) -> RewriteResult:
        return rewrite_table(open_table(path, data.recipe["options"]), place, changes, options, added=added)

    others = {
        name: out.with_name(f"{out.stem}.{name}{out.suffix}")
        for name in ("val", "test")
        if given.get(name) and (options.zeros == "unknown" or any(entry.split == name for entry in changed))
    }
    for place in others.values():
        check_target(data, place, force)
    for name, place in others.items():
        rewrite(Path(given[name]), place)
    return rewrite(Path(data.recipe["path"]), out), others


def decided_images(folder: ReviewFolder) -> Dataset:
    """Return the random images of a review, all of whose labels are decided or were known, to measure a model on.

    A class counts once it is decided for all images: other known labels are known because somebody chose to tag them.
    """
    if not folder.random:
        raise InputError(
            f"{folder.path} is not a review of random images, and labels that a model chose measure nothing. Random "
            f"ones: labelgap review {folder.path} --random 300"
        )
    decided = [each for each in read_decisions(folder.path) if each[1].class_name in folder.classes]
    data, _ = revise(folder.data, merge_decisions([folder], [decided])[0], [SOURCE])
    candidates = Candidates(folder.path / CANDIDATES, folder.classes)
    split, rows = data.split(candidates.columns.images[0][0]), drawn_rows(folder)
    place = {split.labels.images[row]: number for number, row in enumerate(rows.tolist())}
    answered = {(revision.image, revision.class_name) for _, revision in decided}
    waiting = np.zeros((len(rows), len(data.classes)), dtype=np.bool_)
    for _, image, name in map(candidates.key, range(len(candidates))):
        waiting[place[image], data.classes.index(name)] |= (image, name) not in answered
    images, classes = np.asarray(~waiting.any(axis=1)), np.asarray(~waiting.any(axis=0))
    if not images.any() and not classes.any():
        raise InputError(
            f"{folder.path}: of {len(rows):,} random images none has all its labels decided yet, and no class is "
            f"decided for all of them: labelgap review {folder.path}"
        )
    labels = split.labels.select(rows)
    labels = labels.keep(images[labels.rows] | classes[labels.columns])
    kept = np.flatnonzero(images | classes.any())
    measured = Split(split.name, split.images.select(rows[kept]), labels.select(kept))
    return replace(data, train=measured, val=None, test=None)
