"""What is known of every class of a run: average precision, labels, threshold, calibration, group.

The average precision is on the best evidence that there is: test, else val, which is slightly too high, else out of
fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray

from labelgap.audit.candidates import FILE as CANDIDATES_FILE
from labelgap.audit.candidates import read_metadata
from labelgap.core.text import join_names
from labelgap.data.dataset import Dataset, Split
from labelgap.metrics.bootstrap import average_precision_intervals
from labelgap.reporting import style
from labelgap.reporting.descriptions import describe_thresholds
from labelgap.reporting.formatting import (
    NO_VALUE,
    chosen_by_val,
    format_class_count,
    format_measure,
    format_probability,
)
from labelgap.reporting.page import Page, render_template
from labelgap.reporting.sections.calibration import (
    CalibrationCurves,
    bin_probabilities,
    calibration_section,
    sparklines,
)
from labelgap.reporting.sections.separability import count_unknown_positives
from labelgap.training import Run
from labelgap.training.history import unseen_splits
from labelgap.training.run_folder import read_predictions

MAX_SCORES: Final = 1 << 28
"""Of more scores than this no interval and no calibration is computed: a report takes seconds, not minutes."""
MAX_BARS: Final = 60
_AT_ONCE: Final = 1 << 24  # scores in memory at once
_OPEN: Final = 60  # the table is shown at once where it has no more rows than this
_SPLITS: Final = {"test": "the test images", "val": "the val images", "train": "all images, out of fold"}


@dataclass(frozen=True, eq=False)
class ClassTable:
    """The classes of a run; every array is ``(K,)``, NaN where the labels do not support a number."""

    classes: tuple[str, ...]
    split: str  # where they were measured: "test", "val", "train" (out of fold), or "" where nothing was
    average_precision: NDArray[np.float64]  # over the known labels
    low: NDArray[np.float64]  # the lower end of its 95 % interval
    high: NDArray[np.float64]  # the upper end
    estimated_precision: NDArray[np.float64]  # over all images, if labels are missing at random
    prevalence: NDArray[np.float64]  # the share of all images that have the class, under the same assumption
    train: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None  # present, absent, unknown
    hidden_present: NDArray[np.int64] | None = None  # unknown labels of train that are truly present
    missing: NDArray[np.float64] | None = None  # how many labels an audit of the run expects to be missing
    thresholds: NDArray[np.float64] | None = None  # from which score on a class is predicted present
    threshold_probabilities: NDArray[np.float32] | None = None  # of these scores; NaN for a class without calibration
    marks: tuple[str, ...] = ()  # how each threshold was found: measured, estimated, borrowed or default
    groups: NDArray[np.int64] | None = None  # 1 to 5 by how many labels of train are known, 1 the fewest
    scores: CalibrationCurves | None = None  # of the plain scores; None without images that are labeled in full
    probabilities: CalibrationCurves | None = None  # of the calibrated ones; None also where there is no calibration
    calibration_images: int = 0  # how many images of the split are labeled in full

    @property
    def calibration(self) -> CalibrationCurves | None:
        """The curves of what ``labelgap predict`` writes: probabilities, or scores of a run without a calibration."""
        return self.scores if self.probabilities is None else self.probabilities

    @property
    def measured(self) -> bool:
        """Whether any class has an average precision."""
        return not bool(np.isnan(self.average_precision).all())

    def columns(self) -> dict[str, Any]:
        """Return the columns that have a value, by name, for a CSV file."""
        names = ("hidden_present", "missing", "average_precision", "low", "high", "estimated_precision", "prevalence")
        found: dict[str, Any] = {
            "group": self.groups,
            **dict(zip(("train_present", "train_absent", "train_unknown"), self.train or (), strict=False)),
            **{name: getattr(self, name) for name in names},
            "threshold": self.thresholds,
            "threshold_probability": self.threshold_probabilities,
            "threshold_source": np.array(self.marks) if self.marks else None,
            "calibration_error": None if self.calibration is None else self.calibration.error,
        }
        known = {name: values for name, values in found.items() if values is not None and (values == values).any()}
        return {"class": list(self.classes), **known}


def evidence_split(metrics: Mapping[str, Any]) -> str:
    """Return the best split that a run was measured on and has not seen: one with a number first; "" for none."""
    splits = list(unseen_splits(metrics))
    return next((split for split in splits if metrics[split]["map"] is not None), splits[0] if splits else "")


def class_table(run: Run, data: Dataset | None = None) -> ClassTable:
    """Return what is known of every class of a run, finished or not; without data no counts, intervals and curves."""
    classes, metrics = run.config.classes, run.metrics
    name = evidence_split(metrics)
    measures = metrics.get(name) or {}
    found, estimates = measures.get("average_precision", {}), measures.get("estimated", {})
    precision = np.array([found.get(each) for each in classes], dtype=np.float64)  # None becomes NaN
    estimated = np.array([estimates.get(each, (np.nan, np.nan)) for each in classes], dtype=np.float64).reshape(-1, 2)
    blank = np.full(len(classes), np.nan)
    values: dict[str, Any] = {"low": blank, "high": blank}
    if run.finished:
        values |= {"thresholds": run.thresholds.values, "marks": run.thresholds.marks}
        if run.calibration is not None:
            values["threshold_probabilities"] = run.calibration.of_scores(run.thresholds.values[None])[0]
        if metrics.get("class_groups") is not None:
            values["groups"] = np.asarray(metrics["class_groups"], dtype=np.int64)
    if data is not None:
        counts, truth = data.train.labels.counts(), data.train.truth
        values["train"] = (counts.present, counts.absent, counts.unknown)
        if truth is not None and not data.train.labels.complete:
            values["hidden_present"] = count_unknown_positives(data.train.labels, truth).present
        split = next((each for each in data.splits if each.name == name), None)
        values |= {} if split is None else _measure(run, split, precision)
    if (run.path / CANDIDATES_FILE).is_file():
        estimate = read_metadata(run.path / CANDIDATES_FILE)["estimate"]
        if estimate is not None:
            values["missing"] = np.array([float(estimate["missing_per_class"].get(each, 0)) for each in classes])
    return ClassTable(
        classes, name, precision, estimated_precision=estimated[:, 0], prevalence=estimated[:, 1], **values
    )


def _measure(run: Run, split: Split, precision: NDArray[np.float64]) -> dict[str, Any]:
    """Return intervals, estimates and calibration curves, from the stored scores; nothing where there are none."""
    labels, calibration = split.evaluation_labels, run.calibration
    full = np.flatnonzero(np.diff(labels.starts) == len(labels.classes))
    intervals, curves = [], dict[str, list[CalibrationCurves]]()
    for columns, scores, codes in _blocks(run, split):
        intervals.append(average_precision_intervals(scores, codes))
        if len(full):
            curves.setdefault("scores", []).append(bin_probabilities(scores[full], codes[full]))
            if calibration is not None:
                offset, calibrated = calibration.offset[columns], calibration.classes[columns]
                probabilities = replace(calibration, offset=offset, classes=calibrated).of_scores(scores[full])
                curves.setdefault("probabilities", []).append(bin_probabilities(probabilities, codes[full]))
    if not intervals:
        return {}
    ends = np.where(np.isnan(precision)[:, None], np.nan, np.concatenate(intervals))
    whole = {name: CalibrationCurves.concatenate(parts) for name, parts in curves.items()}
    return {"low": ends[:, 0], "high": ends[:, 1], "calibration_images": len(full), **whole}


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
        yield columns, scores, labels.with_classes(classes[columns]).to_dense()


def average_precision_bars(
    average_precision: Mapping[str, float],
    mean: float | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    label: str = "average precision",
    *,
    width: float = style.WIDE,
) -> Figure:
    """Draw the average precision of every class that counts, with its interval; of many, both ends."""
    counted = sorted(((value, name) for name, value in average_precision.items() if value == value), reverse=True)
    shown = style.outermost(counted, MAX_BARS)
    figure, (axis,) = style.make_figure(width=width, height=0.55 + 0.25 * max(len(shown), 1))
    names = style.fit_names((name for _, name in shown), width, 28, 18)
    places = style.set_class_rows(axis, names, len(counted))
    style.draw_bars(axis, places, [100 * value for value, _ in shown], style.BLUE, 100, 108)
    ends = [(intervals or {}).get(name, (np.nan, np.nan)) for _, name in shown]
    low, high = 100 * np.array(ends, dtype=np.float64).reshape(-1, 2).T
    for color, linewidth in ((style.BACKGROUND_COLOR, 3.2), (style.TEXT_COLOR, 1.4)):
        axis.hlines(places, low, high, color=color, linewidth=linewidth)
    axis.set_xticks([0, 25, 50, 75, 100])
    if mean is not None:
        axis.axvline(100 * mean, color=style.TEXT_COLOR, linewidth=1.2, linestyle=style.DASHED)
    axis.set_xlabel(label if mean is None else f"{label} (dashed: the mean, {100 * mean:.1f})")
    return figure


def classes_section(run: Run, table: ClassTable, page: Page) -> Markup:
    """Return the classes: a figure, a table that can be sorted and filtered, groups of classes, and calibration."""
    columns, names = _cells(table), table.classes
    unmeasured = [name for name, value in zip(names, table.average_precision, strict=True) if np.isnan(value)]
    measured, groups = run.metrics.get(table.split) or {}, list[tuple[str, list[Any]]]()
    for row in measured.get("groups", []):
        cells = format_measure(row["map"]), format_class_count(row["classes_counted"], row["classes"])
        groups.append((f"G{row['group']}", [*cells, row["present"], row["absent"]]))
    curves, bars = (table.scores, table.probabilities, table.calibration_images), None
    values, mean, label = table.average_precision, measured.get("map"), "average precision"
    if not table.measured:
        values, mean, label = table.estimated_precision, None, "estimated average precision"
    if not np.isnan(values).all():
        ends = zip(table.low.tolist(), table.high.tolist(), strict=True)
        shown, intervals = (dict(zip(names, each, strict=True)) for each in (values.tolist(), ends))
        given = f"The {label} of every class that counts.", table.columns(), average_precision_bars
        bars = page.figure("average-precision", *given, shown, mean, intervals, label)
    return render_template(
        "sections/classes.html",
        split=table.split,
        where=_SPLITS.get(table.split, ""),
        bars=bars,
        estimated=not table.measured,
        intervals=not np.isnan(table.low).all(),
        unmeasured=join_names(unmeasured) if table.split and table.measured else "",
        threshold_sources=describe_thresholds(run) if run.finished else [],
        columns=list(columns),
        rows=list(zip(names, zip(*columns.values(), strict=True), strict=True)),
        open=len(names) <= _OPEN,
        table=table,
        estimates=not np.isnan(table.estimated_precision).all(),
        chosen=chosen_by_val(run.config.select),
        groups=groups,
        calibration=calibration_section(*curves, table.split, page),
    )


def _cells(table: ClassTable) -> dict[str, list[str]]:
    found, count = table.columns(), "{:,.0f}".format
    if table.calibration is not None:
        found["calibration_error"] = zip(found["calibration_error"], sparklines(table.calibration), strict=True)
    if "low" in found:
        found["low"] = np.stack([table.low, table.high], axis=1)
    shown: dict[str, tuple[str, Callable[[Any], str]]] = {
        "group": ("group", "G{}".format),
        "train_present": ("known present", count),
        "train_absent": ("known absent", count),
        "train_unknown": ("unknown", count),
        "hidden_present": ("hidden present", count),
        "missing": ("probably missing", count),
        "average_precision": ({"val": "val AP*", "train": "AP"}.get(table.split, "test AP"), format_measure),
        "low": (
            "95 % interval",
            lambda ends: NO_VALUE if np.isnan(ends[0]) else " to ".join(map(format_measure, ends)),
        ),
        "estimated_precision": ("estimated AP", format_measure),
        "threshold": ("threshold, score", "{:.3f}".format),
        "threshold_probability": ("threshold, probability", format_probability),
        "threshold_source": ("source", str),
        "calibration_error": (
            "calibration error",
            lambda pair: Markup("{} {}").format(format_measure(pair[0]), pair[1]),
        ),
    }
    return {heading: [*map(show, found[name])] for name, (heading, show) in shown.items() if name in found}
