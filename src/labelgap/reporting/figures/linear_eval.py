"""The figure of a linear evaluation: the score of every penalty."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labelgap.reporting.colors import BACKGROUND_COLOR, BLUE, MUTED_COLOR, VERMILLION
from labelgap.reporting.style import WIDE, add_legend, make_figure
from labelgap.studies.linear_eval import LinearEvaluation


def penalty_figure(evaluation: LinearEvaluation, *, width: float = WIDE) -> Figure:
    """Draw the score on val, and on test where it is known, against the penalty; the chosen penalty is dashed.

    A dot is the best of a curve: of val the chosen penalty, of test the paper's choice.
    """
    results, best = evaluation.results, evaluation.best_on_test
    figure, (axis,) = make_figure(width=width, height=3.2)
    penalties = [result.penalty for result in results]
    curves = [(f"{evaluation.metric} on val", [result.val for result in results], evaluation.chosen, BLUE)]
    if best is not None:
        measured = [float("nan") if result.test is None else result.test for result in results]
        curves.append((f"{evaluation.metric} on test", measured, best, VERMILLION))
    lines: list[Line2D] = []
    for _, scores, top, color in curves:
        values = [100 * score for score in scores]
        (line,) = axis.plot(penalties, values, color=color, linewidth=2, solid_capstyle="round")
        place = top.penalty, values[results.index(top)]
        axis.plot(*place, "o", markersize=8, color=color, markeredgecolor=BACKGROUND_COLOR, clip_on=False)
        lines.append(line)
    axis.axvline(evaluation.chosen.penalty, color=MUTED_COLOR, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    axis.set_xscale("log")
    axis.minorticks_off()
    axis.set_xlabel("penalty λ")
    add_legend(figure, lines, [name for name, *_ in curves], 2)
    return figure
