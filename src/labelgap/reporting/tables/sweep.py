"""The table of a sweep's trials, for the terminal and for the page."""

from __future__ import annotations

from rich.table import Table

from labelgap.core.text import pluralize
from labelgap.reporting.analysis.parameter_effects import val_score_name
from labelgap.reporting.formatting import NO_VALUE, format_elapsed, single_line
from labelgap.reporting.tables.terminal import terminal_table
from labelgap.studies.sweep.results import Sweep, SweepTrial, trial_name
from labelgap.studies.sweep.search_space import Value

_MAX_ROWS = 10


def sweep_columns(sweep: Sweep) -> tuple[str, ...]:
    """Return the headers, after the trial."""
    names = (single_line(parameter.name.replace("_", " ")) for parameter in sweep.space)
    return (val_score_name(sweep.rule, folds=bool(sweep.folds)), *names, "epoch", "time")


def sweep_rows(sweep: Sweep, most: int = _MAX_ROWS) -> list[tuple[str, tuple[str, ...]]]:
    """Return the name and the cells of the best trials and of ``auto``, the highest score first."""
    rows = sweep.ranked[:most]
    if sweep.auto is not None and sweep.auto.score is not None:
        rows = sorted([*rows, sweep.auto], key=lambda trial: -(trial.score or 0.0))
    return [(_label(trial), _cells(sweep, trial)) for trial in rows]


def pruned_rows(sweep: Sweep, most: int = _MAX_ROWS) -> list[tuple[str, tuple[str, ...]]]:
    """Return the name and the cells of the trials that were stopped, the highest score first."""
    pruned = sorted(sweep.pruned, key=lambda trial: -(trial.score or 0.0))
    return [(trial_name(trial), _cells(sweep, trial)) for trial in pruned[:most]]


def sweep_table(sweep: Sweep) -> Table:
    """Return the table of the best trials for the terminal."""
    best = "" if sweep.best is None else trial_name(sweep.best)
    rows = [(label, cells, label == best, False) for label, cells in sweep_rows(sweep)]
    title = f"{sweep.method} on {sweep.data}: the best of {len(sweep.trials):,} trials"
    count, epochs = len(sweep.pruned), sum(trial.epochs for trial in sweep.pruned)
    notes = [f"{pluralize(count, 'trial')} stopped early, after {pluralize(epochs, 'epoch')} in all: behind the median"]
    return terminal_table(title, sweep_columns(sweep), rows, notes if count else [])


def _label(trial: SweepTrial) -> str:
    return trial_name(trial) if trial.number else f"auto: {trial.values['method']}"


def _cells(sweep: Sweep, trial: SweepTrial) -> tuple[str, ...]:
    score = NO_VALUE if trial.score is None else f"{100 * trial.score:.2f}"
    values = (_text(trial.values.get(parameter.name, NO_VALUE)) for parameter in sweep.space)
    return (score, *values, f"{trial.epoch} of {trial.epochs}", format_elapsed(trial.seconds))


def _text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else single_line(str(value))
