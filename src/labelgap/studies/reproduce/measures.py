"""What the tables measure of a finished run, from 0 to 1 except for epochs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import RunError
from labelgap.data.dataset import Dataset
from labelgap.inference.localization import pointing_game
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, Revisions
from labelgap.labels.class_groups import class_groups
from labelgap.metrics import f1, revision_quality
from labelgap.metrics.validation import supports_accuracy
from labelgap.studies.reproduce.tables import Cell
from labelgap.training import Run
from labelgap.training.run_folder import read_predictions


def measure_run(cell: Cell, run: Run, data: Dataset, device: str = "auto") -> float | None:
    """Return the metric of a cell; None where the run does not determine it.

    Args:
        cell: of the table.
        run: finished, trained on ``data``.
        data: with the labels that the run has seen.
        device: where class activation maps are computed.
    """
    metric, metrics = cell.column.metric, run.metrics
    if metric == "epoch":
        return float(metrics["best_epoch"])
    if metric in ("map", "map_samples"):
        return _value(metrics["test"][metric])
    if metric in ("val_map", "train_map"):
        return _value((metrics.get(metric.removesuffix("_map")) or {}).get("map"))
    if metric.startswith("f1"):
        return _f1(run, data, metric.removeprefix("f1_"), cell.row.threshold)
    if metric == "pointing":
        return pointing_game(run, data.split("test"), device=device).hit_rate
    if metric == "positive_precision":
        return _positive_precision(run, data)
    if metric.startswith("warmup"):
        return warmup_share(run.trace, metric.removeprefix("warmup_"))
    group = class_groups(data.train.labels)[int(metric.removeprefix("g")) - 1]
    each = [metrics["test"]["average_precision"][data.classes[column]] for column in group.tolist()]
    known = [value for value in each if value is not None]
    return float(np.mean(known)) if known else None


def known_absents(metric: str, data: Dataset) -> int | None:
    """Return how many absent labels are known of the classes that a mAP of test is over; None where all labels are."""
    test, group = data.test, metric.removeprefix("g")
    if test is None or test.evaluation_labels.complete or not (metric == "map" or group.isdigit()):
        return None
    counts = test.evaluation_labels.counts()
    absent = np.where(supports_accuracy(counts.present, counts.absent, len(test)), counts.absent, 0)
    return int((absent[class_groups(data.train.labels)[int(group) - 1]] if group.isdigit() else absent).sum())


def _value(value: Any) -> float | None:
    return None if value is None else float(value)


def _f1(run: Run, data: Dataset, average: Any, threshold: float) -> float:
    test = data.split("test")
    scores = read_predictions(run.path, "test", test.labels.images, data.classes)
    if scores is None:
        raise RunError(f"{run.path} has no predictions of the test images.")
    return float(f1(scores, test.evaluation_labels.to_dense(), threshold=threshold, average=average))


def _positive_precision(run: Run, data: Dataset) -> float | None:
    """Return how many of the positive pseudo-labels are right."""
    truth, table = data.train.truth, run.revisions.to_table()
    positive = Revisions.from_table(table.filter(table["value"].to_numpy() == PRESENT))
    return None if truth is None else revision_quality(data.train.labels, truth, positive).precision


def warmup_share(trace: dict[str, NDArray[Any]], kind: str) -> float | None:
    """Return the share of labels whose highest loss is in the first epoch (Kim et al. 2022, table 1).

    Args:
        trace: of a run that recorded every training label.
        kind: "tp", the observed positives; "tn" and "fn", unknown labels that are truly absent, or present.
    """
    if not trace:
        return None
    observed, truth = trace["observed"], trace["truth"]
    state = {"tp": PRESENT, "tn": ABSENT, "fn": PRESENT}[kind]
    chosen = (observed == (PRESENT if kind == "tp" else UNKNOWN)) & (truth == state)
    return first_epoch_share(trace["loss"][:, chosen])


def first_epoch_share(losses: NDArray[Any]) -> float | None:
    """Return the share of labels whose highest loss is in the first epoch; None if none was seen.

    Args:
        losses: ``(E, R)``, NaN where an epoch did not see a label. A label that no epoch saw is left out.
    """
    losses = losses[:, np.isfinite(losses).any(axis=0)]
    return float((np.nanargmax(losses, axis=0) == 0).mean()) if losses.size else None
