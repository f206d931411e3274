"""The section on classes: a table that can be sorted and filtered, groups of classes, and calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from labelgap.core.text import join_names
from labelgap.reporting.analysis.calibration import BINS, CalibrationCurves
from labelgap.reporting.analysis.class_table import ClassTable
from labelgap.reporting.figures.calibration import calibration_figure
from labelgap.reporting.figures.run import average_precision_bars
from labelgap.reporting.formatting import (
    NO_VALUE,
    chosen_by_val,
    format_class_count,
    format_count,
    format_measure,
    single_line,
)
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.training import Run

_MIN_LABELS: Final = 5
"""Labels that a bin of a small curve needs to be drawn."""
_OPEN: Final = 60
"""The table is shown at once where it has no more rows than this."""
_SPLITS: Final = {"test": "the test images", "val": "the val images", "train": "all images, out of fold"}
_THRESHOLD_SOURCES: Final = {
    "measured": "measured {where}",
    "estimated": "estimated from few known labels",
    "borrowed": "taken from the other classes, because too few labels are known",
    "default": "left at 0.5, because the known labels support none",
}


@dataclass(frozen=True)
class _Column:
    """A column of the table: its name, the cells, and whether they are sorted as text."""

    name: str
    cells: list[str]
    text: bool = False


def classes_section(run: Run, table: ClassTable, figures: FigureRenderer) -> dict[str, Any]:
    """Return the values of ``sections/classes.html``."""
    columns = _columns(table)
    names = [single_line(name) for name in table.classes]
    unmeasured = [name for name, value in zip(names, table.average_precision, strict=True) if np.isnan(value)]
    return {
        "split": table.split,
        "where": _SPLITS.get(table.split, ""),
        "bars": _bars(run, table, figures),
        "estimated": bool(np.isnan(table.average_precision).all()),
        "intervals": not np.isnan(table.low).all(),
        "unmeasured": join_names(unmeasured) if table.split and not np.isnan(table.average_precision).all() else "",
        "threshold_sources": _threshold_sources(run, table),
        "columns": [(column.name, column.text) for column in columns],
        "rows": list(zip(names, zip(*(column.cells for column in columns), strict=True), strict=True)),
        "open": len(names) <= _OPEN,
        "notes": _notes(table, chosen_by_val(run.config.select)),
        "chosen": chosen_by_val(run.config.select),
        "groups": _groups(run, table.split),
        "calibration": _calibration(table, figures),
        "calibration_rows": _calibration_rows(table),
        "calibration_images": table.calibration_images,
        "calibration_classes": ""
        if table.calibrated.all()
        else format_class_count(int(table.calibrated.sum()), len(names)),
        "calibration_errors": {
            name: format_measure(float(curves.overall.error[0])) for name, curves in _compared(table).items()
        },
    }


def _columns(table: ClassTable) -> list[_Column]:
    """Return the columns that have a value."""
    columns = []

    def add(name: str, values: Any, show: Callable[[Any], str]) -> None:
        if values is not None and not (isinstance(values, np.ndarray) and np.isnan(values).all()):
            columns.append(_Column(name, [show(value) for value in np.asarray(values).tolist()]))

    add("group", table.groups, "G{}".format)
    for name, counts in zip(("known present", "known absent", "unknown"), table.train or (), strict=False):
        add(name, counts, format_count)
    add("hidden present", table.hidden_present, format_count)
    add("probably missing", table.missing, lambda value: format_count(round(value)))
    heading = {"val": "val AP*", "train": "AP"}.get(table.split, "test AP")
    add(heading, table.average_precision, format_measure)
    if not np.isnan(table.low).all():
        ends = zip(table.low.tolist(), table.high.tolist(), strict=True)
        columns.append(_Column("95 % interval", [_interval(low, high) for low, high in ends]))
    add("estimated AP", table.estimated_precision, format_measure)
    add("threshold", table.thresholds, "{:.3f}".format)
    if table.marks:
        columns.append(_Column("source", list(table.marks), text=True))
    if table.calibration is not None:
        errors, curves = table.calibration.error.tolist(), _sparklines(table.calibration)
        cells = [
            Markup("{} {}").format(format_measure(error), curve) for error, curve in zip(errors, curves, strict=True)
        ]
        columns.append(_Column("calibration error", list(cells)))
    return columns


def _interval(low: float, high: float) -> str:
    return NO_VALUE if np.isnan(low) else f"{format_measure(low)} to {format_measure(high)}"


def _sparklines(curves: CalibrationCurves) -> list[Markup]:
    """Return a small curve of each class in 40 by 16 pixels; nothing where fewer than two bins have labels enough."""
    enough = curves.count >= _MIN_LABELS
    across, down = 40 * np.nan_to_num(curves.predicted), 16 - 16 * np.nan_to_num(curves.observed)
    places = np.stack([across, down], axis=2).round().astype(np.int64)
    lines = []
    for points, drawn in zip(places, enough, strict=True):
        text = " ".join(f"{x} {y}" for x, y in points[drawn].tolist())
        lines.append(Markup('<svg class=curve><path d="M{}"/></svg>').format(text) if drawn.sum() > 1 else Markup(""))
    return lines


def _bars(run: Run, table: ClassTable, figures: FigureRenderer) -> ResponsiveFigure | None:
    """Draw the average precision of the classes, or the estimated one where no class has any."""
    values, mean, label = table.average_precision, (run.metrics.get(table.split) or {}).get("map"), "average precision"
    if np.isnan(values).all():
        values, mean, label = table.estimated_precision, None, "estimated average precision"
    if np.isnan(values).all():
        return None
    shown = {name: _optional(value) for name, value in zip(table.classes, values.tolist(), strict=True)}
    ends = zip(table.low.tolist(), table.high.tolist(), strict=True)
    intervals = dict(zip(table.classes, ends, strict=True))
    return figures.render(
        lambda width: average_precision_bars(shown, mean, intervals, label=label, width=width),
        f"The {label} of every class that counts.",
        name="average-precision",
        data=table.columns(),
    )


def _calibration(table: ClassTable, figures: FigureRenderer) -> ResponsiveFigure | None:
    compared = _compared(table)
    if not compared:
        return None
    whole = {kind: curves.overall for kind, curves in zip(("score", "probability"), compared.values(), strict=False)}
    shown = np.arange(BINS) / BINS
    return figures.render(
        lambda width: calibration_figure(*compared.values(), width=width),
        "The share of present labels against what was predicted; the table below has the numbers.",
        name="calibration",
        data={
            "kind": [kind for kind in whole for _ in shown],
            "bin_from": np.tile(shown, len(whole)),
            "labels": np.concatenate([curves.count[0] for curves in whole.values()]),
            "predicted": np.concatenate([curves.predicted[0] for curves in whole.values()]),
            "present": np.concatenate([curves.observed[0] for curves in whole.values()]),
        },
    )


def _compared(table: ClassTable) -> dict[str, CalibrationCurves]:
    """Return the curves of scores and of probabilities, both of the classes that have probabilities."""
    kinds = {"scores": table.scores, "probabilities": table.probabilities}
    return {name: curves.select(table.calibrated) for name, curves in kinds.items() if curves is not None}


def _calibration_rows(table: ClassTable) -> list[tuple[str, list[str]]]:
    """Return a row for every bin of the calibrated probabilities, or of the scores."""
    if table.calibration is None:
        return []
    whole = table.calibration.overall
    rows = zip(whole.count[0].tolist(), whole.predicted[0].tolist(), whole.observed[0].tolist(), strict=True)
    return [
        (
            f"{100 * place // BINS} to {100 * (place + 1) // BINS}",
            [format_count(count), format_measure(predicted), format_measure(observed)],
        )
        for place, (count, predicted, observed) in enumerate(rows)
    ]


def _groups(run: Run, split: str) -> list[tuple[str, list[str]]]:
    """Return a row for every group of classes, measured on the same images as the table."""
    return [
        (
            f"G{row['group']}",
            [
                format_measure(row["map"]),
                format_class_count(row["classes_counted"], row["classes"]),
                *(format_count(row[state]) for state in ("present", "absent")),
            ],
        )
        for row in (run.metrics.get(split) or {}).get("groups", [])
    ]


def _notes(table: ClassTable, chosen: str) -> list[str]:
    """Return what a reader of the table should know about its columns."""
    notes = []
    measured = not np.isnan(table.average_precision).all()
    if table.split == "val" and measured:
        notes.append(f"* Val chose {chosen}, so its numbers are slightly too high.")
    if table.split == "train" and measured:
        notes.append("AP is of scores out of fold; settings and thresholds were chosen by the same scores.")
    if not np.isnan(table.low).all():
        notes.append(
            "The interval is how far chance among the images may move the AP; a class with fewer than five known "
            "presents or absents, or a perfect ranking, has none."
        )
    if not np.isnan(table.estimated_precision).all():
        notes.append("Estimated AP: over all images, known or not, if labels are missing at random.")
    if table.train is not None:
        notes.append("Known present, known absent and unknown are the labels of train that the model saw.")
    if table.hidden_present is not None:
        notes.append("Hidden present: unknown labels of train that are truly present; training did not see that.")
    if table.missing is not None:
        notes.append("Probably missing: what the audit in this folder expects, with its assumptions.")
    if table.calibration is not None:
        notes.append(
            "Calibration error: the mean distance, in points, between the predicted probability and the share of "
            "present labels; the small curve is that share against the probability, on the diagonal if it is right."
        )
    return notes


def _threshold_sources(run: Run, table: ClassTable) -> list[str]:
    where = "out of fold" if run.config.folds else "on val"
    found = ((table.marks.count(mark), text) for mark, text in _THRESHOLD_SOURCES.items() if mark in table.marks)
    return [f"{count} {text.format(where=where)}" for count, text in found]


def _optional(value: float) -> float | None:
    return None if np.isnan(value) else value
