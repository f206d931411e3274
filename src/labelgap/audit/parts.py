"""The audit of predictions in parts: what ``find_missing`` does, of more images than one machine should hold.

Parts are read one at a time. Kept are the known labels with their scores, a sample of the other scores, histograms of
all, and the best candidates of every class, so the result is that of the local audit. Where the parts have features of
a linear run, the heads of folds score them; otherwise the scores of the run itself count, which are right for images
that it was not trained on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.candidates import (
    FILE,
    KINDS,
    REVIEW_FILE,
    Audit,
    CandidateLimits,
    describe_review,
    rank_candidates,
    read_review_file,
    write_candidates,
    write_review_file,
)
from labelgap.audit.runs import describe_audit, prior_slopes
from labelgap.audit.scorers import AuditContext, HeadScorer, Scorer, train_run_heads
from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import make_folder
from labelgap.core.lock import LOCK_FILE, lock_folder
from labelgap.core.special import logit
from labelgap.data.addresses import ADDRESSES
from labelgap.data.dataset import Dataset
from labelgap.data.parts import PartFolder, StoredParts
from labelgap.inference.predictor import Predictor
from labelgap.labels import LabelTable
from labelgap.labels.io.formats import labels_of_lists, list_entries
from labelgap.training import Run, open_run
from labelgap.training.config import CONFIG_FILE
from labelgap.training.progress import Reporter

IMAGES_FILE = "images.parquet"


class PartTables(Mapping[str, LabelTable]):
    """The labels of every part, its own or those of ``data`` by name; and logits by the same run, a ``Scorer``."""

    def __init__(self, parts: StoredParts, run: Run, data: Dataset | None) -> None:
        if parts.manifest.predictor != Predictor(run).digest:
            address = parts.folder.address
            raise RunError(f"{address} holds predictions of another run than {run.path}, or of an earlier one.")
        self.parts, self.classes, self.width = parts, run.config.classes, len(run.config.classes)
        self.heads: HeadScorer | None = None  # of folds, which score instead of the run
        self.data: dict[str, tuple[str, int, int]] = {}  # name → split, row, row over all splits
        if data is not None:
            self.labels = LabelTable.concatenate([split.labels for split in data.splits], keep_names=False)
            named = ((name, split.name, row) for split in data.splits for row, name in enumerate(split.labels.images))
            self.data = {name: (split, row, number) for number, (name, split, row) in enumerate(named)}
        self.starts = np.cumsum([0, *parts.sizes.values()])
        self._scored = "", np.empty(0, dtype=np.float32)
        self._known: dict[str, tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int8]]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts.sizes)

    def __len__(self) -> int:
        return len(self.parts.sizes)

    def __getitem__(self, part: str) -> LabelTable:
        if part not in self._known:
            if own := [name for name in ("present", "absent") if name in self.parts.columns]:
                listed = self.parts.read(part, *own)
                table = labels_of_lists(list_entries(listed), self.classes, len(listed))
            else:
                places = list(enumerate(self.places(part)))
                at = np.array([row for row, place in places if place is not None], dtype=np.int64)
                chosen = self.labels.select([place[2] for _, place in places if place is not None])
                entries = at[chosen.rows], chosen.columns, chosen.values
                table = LabelTable.from_entries(*entries, self.classes, len(places))
            self._known[part] = table.starts, table.columns, table.values
        return LabelTable(*self._known[part], self.classes)

    def places(self, part: str) -> list[tuple[str, int, int] | None]:
        """Return where in the run's data each image of a part is: split, row, row over all splits; None for nowhere."""
        return [self.data.get(name) for name in self.parts.read(part, "image")["image"].to_pylist()]

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return the ``(B, K)`` logits of some rows of a part."""
        if self._scored[0] != split:  # it is read by its blocks
            self._scored = split, self._score(split)
        return self._scored[1][rows].copy()

    def _score(self, part: str) -> NDArray[np.float32]:
        if self.heads is not None:
            fold = [self.heads.fold[place[1]] if place and place[0] == "train" else -1 for place in self.places(part)]
            return self.heads.apply(self.parts.matrix(part, "feature"), np.array(fold, dtype=np.int64))
        logits = self.parts.matrix(part, "logit")
        if not self._calibrated:
            return logits
        odds = logit(self.parts.matrix(part, "probability"))
        return np.where(np.isnan(odds), logits, odds)  # a class that the run could not calibrate

    @cached_property
    def _calibrated(self) -> bool:
        """Whether no label of the parts is known, by which scores could be calibrated, and the run has done so."""
        return "probability" in self.parts.columns and not any(len(table.values) for table in self.values())


@dataclass(frozen=True, eq=False)
class PriorOfParts:
    """What a source of a prior says of the images of parts that are in the data, by their names; a ``Scorer``."""

    parts: PartTables
    said: NDArray[np.float32]  # (N, K), standardized, of the images of all splits
    width: int = 1

    def logits(self, split: str, rows: slice) -> NDArray[np.float32]:
        """Return what it says of some rows of a part; 0 where that is nothing."""
        places = np.array([-1 if place is None else place[2] for place in self.parts.places(split)[rows]])
        return np.where((places >= 0)[:, None], self.said[places], np.float32(0))


def find_missing_in_parts(
    run: Run | str | os.PathLike[str],
    predictions: str,
    *,
    data: Dataset | None = None,
    out: str | os.PathLike[str] | None = None,
    folds: int = 5,
    per_class: int = 2_000,
    limit: int = 100_000,
    seed: int = 0,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = True,
) -> Audit:
    """Rank the unknown labels of the images that ``labelgap predict`` has scored in parts; see ``find_missing``.

    Labels are those of ``data``, or of the run's own, by the names of images.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    stored = StoredParts(PartFolder(predictions))
    by_heads = "feature" in stored.columns and opened.config.protocol == "linear"
    loaded = data
    try:
        loaded = opened.load_data() if data is None else data
    except LabelGapError:  # of a run that was moved; it tells only which images the run was trained on
        if by_heads or "present" not in stored.columns:
            raise
    parts, reporter, limits = PartTables(stored, opened, loaded), Reporter(quiet), CandidateLimits(per_class, limit)
    if by_heads and loaded is not None:
        context = AuditContext(loaded, ("train",), folds, seed, device, workers, reporter, None, None)
        (parts.heads,) = train_run_heads([opened], context)
        parts.width = parts.heads.width
    sources: dict[str, PriorOfParts] = {}
    if loaded is not None and loaded.prior is not None:
        tables = {split.name: split.labels for split in loaded.splits}
        for name in loaded.prior.sources:
            said = loaded.prior.standardized(name, tables)
            sources[name] = PriorOfParts(parts, np.concatenate([said[split] for split in tables]))
    with reporter.bar("ranking", 3 * int(parts.starts[-1])):
        scorers: list[Scorer] = [parts, *sources.values()]
        ranking = rank_candidates(parts, scorers, limits, seed, advance=reporter.advance, priors=len(sources))
    places = (place for part in parts for place in parts.places(part)) if loaded is not None else ()
    trained = None if loaded is None else sum(place is not None and place[0] == "train" for place in places)
    if trained and not by_heads:  # a network says of what it has learned that hardly anything is missing
        ranking = replace(ranking, estimate=None)
    lists = {kind: getattr(ranking, kind) for kind in KINDS}
    rows = np.unique(np.concatenate([each.rows for each in lists.values()]))
    inside, tables, order = _candidate_images(parts, rows)
    folder = opened.path if out is None else Path(out)
    if not inside and (out is None or (folder / CONFIG_FILE).exists()):
        raise InputError(
            "these images are not the data of the run: name another folder for the candidates, --out FOLDER."
        )
    if (folder / REVIEW_FILE).exists() and read_review_file(folder).images is not None:
        raise InputError(f"{folder} holds a review of random images. Choose another folder with --out.")
    make_folder(folder)
    lists = {kind: replace(each, rows=order[np.searchsorted(rows, each.rows)]) for kind, each in lists.items()}
    about = {"data": dict(opened.config.data), "splits": list(tables), "folds": folds if by_heads else 0, "seed": seed}
    about["trained_images"] = trained
    metadata = describe_audit([opened], parts, limits, ranking, about)
    metadata["priors"] = dict(zip(sources, prior_slopes(ranking, 1), strict=True))
    with lock_folder(folder, "auditing", name=LOCK_FILE):
        if not inside or folder != opened.path:
            recipe = dict(opened.config.data)
            if not inside:  # the data of the review: the labels of the candidates by the addresses of their images
                path = folder.absolute() / IMAGES_FILE
                tables["train"].to_parquet(path)
                recipe = {"name": ADDRESSES, "path": os.fspath(path), "options": {}, "steps": []}
            write_review_file(folder, describe_review(folder, recipe, opened.config.classes))
            metadata["data"] = recipe
        return write_candidates(folder / FILE, lists, tables, metadata)


def _candidate_images(
    parts: PartTables, rows: NDArray[np.int64]
) -> tuple[bool, dict[str, LabelTable], NDArray[np.int64]]:
    """Return whether the images of some rows are the run's, their labels by split, and each row's place in these."""
    names, paths, labels = list[str](), list[str](), list[LabelTable]()
    address = "path" if "path" in parts.parts.columns else "image"
    for part, first, last in zip(parts, parts.starts, parts.starts[1:], strict=False):
        own = rows[(rows >= first) & (rows < last)] - first
        if len(own):
            table = parts.parts.read(part, *{"image", address}).take(own)
            names += table["image"].to_pylist()
            paths += table[address].to_pylist()
            labels.append(parts[part].select(own))
    places = [parts.data.get(name) for name in names]
    inside = bool(parts.data) and None not in places
    split = np.array([place[0] if inside and place else "train" for place in places], dtype="U5")
    every = LabelTable.concatenate(labels, keep_names=False)
    # an image of a source of its own is named by its address
    every = LabelTable(every.starts, every.columns, every.values, parts.classes, names if inside else paths)
    tables = {name: every.select(split == name) for name in dict.fromkeys(split.tolist())}
    place = np.empty(len(rows), dtype=np.int64)
    place[np.concatenate([np.flatnonzero(split == name) for name in tables])] = np.arange(len(rows))
    return inside, tables, place
