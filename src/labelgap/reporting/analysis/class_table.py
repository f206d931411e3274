"""What is known of every class of a run: average precision, labels, threshold, calibration, group.

The average precision is on the best evidence that there is: test, else val, else the training images scored out of
fold. Val also chose the epoch and the thresholds, so its numbers are slightly too high; ``split`` says which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from labelgap.audit.candidates import FILE as CANDIDATES_FILE
from labelgap.audit.candidates import read_metadata
from labelgap.data.dataset import Dataset, Split
from labelgap.labels import PRESENT, UNKNOWN, LabelTable
from labelgap.metrics.bootstrap import average_precision_intervals
from labelgap.metrics.label_model import PlattCalibration
from labelgap.reporting.analysis.calibration import CalibrationCurves, bin_probabilities
from labelgap.training import Run
from labelgap.training.history import unseen_splits
from labelgap.training.run_folder import read_predictions

MAX_SCORES: Final = 1 << 28
"""Of more scores than this no interval and no calibration is computed: a report takes seconds, not minutes."""
_AT_ONCE: Final = 1 << 24
"""Scores in memory at once."""
_MIN_SCORE: Final = 1e-6


@dataclass(frozen=True, eq=False)
class ClassTable:
    """The classes of a run; every array is ``(K,)``, NaN where the labels do not support a number.

    Attributes:
        classes: their names.
        split: where they were measured: "test", "val", "train" (out of fold), or "" where nothing was.
        average_precision: over the known labels.
        low: the lower end of its 95 % interval.
        high: the upper end.
        estimated_precision: average precision over all images, if labels are missing at random; where some are unknown.
        prevalence: the share of all images that have the class, under the same assumption.
        train: known present, known absent and unknown labels of train, ``(K,)`` each; None without the data set.
        hidden_present: unknown labels of train that are truly present; None where the truth is not known.
        missing: how many labels an audit of the run expects to be missing; None without an audit.
        thresholds: from which score on a class is predicted present; None before the run is finished.
        marks: how each threshold was found: measured, estimated, borrowed or default.
        groups: 1 to 5 by how many labels of train are known, 1 the fewest; None for few classes or complete labels.
        scores: the curves of the plain scores; None without images that are labeled in full.
        probabilities: those of the calibrated probabilities; likewise, and None where the run has no calibration.
        calibration_images: how many images of the split are labeled in full.
    """

    classes: tuple[str, ...]
    split: str
    average_precision: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    estimated_precision: NDArray[np.float64]
    prevalence: NDArray[np.float64]
    train: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None
    hidden_present: NDArray[np.int64] | None = None
    missing: NDArray[np.float64] | None = None
    thresholds: NDArray[np.float64] | None = None
    marks: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    scores: CalibrationCurves | None = None
    probabilities: CalibrationCurves | None = None
    calibration_images: int = 0

    @property
    def calibration(self) -> CalibrationCurves | None:
        """The curves of what ``labelgap predict`` writes: probabilities, or scores of a run without a calibration."""
        return self.scores if self.probabilities is None else self.probabilities

    @property
    def calibrated(self) -> NDArray[np.bool_]:
        """``(K,)`` whether a class has a curve: those that are not calibrated have none in a run with a calibration."""
        if self.calibration is None:
            return np.zeros(len(self.classes), dtype=bool)
        drawn: NDArray[np.bool_] = self.calibration.count.sum(axis=1) > 0
        return drawn

    def columns(self) -> dict[str, Any]:
        """Return the columns that have a value, by name, for a CSV file."""
        found: dict[str, Any] = {"class": list(self.classes)}
        if self.groups is not None:
            found["group"] = self.groups
        if self.train is not None:
            names = ("train_present", "train_absent", "train_unknown")
            found |= dict(zip(names, self.train, strict=True))
        for name in ("hidden_present", "missing"):
            if (values := getattr(self, name)) is not None:
                found[name] = values
        for name in ("average_precision", "low", "high", "estimated_precision", "prevalence"):
            if not np.isnan(values := getattr(self, name)).all():
                found[name] = values
        if self.thresholds is not None:
            found |= {"threshold": self.thresholds, "threshold_source": list(self.marks)}
        if self.calibration is not None:
            found["calibration_error"] = self.calibration.error
        return found


@dataclass
class _Measured:
    """What was computed of the scores so far, class by class."""

    ends: list[NDArray[np.float64]] = field(default_factory=list)
    scores: list[CalibrationCurves] = field(default_factory=list)
    probabilities: list[CalibrationCurves] = field(default_factory=list)


def evidence_split(metrics: Mapping[str, Any]) -> str:
    """Return the best split that a run was measured on and has not seen: one with a number first; "" for none."""
    splits = list(unseen_splits(metrics))
    return next((split for split in splits if metrics[split]["map"] is not None), splits[0] if splits else "")


def class_table(run: Run, data: Dataset | None = None) -> ClassTable:
    """Return what is known of every class of a run.

    Args:
        run: finished or not.
        data: that it was trained on. Without it there are no label counts, intervals and calibration curves; nor are
            there intervals and curves where the run has no stored scores of these images, or more than 2²⁸.

    Example:
        >>> table = class_table(lg.open_run("runs/a"), lg.open_run("runs/a").load_data())  # doctest: +SKIP
        >>> dict(zip(table.classes, table.average_precision))  # doctest: +SKIP
        {'cat': 0.81, 'dog': 0.74}
    """
    classes, metrics = run.config.classes, run.metrics
    name = evidence_split(metrics)
    measures = metrics.get(name) or {}
    precision = np.array([_number(measures.get("average_precision", {}).get(each)) for each in classes])
    rows, none = measures.get("estimated", {}), (float("nan"), float("nan"))
    estimated = np.array([rows.get(each, none) for each in classes], dtype=np.float64).reshape(-1, 2)
    values: dict[str, Any] = {}
    if run.finished:
        values["thresholds"], values["marks"] = run.thresholds.values, run.thresholds.marks
        if metrics.get("class_groups") is not None:
            values["groups"] = np.asarray(metrics["class_groups"], dtype=np.int64)
    if data is not None:
        counts = data.train.labels.counts()
        values["train"] = (counts.present, counts.absent, counts.unknown)
        if data.train.truth is not None and not data.train.labels.complete:
            values["hidden_present"] = _hidden_present(data.train.labels, data.train.truth)
    if (run.path / CANDIDATES_FILE).is_file():
        estimate = read_metadata(run.path / CANDIDATES_FILE)["estimate"]
        if estimate is not None:
            values["missing"] = np.array([float(estimate["missing_per_class"].get(each, 0)) for each in classes])
    split = next((each for each in (data.splits if data is not None else ()) if each.name == name), None)
    blank = np.full(len(classes), np.nan)
    measured: dict[str, Any] = {"low": blank, "high": blank}
    measured |= {"estimated_precision": estimated[:, 0], "prevalence": estimated[:, 1]}
    if split is not None:
        measured |= _measure(run, split, precision)
    return ClassTable(classes, name, precision, **{**values, **measured})


def _measure(run: Run, split: Split, precision: NDArray[np.float64]) -> dict[str, Any]:
    """Return intervals, estimates and calibration curves, from the stored scores; nothing where there are none."""
    labels, found = split.evaluation_labels, _Measured()
    full, calibration = np.flatnonzero(np.diff(labels.starts) == len(labels.classes)), run.calibration
    for columns, scores, codes in _blocks(run, split):
        found.ends.append(average_precision_intervals(scores, codes))
        if len(full):
            found.scores.append(bin_probabilities(scores[full], codes[full]))
            if calibration is not None:
                probabilities = _calibrated(calibration, scores[full], columns)
                found.probabilities.append(bin_probabilities(probabilities, codes[full]))
    values: dict[str, Any] = {}
    if found.ends:
        ends = np.where(np.isnan(precision)[:, None], np.nan, np.concatenate(found.ends))
        values |= {"low": ends[:, 0], "high": ends[:, 1], "calibration_images": len(full)}
    for name in ("scores", "probabilities"):
        if parts := getattr(found, name):
            values[name] = CalibrationCurves.concatenate(parts)
    return values


def _blocks(run: Run, split: Split) -> Iterator[tuple[slice, NDArray[np.float32], NDArray[np.int8]]]:
    """Yield classes with their stored scores and codes, ``(N, k)`` each, a bounded number at a time."""
    labels, classes = split.evaluation_labels, run.config.classes
    if not len(labels) or len(labels) * len(classes) > MAX_SCORES:
        return
    step = max(1, _AT_ONCE // len(labels))
    for start in range(0, len(classes), step):
        columns = slice(start, min(start + step, len(classes)))
        scores = read_predictions(run.path, split.name, split.labels.images, classes[columns])
        if scores is None:
            return
        yield columns, scores, _dense(labels, columns)


def _dense(labels: LabelTable, columns: slice) -> NDArray[np.int8]:
    """Return the codes of some classes, ``(N, k)``."""
    chosen = np.flatnonzero((labels.columns >= columns.start) & (labels.columns < columns.stop))
    codes = np.full((len(labels), columns.stop - columns.start), UNKNOWN, dtype=np.int8)
    rows = np.searchsorted(labels.starts, chosen, side="right") - 1
    codes[rows, labels.columns[chosen] - columns.start] = labels.values[chosen]
    return codes


def _calibrated(calibration: PlattCalibration, scores: NDArray[np.float32], columns: slice) -> NDArray[np.float32]:
    """Return the probabilities of some classes; NaN for one that is not calibrated."""
    chosen = replace(calibration, offset=calibration.offset[columns], classes=calibration.classes[columns])
    return chosen.probabilities(logit(np.clip(scores, _MIN_SCORE, 1 - _MIN_SCORE)))


def _hidden_present(observed: LabelTable, truth: LabelTable) -> NDArray[np.int64]:
    """Return how many unknown labels of each class are truly present."""
    present = truth.values == PRESENT
    rows, columns = truth.rows[present], truth.columns[present]
    hidden = observed.codes_at(rows, columns) == UNKNOWN
    return np.bincount(columns[hidden], minlength=len(truth.classes))


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
