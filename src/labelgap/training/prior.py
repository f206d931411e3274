r"""What a training makes of a prior: each source is calibrated, and unknown labels get soft targets.

Let m be the out-of-fold log-odds of a linear head that has not seen the prior, and :math:`z_j` what the source j says,
in standard deviations of its class. Whether a label of the class k is *observed* present follows

.. math:: P = \sigma\bigl(\alpha\, m + b_k + \sum_j \beta_{jk} z_j\bigr), \qquad \beta_{jk} \sim N(\beta_j, \tau^2)

with :math:`\beta_j \ge 0` of all classes. A source counts with :math:`\max(0, \beta_{jk} - s_{jk})`, s its standard
error, and not at all where neither its mean over classes nor a single class is more than chance: what the known labels
contradict, or hardly support, counts nothing. So the known labels calibrate a source where
there are some, all other classes lend theirs where there are few, and m says how often a label is present that nobody
gave. Absents that a person decided on likely labels are left out, as no random sample; those of random images count.
The label model (``metrics.label_model``) makes probabilities t of the sums.

An unknown label of which a source that counts says something counts as present with the weight :math:`\max(0, 2t - 1)`:
of t for it and 1 − t against it so much remains. What is probably absent is left to the method, whose rule for unknown
labels serves it better: with targets for these labels too `em` lost 3 to 6 points on VOC (docs/results/prior.md). A
method that ignores unknown labels (`iu`, `bce`) has no such rule: there t is the target of each of them.
Where fewer than five labels of the images that it speaks of are known to be present there is nothing to calibrate by,
and the sources are believed as they stand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import RunError
from labelgap.core.special import expit
from labelgap.core.stored import damaged, parse_json, reading, validate
from labelgap.core.tensors import read_tensors, write_tensors
from labelgap.data.dataset import Dataset
from labelgap.data.prior import Prior
from labelgap.labels import PRESENT, UNKNOWN, LabelTable, SoftLabels
from labelgap.losses import describe_method
from labelgap.losses.assume_negative import IgnoreUnknown, SmoothedIgnoreUnknown
from labelgap.metrics.label_model import MIN_SLOPE, LabelModel, logistic_line
from labelgap.training.auto import (
    FOLDS,
    NEWTON,
    NEWTON_LABELS,
    SearchSpace,
    auto_methods,
    candidate_configs,
    only_prior,
)
from labelgap.training.config import RunConfig
from labelgap.training.folds import FoldTask, assign_folds, fold_groups, head_config, out_of_fold_logits, select_rows
from labelgap.training.history import PriorRecord, SourceRecord, finite
from labelgap.training.reviewed_labels import leave_out_ranked_absents
from labelgap.training.run_files import PRIOR_FILE
from labelgap.training.search import search_heads, selection_score
from labelgap.training.selection import Selection, choose_selection
from labelgap.training.teacher import SMOOTHING

BINS: Final = 10
_SPREAD: Final = 0.5  # τ
_CHANCE: Final = 0.02  # that a source which says nothing counts
_MARGIN: Final = 0.005  # of an average precision: a prior that is optional must bring more
_STEPS: Final = 50
EVERY: Final = "iu"
"""The method of a head that learns the target of every unknown label; of its own it has no rule for them."""
_REMEDY: Final = "Train into a new folder."
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class CalibratedPrior:
    """The soft labels, None where they are not used, and what is reported of each source."""

    soft: SoftLabels | None
    record: PriorRecord

    def __str__(self) -> str:
        record = self.record
        if not record.calibrated:
            return "too few labels are known to judge the prior: it is believed as it stands, right or wrong"
        if not record.sources:
            few = f"train has fewer than {FOLDS} images that are not duplicates"
            return f"the prior is not used: {few}, or no label of it is unknown"
        if not any(each.counts for each in record.sources):
            return "the prior is not used: the known labels follow no source, or no source speaks of them"
        why = "nothing could judge it"
        if record.score is not None and record.score_without is not None:
            scores = f"{100 * record.score:.1f} with it and {100 * record.score_without:.1f} without"
            why = f"a linear head ranks the known labels of {record.judge} with an average precision of {scores}"
        counted = ", ".join(f"{each.source} {each.mean_slope:.2f}" for each in record.sources)
        used = "used" if self.soft is not None else "not used"
        return f"the prior is {used}; {why}; log-odds per standard deviation: {counted}"

    def save(self, folder: Path, digest: str) -> None:
        """Write it to the folder of a run; ``digest`` is that of the prior."""
        tensors = {} if self.soft is None else {k: torch.from_numpy(v) for k, v in self.soft._asdict().items()}
        metadata = {"prior": digest, "record": json.dumps(self.record.model_dump())}
        write_tensors(folder / PRIOR_FILE, tensors, metadata)

    @classmethod
    def load(cls, folder: Path, digest: str, labels: LabelTable) -> CalibratedPrior | None:
        """Read that of a run to resume; None where there is none yet, an error where the prior has changed."""
        path = folder / PRIOR_FILE
        if not path.exists():
            return None
        tensors, metadata = read_tensors(path, remedy=_REMEDY)
        if metadata.get("prior") != digest:
            raise RunError(f"{folder} was started with another prior. {_REMEDY}")
        with reading(path, _REMEDY):
            record = validate(parse_json(metadata["record"].encode()), PriorRecord, path, _REMEDY)
            soft = SoftLabels(tensors["target"].numpy(), tensors["weight"].numpy()) if tensors else None
        for part in soft or ():
            if part.shape != labels.shape or part.dtype != np.float32 or not ((part >= 0) & (part <= 1)).all():
                raise damaged(path, "it is of other images or classes", _REMEDY)
        return cls(soft, record)


@dataclass(frozen=True, eq=False)
class Calibration:
    """How probably every label is present, ``(N, K)``, of which unknown ones sources that count say something."""

    chance: NDArray[np.float64]
    told: NDArray[np.bool_]
    sources: list[SourceRecord]

    def soft(self, *, every: bool) -> SoftLabels:
        """Return the target of ``every`` label that is told, or of those alone that are probably present."""
        weight = self.told * (1.0 if every else np.maximum(0.0, 2 * self.chance - 1))
        target = np.where((weight > 0) & (not every), 1.0, self.chance)
        return SoftLabels(target.astype(np.float32), weight.astype(np.float32))


def calibrate(prior: Prior, labels: LabelTable, logits: NDArray[np.float32]) -> Calibration:
    """Calibrate the sources by known labels and out-of-fold ``logits`` (N, K)."""
    said = [prior.of_table(source, labels) for source in prior.sources]
    scores = np.stack([prior.standardized(source, {"": labels})[""] for source in prior.sources]).astype(np.float64)
    codes = labels.to_dense()
    present = codes == PRESENT
    values = np.concatenate([logits[None].astype(np.float64), scores]).reshape(1 + len(scores), -1)
    slopes = np.zeros(len(values))
    if present.any() and not present.all():
        slopes, _ = logistic_line(values, present.ravel(), min_slopes=(MIN_SLOPE, *[0.0] * len(scores)))
    classes = range(codes.shape[1])
    found = [class_slopes(slopes[0] * logits[:, k], scores[:, :, k], present[:, k], slopes[1:]) for k in classes]
    own, error = (np.stack(each, axis=1) for each in zip(*found, strict=True))
    evident = (own / error).max(axis=1) > NormalDist().inv_cdf(1 - _CHANCE / 2 / len(classes))
    evident |= (own / error).mean(axis=1) > NormalDist().inv_cdf(1 - _CHANCE / 2) / math.sqrt(len(classes))
    counted = np.where(evident[:, None], np.maximum(0.0, own - error), 0.0)
    odds = slopes[0] * logits + np.einsum("jk,jnk->nk", counted, scores)
    model = LabelModel.fit(odds, codes) if counted.any() else None
    counted = counted if model is not None else 0 * counted
    chance = present.astype(np.float64) if model is None else model.posterior(odds, codes)
    unknown, records = codes == UNKNOWN, list[SourceRecord]()
    for source, values_said, score, slope in zip(prior.sources, said, scores, counted, strict=True):
        added = 0
        if model is not None:
            added = int((unknown & (chance >= 0.5) & (model.posterior(odds - slope * score, codes) < 0.5)).sum())
        records.append(_record(source, values_said, slope, chance, added))
    told = unknown & np.any(~np.isnan(said) & (counted > 0)[:, None], axis=0)
    return Calibration(chance, told, records)


def believe(prior: Prior, labels: LabelTable) -> CalibratedPrior:
    """Take the mean of what the sources say of an unknown label as its target, where too few labels judge them."""
    said = np.stack([prior.of_table(source, labels) for source in prior.sources])
    heard = ~np.isnan(said)
    mean = np.nansum(said, axis=0) / np.maximum(heard.sum(axis=0), 1)
    none, nobody_knows = np.zeros(len(labels.classes)), np.full(labels.shape, np.nan)
    records = [_record(name, each, none, nobody_knows, 0) for name, each in zip(prior.sources, said, strict=True)]
    target = SMOOTHING + (1 - 2 * SMOOTHING) * mean
    weight = np.any(heard, axis=0) & (labels.to_dense() == UNKNOWN)
    soft = SoftLabels(target.astype(np.float32), weight.astype(np.float32))
    return CalibratedPrior(soft, PriorRecord(used=True, calibrated=False, sources=records))


def class_slopes(
    offset: Floats, scores: Floats, present: NDArray[np.bool_], center: Floats
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how many log-odds a standard deviation of each source is worth in a class, and its error, ``(J,)`` each.

    ``offset`` ``(N,)`` are the log-odds without a source, ``scores`` ``(J, N)`` and ``center`` the slopes of all
    classes. The posterior is found by Newton's method, with steps of at most 1.
    """
    design = np.concatenate([np.ones((1, len(offset))), scores])
    mean = np.array([0.0, *center])
    precision = np.array([1e-4, *[_SPREAD**-2] * len(center)])
    found = mean.copy()
    for _ in range(_STEPS):
        p = expit(offset + found @ design)
        curvature = (design * (p * (1 - p))) @ design.T + np.diag(precision)
        step = np.linalg.solve(curvature, design @ (p - present) + precision * (found - mean))
        found -= np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-8:
            break
    error = np.sqrt(np.diag(np.linalg.inv(curvature)))
    return found[1:], error[1:]


def _record(
    source: str, said: NDArray[np.float32], slopes: NDArray[np.float64], chance: NDArray[np.float64], added: int
) -> SourceRecord:
    """Return what is reported of a source: what it is worth, and how often its "present at p" is present."""
    heard = ~np.isnan(said)
    place = np.clip((said[heard] * BINS).astype(np.int64), 0, BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    sums = [np.bincount(place, weights, minlength=BINS) for weights in (said[heard], chance[heard])]
    curve = [
        (int(count), finite(total / count if count else np.nan), finite(share / count if count else np.nan))
        for count, total, share in zip(counts, *sums, strict=True)
    ]
    called = said >= 0.5  # false where it says nothing
    right = finite(float(chance[called].mean())) if called.any() else None
    sizes = {"labels": int(heard.sum()), "called": int(called.sum()), "added": added}
    return SourceRecord(source=source, right=right, slopes=slopes.tolist(), curve=curve, **sizes)


def ignores_unknown(method: str) -> bool:
    """Return whether an unknown label costs nothing by a method."""
    return issubclass(describe_method(method).loss_class, IgnoreUnknown | SmoothedIgnoreUnknown)


def lay_prior(
    data: Dataset, config: RunConfig, features: Mapping[str, Tensor], device: torch.device, *, optional: bool
) -> CalibratedPrior:
    """Calibrate the prior of data, and judge it by a linear head on the ``features`` of train, and of val if any.

    Where it is ``optional`` it is used only if the labels of val, or the known ones of train out of fold, are ranked
    better with it, by more than half a point. Where known labels support an accuracy, they also choose whether a linear
    head learns a target of every unknown label: others would ask the prior itself.
    """
    prior, (data, _) = data.prior, leave_out_ranked_absents(data)
    assert prior is not None
    labels, train = data.train.labels, features["train"]
    if only_prior(data):
        return believe(prior, labels)
    groups = fold_groups(data, "train", train.cpu().numpy())
    if labels.complete or len(np.unique(groups)) < FOLDS:
        return CalibratedPrior(None, PriorRecord(used=False, sources=[]))
    comparable = auto_methods(replace(data, val=None))
    method = next(name for name in comparable if describe_method(name).loss_class.takes_soft)
    base = _head_to_judge(config, labels, train.shape[1], method)
    fold = assign_folds(labels, FOLDS, config.seed, groups)
    (plain,) = out_of_fold_logits(train, [FoldTask(base, labels, fold)], device)
    found = calibrate(prior, labels, plain)
    record = PriorRecord(used=False, sources=found.sources)
    if not found.told.any():
        return CalibratedPrior(None, record)
    judge, on_val, supported = _choose_judge(data, found)
    forms = {ignores_unknown(config.method)}
    if optional and config.protocol == "linear":
        forms = {ignores_unknown(method), supported or ignores_unknown(method)}
    heads = {each: base.model_copy(update={"method": EVERY if each else method}) for each in forms}
    if on_val:
        tables = {each: labels.with_soft(found.soft(every=each)) for each in forms}
        tried = [(tables[each], head) for each, head in heads.items()] + [(labels, base)]
        scores = [search_heads(features, table, [head], judge, device=device).best_score for table, head in tried]
    else:
        logits = [*_unseen_logits(prior, labels, train, fold, base, heads, device), plain]
        scores = [finite(selection_score(judge, each)) for each in logits]
    *told, without = (score or 0.0 for score in scores)
    best, every = max(zip(told, forms, strict=True), key=lambda each: (each[0], not each[1]))
    used = not optional or best > without + _MARGIN
    judged = {"score": best, "score_without": without, "judge": "val" if on_val else "train"}
    record = record.model_copy(update={**judged, "used": used, "every": every})
    return CalibratedPrior(found.soft(every=every) if used else None, record)


def _unseen_logits(
    prior: Prior,
    labels: LabelTable,
    features: Tensor,
    fold: NDArray[np.int64],
    base: RunConfig,
    heads: Mapping[bool, RunConfig],
    device: torch.device,
) -> list[NDArray[np.float32]]:
    """Return the out-of-fold logits of heads that are told of the prior; True: of every unknown label.

    A fold's labels must not come back by the targets of the others, so each fold has a calibration of its own, by heads
    of the other folds that have seen no label of it.
    """
    unseen = [np.full(labels.shape, np.nan, dtype=np.float32) for _ in heads]
    for number in range(int(fold.max()) + 1):
        others = np.flatnonzero(fold != number)
        part, inner = labels.select(others), fold[others] - (fold[others] > number)
        task = FoldTask(base, part, inner)
        (logits,) = out_of_fold_logits(select_rows(features, others), [task], device, images=len(labels))
        found, tasks = calibrate(prior, part, logits), list[FoldTask]()
        for every, head in heads.items():
            target, weight = (np.zeros(labels.shape, dtype=np.float32) for _ in range(2))
            target[others], weight[others] = found.soft(every=every)
            tasks.append(FoldTask(head, labels.with_soft(SoftLabels(target, weight)), fold))
        for all_logits, own in zip(unseen, out_of_fold_logits(features, tasks, device, numbers=[number]), strict=True):
            all_logits[fold == number] = own[fold == number]
    return unseen


def _head_to_judge(config: RunConfig, labels: LabelTable, width: int, method: str) -> RunConfig:
    """Return the configuration of a linear head with a middling penalty."""
    settings: dict[str, Any] = {"standardize": True, "method": method, "options": {}, "stop_below": None}
    if labels.shape[0] * labels.shape[1] <= NEWTON_LABELS:
        settings |= {**NEWTON, "batch_size": len(labels)}
    base = head_config(config).model_copy(update=settings)
    return candidate_configs(base, labels, width, SearchSpace((method,), decay=True))[0]


def _choose_judge(data: Dataset, found: Calibration) -> tuple[Selection, bool, bool]:
    """Return the labels that judge heads, whether they are those of val, and whether they support an accuracy.

    Where neither those of val nor those of train do, an unknown label of train counts as absent, unless the prior calls
    it present.
    """
    labels = data.train.labels
    known = {
        True: None if data.val is None else choose_selection(data.val.labels, None),
        False: choose_selection(labels, None),
    }
    for on_val, selection in known.items():
        if selection is not None and selection.rule in ("clean", "known"):
            return selection, on_val, True
    is_open = found.soft(every=False).weight > 0
    codes = np.where(is_open, UNKNOWN, labels.with_unknown_absent().to_dense())
    return Selection("known", LabelTable.from_dense(codes, labels.classes), ""), False, False
