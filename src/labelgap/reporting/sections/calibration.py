"""Calibration curves: of labels with a probability of 30 %, are 30 % present? Only images labeled in full can say."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray

from labelgap.labels.codes import PRESENT
from labelgap.reporting import style
from labelgap.reporting.formatting import divide, format_class_count, format_measure
from labelgap.reporting.page import Page, render_template, stack_columns

BINS: Final = 10
_MIN_LABELS: Final = 5  # labels that a bin of a small curve needs to be drawn


@dataclass(frozen=True, eq=False)
class CalibrationCurves:
    """Labels by their probability, in ten bins of equal width, for each of K classes."""

    count: NDArray[np.int64]  # (K, 10) labels in a bin
    present: NDArray[np.int64]  # (K, 10) those of them that are present
    total: NDArray[np.float64]  # (K, 10) the sum of their probabilities

    @property
    def observed(self) -> NDArray[np.float64]:
        """The share of a bin's labels that is present, ``(K, 10)``; NaN for an empty bin."""
        return divide(self.present, self.count)

    @property
    def predicted(self) -> NDArray[np.float64]:
        """The mean probability of a bin, ``(K, 10)``; NaN for an empty bin."""
        return divide(self.total, self.count)

    @property
    def error(self) -> NDArray[np.float64]:
        """The expected calibration error, ``(K,)``: the mean over labels of |observed − predicted| of their bin."""
        return divide(np.abs(self.present - self.total).sum(axis=1), self.count.sum(axis=1))

    def overall(self, classes: NDArray[np.bool_] | slice = slice(None)) -> CalibrationCurves:
        """Return the curve of the labels of some classes together, as one class."""
        tables = (getattr(self, each.name)[classes] for each in fields(self))
        return CalibrationCurves(*(table.sum(axis=0, keepdims=True) for table in tables))

    @classmethod
    def concatenate(cls, parts: list[CalibrationCurves]) -> CalibrationCurves:
        """Return the curves of several groups of classes, in order."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))


def bin_probabilities(probabilities: NDArray[np.floating[Any]], codes: NDArray[np.int8]) -> CalibrationCurves:
    """Return the curves of probabilities ``(N, K)`` of known labels ``(N, K)``; those that are NaN are left out."""
    classes, known = codes.shape[1], ~np.isnan(probabilities)
    values = probabilities[known].astype(np.float64)
    column = np.broadcast_to(np.arange(classes), codes.shape)[known]
    place = column * BINS + np.clip((values * BINS).astype(np.int64), 0, BINS - 1)
    sums: list[NDArray[Any]] = [
        np.bincount(place, weights, minlength=classes * BINS).reshape(classes, BINS)
        for weights in (None, codes[known] == PRESENT, values)
    ]
    return CalibrationCurves(sums[0], sums[1].astype(np.int64), sums[2])


def calibration_figure(
    scores: CalibrationCurves, probabilities: CalibrationCurves | None = None, *, width: float = style.WIDE
) -> Figure:
    """Draw the share of present labels against the mean of ten bins of scores, and of calibrated probabilities."""
    figure, (curve, sizes), columns = style.make_panels(2, width=width, each=2.5, extra=0.6)
    kinds = [("score", scores, style.VERMILLION, "s"), ("calibrated probability", probabilities, style.BLUE, "o")]
    curve.plot([0, 100], [0, 100], color=style.MUTED_COLOR, linewidth=1, linestyle=style.DASHED)
    for place, (name, curves, color, marker) in enumerate(kinds):
        if curves is not None:
            whole = curves.overall()
            used = whole.count[0] > 0
            points = 100 * whole.predicted[0, used], 100 * whole.observed[0, used]
            curve.plot(*points, color=color, marker=marker, markersize=5, label=name)
            left = 100 / BINS * (np.arange(BINS) + 0.1 + 0.4 * place)
            sizes.bar(left, whole.count[0], width=0.4 * 100 / BINS, align="edge", color=color)
    curve.set(xlim=(-2, 102), ylim=(-2, 102), xlabel="predicted, in percent", ylabel="present, in percent")
    curve.set_title("present labels", loc="left")
    sizes.set_yscale("log")
    sizes.minorticks_off()
    sizes.yaxis.set_major_formatter("{x:,.0f}")
    sizes.set(xlim=(-2, 102), xlabel="predicted, in percent")
    sizes.set_title("labels in a bin", loc="left")
    style.add_legend(figure, columns)
    return figure


def sparklines(curves: CalibrationCurves) -> list[Markup]:
    """Return a small curve of each class in 40 by 16 pixels; nothing where fewer than two bins have labels enough."""
    across, down = 40 * np.nan_to_num(curves.predicted), 16 - 16 * np.nan_to_num(curves.observed)
    places = np.stack([across, down], axis=2).round().astype(np.int64)
    lines = []
    for points, drawn in zip(places, curves.count >= _MIN_LABELS, strict=True):
        text = " ".join(f"{x} {y}" for x, y in points[drawn].tolist())
        lines.append(Markup('<svg class=curve><path d="M{}"/></svg>').format(text) if drawn.sum() > 1 else Markup(""))
    return lines


def comparable_curves(
    scores: CalibrationCurves, probabilities: CalibrationCurves | None
) -> tuple[dict[str, CalibrationCurves], NDArray[np.bool_]]:
    """Return the curves of both kinds over all classes that have both, and which these are, ``(K,)``."""
    kinds = {"score": scores} if probabilities is None else {"score": scores, "probability": probabilities}
    drawn = list(kinds.values())[-1].count.sum(axis=1) > 0
    return {name: curves.overall(drawn) for name, curves in kinds.items()}, drawn


def calibration_section(
    scores: CalibrationCurves | None, probabilities: CalibrationCurves | None, images: int, split: str, page: Page
) -> Markup:
    """Return the curves over the classes that have probabilities, measured on so many images of a split."""
    if scores is None:
        return Markup("")
    kinds, drawn = comparable_curves(scores, probabilities)
    columns = {
        kind: {
            "bin_from": np.arange(BINS) / BINS,
            "labels": curves.count[0],
            "predicted": curves.predicted[0],
            "present": curves.observed[0],
        }
        for kind, curves in kinds.items()
    }
    description = "The share of present labels against what was predicted; its numbers are below."
    return render_template(
        "sections/calibration.html",
        figure=page.figure(
            "calibration", description, stack_columns("kind", columns), calibration_figure, *kinds.values()
        ),
        images=images,
        split=split,
        classes="" if drawn.all() else format_class_count(int(drawn.sum()), len(drawn)),
        errors={kind: format_measure(float(curves.error[0])) for kind, curves in kinds.items()},
    )
