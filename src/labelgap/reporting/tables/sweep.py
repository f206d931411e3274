"""The table of a sweep's trials, for the terminal and for the page."""

from __future__ import annotations

from rich.table import Table

from labelgap.core.text import pluralize
from labelgap.reporting.formatting import NO_VALUE, format_elapsed, single_line
from labelgap.reporting.tables.terminal import terminal_table
from labelgap.studies.sweep.results import Sweep, SweepTrial
from labelgap.studies.sweep.search_space import Value

__all__ = ["pruned_rows", "score_name", "sweep_columns", "sweep_rows", "sweep_table"]

_MAX_ROWS = 10


def score_name(sweep: Sweep) -> str:
    """Return what the score of val is: an accuracy, or a ranking of the observed labels."""
    return "observed ranking of val" if sweep.rule == "observed" else "val mAP"


def sweep_columns(sweep: Sweep) -> tuple[str, ...]:
    """Return the headers, after the trial."""
    names = (single_line(parameter.name.replace("_", " ")) for parameter in sweep.space)
    return (score_name(sweep), *names, "epoch", "time")


def sweep_rows(sweep: Sweep, most: int = _MAX_ROWS) -> list[tuple[str, tuple[str, ...]]]:
    """Return the number and the cells of the best trials."""
    return [(f"trial {trial.number}", _cells(sweep, trial)) for trial in sweep.ranked[:most]]


def pruned_rows(sweep: Sweep, most: int = _MAX_ROWS) -> list[tuple[str, tuple[str, ...]]]:
    """Return the number and the cells of the trials that were stopped, the highest score first."""
    pruned = sorted(sweep.pruned, key=lambda trial: -(trial.score or 0.0))
    return [(f"trial {trial.number}", _cells(sweep, trial)) for trial in pruned[:most]]


def sweep_table(sweep: Sweep) -> Table:
    """Return the table of the best trials for the terminal."""
    rows = [(label, cells, number == 0, False) for number, (label, cells) in enumerate(sweep_rows(sweep))]
    title = f"{sweep.method} on {sweep.data}: the best of {len(sweep.trials):,} trials"
    count, epochs = len(sweep.pruned), sum(trial.epochs for trial in sweep.pruned)
    notes = [f"{pluralize(count, 'trial')} stopped early, after {pluralize(epochs, 'epoch')} in all: behind the median"]
    return terminal_table(title, sweep_columns(sweep), rows, notes if count else [])


def _cells(sweep: Sweep, trial: SweepTrial) -> tuple[str, ...]:
    score = NO_VALUE if trial.score is None else f"{100 * trial.score:.2f}"
    values = (_text(trial.values.get(parameter.name, NO_VALUE)) for parameter in sweep.space)
    return (score, *values, f"{trial.epoch} of {trial.epochs}", format_elapsed(trial.seconds))


def _text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else single_line(str(value))
