"""A linear evaluation: its page and table, and the score of every penalty."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup
from matplotlib.figure import Figure

from labelgap.reporting import style
from labelgap.reporting.formatting import ResultRow, ResultTable, format_measure
from labelgap.reporting.page import Page, render_template
from labelgap.studies.linear_eval import LinearEvaluation, PenaltyResult

_EVERY: Final = 4  # of many penalties, one row for so many is shown
_MOST: Final = 15
_PAPERS_RULE: Final = "best on test: the paper's rule. It is chosen on the images it is reported on, and no estimate"


def linear_eval_table(evaluation: LinearEvaluation) -> ResultTable:
    """Return the table: what val chose, the best on test, and a row for every penalty, or for some of many."""
    results, chosen, best = evaluation.results, evaluation.chosen, evaluation.best_on_test
    step = _EVERY if len(results) > _MOST else 1
    shown = [each for number, each in enumerate(results) if number % step == 0 or each in (chosen, best)]
    rows = [ResultRow("chosen on val", _cells(chosen), bold=True)]
    rows += [] if best is None else [ResultRow("best on test", _cells(best))]
    rows += [ResultRow("", _cells(each), apart=True) for each in shown]
    counted = ", ".join(f"{count} on {name}" for name, count in evaluation.classes_counted.items())
    notes = [
        *([_PAPERS_RULE] if best is not None else []),
        f"{len(results)} values of λ in ½ λ ‖W‖² beside the summed loss (scikit-learn's C is 1/λ); biases are free",
        f"{evaluation.metric} over classes: {counted}; all fits together {evaluation.seconds:.1f} s",
        *evaluation.notes,
    ]
    title = f"{evaluation.data}, {evaluation.backbone}: {evaluation.task}, {evaluation.metric} in percent"
    return ResultTable(title, ("λ", "val", "test", "iterations"), rows, notes)


def _cells(result: PenaltyResult) -> list[str]:
    iterations = f"{result.iterations}" + ("" if result.converged else " (not converged)")
    return [f"{result.penalty:.3g}", format_measure(result.val, 2), format_measure(result.test, 2), iterations]


def penalty_figure(evaluation: LinearEvaluation, *, width: float = style.WIDE) -> Figure:
    """Draw the score on val, and on test where it is known, against the penalty; a dot is the best of a curve."""
    results, best = evaluation.results, evaluation.best_on_test
    figure, (axis,) = style.make_figure(width=width, height=3.2)
    penalties = [result.penalty for result in results]
    curves = [(f"{evaluation.metric} on val", [result.val for result in results], evaluation.chosen, style.BLUE)]
    if best is not None:
        measured = [float("nan") if result.test is None else result.test for result in results]
        curves.append((f"{evaluation.metric} on test", measured, best, style.VERMILLION))
    for name, scores, top, color in curves:
        values = [100 * score for score in scores]
        axis.plot(penalties, values, color=color, linewidth=2, solid_capstyle="round", label=name)
        place = [top.penalty], [values[results.index(top)]]
        style.draw_line(axis, *place, color, linestyle="none", linewidth=1.5, markersize=8, clip_on=False)
    axis.axvline(evaluation.chosen.penalty, color=style.MUTED_COLOR, linewidth=0.8, linestyle=style.DASHED, zorder=1)
    axis.set_xscale("log")
    axis.minorticks_off()
    axis.set_xlabel("penalty λ")
    style.add_legend(figure, 2)
    return figure


def linear_eval_page(evaluation: LinearEvaluation, page: Page) -> Markup:
    """Return the page."""
    chosen, best, metric = evaluation.chosen, evaluation.best_on_test, evaluation.metric
    finding = f"Val chooses the penalty {chosen.penalty:.3g}: {metric} {format_measure(chosen.val)} on val"
    if best is not None:
        finding += f", {format_measure(chosen.test)} on test (the best on test: {format_measure(best.test)})"
    columns = {name: [getattr(each, name) for each in evaluation.results] for name in ("penalty", "val", "test")}
    return render_template(
        "pages/linear_eval.html",
        title=f"Linear classifiers on the features of {evaluation.data}",
        evaluation=evaluation,
        finding=f"{finding}.",
        figure=page.figure("penalties", finding, columns, penalty_figure, evaluation),
        table=linear_eval_table(evaluation),
        class_rows=[
            (each.name, [each.present, format_measure(each.val), format_measure(each.test)])
            for each in sorted(evaluation.class_results, key=lambda each: -1 if each.val is None else each.val)
        ],
        has_images=False,
    )
