"""The table of a linear evaluation for the terminal."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from labelgap.reporting.tables.terminal import terminal_table
from labelgap.studies.linear_eval import LinearEvaluation, PenaltyResult

LINEAR_EVAL_COLUMNS: Final = ("λ", "val", "test", "iterations")
_EVERY: Final = 4
"""Of many penalties, one row for so many is shown."""
_MOST: Final = 15
_PAPERS_RULE: Final = "best on test: the paper's rule. It is chosen on the images it is reported on, and no estimate"


def linear_eval_table(evaluation: LinearEvaluation) -> Table:
    """Return a table: the penalty that val chose, the one that is best on test, and some of the others."""
    rows = [(name, cells, number == 0, not name) for number, (name, cells) in enumerate(linear_eval_rows(evaluation))]
    title = f"{evaluation.data}, {evaluation.backbone}: {evaluation.task}, {evaluation.metric} in percent"
    return terminal_table(title, list(LINEAR_EVAL_COLUMNS), rows, linear_eval_notes(evaluation))


def linear_eval_rows(evaluation: LinearEvaluation) -> list[tuple[str, list[str]]]:
    """Return the rows of the table, with their names."""
    results, chosen, best = evaluation.results, evaluation.chosen, evaluation.best_on_test
    step = _EVERY if len(results) > _MOST else 1
    shown = [each for number, each in enumerate(results) if number % step == 0 or each in (chosen, best)]
    named = [("chosen on val", chosen), *([("best on test", best)] if best is not None else [])]
    return [(name, _cells(each)) for name, each in (*named, *(("", each) for each in shown))]


def linear_eval_notes(evaluation: LinearEvaluation) -> list[str]:
    """Return what a reader of the table has to know."""
    counted = ", ".join(f"{count} on {name}" for name, count in evaluation.classes_counted.items())
    return [
        *([_PAPERS_RULE] if evaluation.best_on_test is not None else []),
        f"{len(evaluation.results)} values of λ in ½ λ ‖W‖² beside the summed loss (scikit-learn's C is 1/λ); biases "
        "are free",
        f"{evaluation.metric} over classes: {counted}; all fits together {evaluation.seconds:.1f} s",
        *evaluation.notes,
    ]


def _cells(result: PenaltyResult) -> list[str]:
    test = "–" if result.test is None else f"{100 * result.test:.2f}"
    iterations = f"{result.iterations}" + ("" if result.converged else " (not converged)")
    return [f"{result.penalty:.3g}", f"{100 * result.val:.2f}", test, iterations]
