"""The table of a linear evaluation for the terminal."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from labelgap.reporting.tables.terminal import terminal_table
from labelgap.studies.linear_eval import LinearEvaluation, PenaltyResult

__all__ = ["linear_eval_table"]

_EVERY: Final = 4
"""Of many penalties, one row for so many is shown."""
_MOST: Final = 15
_PAPERS_RULE: Final = "best on test: the paper's rule. It is chosen on the images it is reported on, and no estimate"


def linear_eval_table(evaluation: LinearEvaluation) -> Table:
    """Return a table: the penalty that val chose, the one that is best on test, and some of the others."""
    results, chosen, best = evaluation.results, evaluation.chosen, evaluation.best_on_test
    step = _EVERY if len(results) > _MOST else 1
    shown = [each for number, each in enumerate(results) if number % step == 0 or each in (chosen, best)]
    rows = [("chosen on val", _cells(chosen), True, False)]
    if best is not None:
        rows.append(("best on test", _cells(best), False, False))
    rows += [("", _cells(each), False, True) for each in shown]
    counted = ", ".join(f"{count} on {name}" for name, count in evaluation.classes_counted.items())
    notes = [
        *(
            ["best on test: the paper's rule. It is chosen on the images it is reported on, and no estimate"]
            if best
            else []
        ),
        f"{len(results)} values of λ in ½ λ ‖W‖² beside the summed loss (scikit-learn's C is 1/λ); biases are free",
        f"{evaluation.metric} over classes: {counted}; all fits together {evaluation.seconds:.1f} s",
        *evaluation.notes,
    ]
    title = f"{evaluation.data}, {evaluation.backbone}: {evaluation.task}, {evaluation.metric} in percent"
    return terminal_table(title, ["λ", "val", "test", "iterations"], rows, notes)


def _cells(result: PenaltyResult) -> list[str]:
    test = "–" if result.test is None else f"{100 * result.test:.2f}"
    iterations = f"{result.iterations}" + ("" if result.converged else " (not converged)")
    return [f"{result.penalty:.3g}", f"{100 * result.val:.2f}", test, iterations]
