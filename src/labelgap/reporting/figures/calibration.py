"""The calibration curve of all labels: how many of those with a probability are present."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from labelgap.reporting.analysis.calibration import CalibrationCurves
from labelgap.reporting.colors import BLUE, MUTED_COLOR, VERMILLION
from labelgap.reporting.style import NARROW, WIDE, add_legend, make_figure


def calibration_figure(
    scores: CalibrationCurves, probabilities: CalibrationCurves | None = None, *, width: float = WIDE
) -> Figure:
    """Draw the share of present labels against the mean score of ten bins, over all classes.

    Args:
        scores: of the plain scores.
        probabilities: of the calibrated ones; None for a run without a calibration.
        width: in inches.

    On the dashed line, as many labels are present as the score says. The right panel has the number of labels in a bin.
    """
    narrow = width <= NARROW
    figure, (curve, sizes) = make_figure(*((2, 1) if narrow else (1, 2)), width=width, height=5.6 if narrow else 3.1)
    kinds = [("score", scores, VERMILLION, "s"), ("calibrated probability", probabilities, BLUE, "o")]
    lines = {}
    curve.plot([0, 100], [0, 100], color=MUTED_COLOR, linewidth=1, linestyle=(0, (4, 3)))
    for place, (name, curves, color, marker) in enumerate(kinds):
        if curves is None:
            continue
        whole = curves.overall
        used = whole.count[0] > 0
        (lines[name],) = curve.plot(
            100 * whole.predicted[0, used], 100 * whole.observed[0, used], color=color, marker=marker, markersize=5
        )
        step = 100 / len(used)
        left = step * (np.arange(len(used)) + 0.1 + 0.4 * place)
        sizes.bar(left, whole.count[0], width=0.4 * step, align="edge", color=color)
    curve.set(xlim=(-2, 102), ylim=(-2, 102), xlabel="predicted, in percent", ylabel="present, in percent")
    curve.set_title("present labels", loc="left")
    sizes.set_yscale("log")
    sizes.minorticks_off()
    sizes.set(xlim=(-2, 102), xlabel="predicted, in percent")
    sizes.set_title("labels in a bin", loc="left")
    add_legend(figure, list(lines.values()), list(lines), columns=1 if narrow else 2)
    return figure
