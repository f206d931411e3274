"""A sweep: its page, table and figures; how far it is, and what it gained."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labelgap.core.text import pluralize
from labelgap.reporting import style
from labelgap.reporting.descriptions import find_method
from labelgap.reporting.formatting import (
    NO_VALUE,
    SELECTION_RULES,
    ResultRow,
    ResultTable,
    format_elapsed,
    format_measure,
    single_line,
    truncate_label,
    val_score_name,
    wrapped_command,
)
from labelgap.reporting.page import REPORT_FILE, Page, render_template
from labelgap.reporting.sections.parameter_effects import parameter_effects_section
from labelgap.studies.sweep.results import Sweep, SweepTrial, format_values, trial_name
from labelgap.studies.sweep.search_space import Value
from labelgap.training.rerun import train_command, train_script, without_directories

_OUT: Final = "runs/best"
_TOLERANCE: Final = 1e-6
_MAX_ROWS: Final = 10
_MAX_LISTED: Final = 20  # trials that were stopped or that failed in the page
_MAX_LABELS: Final = 14  # values of a parameter that are written beside its axis
_GOOD: Final = 0.1  # share of the trials that is drawn in blue: the best ones


def describe_progress(sweep: Sweep) -> str:
    """Return how many trials there are, of each state."""
    states = Counter(trial.state for trial in sweep.trials)
    parts = [f"{states[name]:,} {name}" for name in ("complete", "pruned", "failed") if states[name]]
    if sweep.running:
        parts.append(f"{sweep.running:,} running in other processes: the last of them trains the best settings")
    elif sweep.retrained_score is None:
        parts.append(f"the same command trains {'the best settings' if sweep.finished else 'the others'}")
    total = f"{len(sweep.trials):,} of {pluralize(sweep.asked, 'trial')}"
    return f"{total}: {', '.join(parts)}" if parts else total


def describe_auto(sweep: Sweep) -> str:
    """Return how the trials stand to what ``labelgap train`` does without settings; "" before that is known."""
    auto, name = sweep.auto, "auto, what labelgap train does without settings,"
    if auto is None or auto.state == "running":
        return ""
    if auto.score is None:
        return f"{name} has no score: {auto.reason}"
    gains = [100 * (trial.score - auto.score) for trial in sweep.ranked if trial.score and trial.score > auto.score]
    above = f"{len(gains):,} of {pluralize(len(sweep.ranked), 'trial')} above it, by up to {max([0, *gains]):.2f}"
    above = above if gains else "no trial is above it"
    return f"{name} has {100 * auto.score:.2f} with {format_values(auto.values)}: {above}"


def describe_retraining(sweep: Sweep) -> str:
    """Return whether the run of the best trial has the score of the trial."""
    if sweep.best is None or sweep.best.score is None or sweep.retrained_score is None:
        return ""
    score, again = sweep.best.score, sweep.retrained_score
    if abs(score - again) < _TOLERANCE:
        return f"Trial {sweep.best.number} was trained again as a run, to the same score {100 * again:.2f}"
    return (
        f"Trial {sweep.best.number} had the score {100 * score:.2f}, and {100 * again:.2f} when it was trained "
        "again as a run: on another device, or by operations of a GPU that are not deterministic"
    )


def best_command(sweep: Sweep, *, whole_path: bool = True) -> str:
    """Return the command that trains the best settings, or Python where none can; "" before they are known."""
    run = sweep.best_run()
    if run is None:
        return ""
    config = run.config if whole_path else without_directories(run.config)
    return train_command(config, _OUT) or train_script(config, _OUT)


def _score_name(sweep: Sweep) -> str:
    return val_score_name(sweep.rule, folds=bool(sweep.folds))


def sweep_columns(sweep: Sweep) -> tuple[str, ...]:
    """Return the headers, after the trial."""
    names = (single_line(parameter.name.replace("_", " ")) for parameter in sweep.space)
    return (_score_name(sweep), *names, "epoch", "time")


def sweep_rows(sweep: Sweep) -> list[ResultRow]:
    """Return the best trials and ``auto``, the highest score first; the best is bold."""
    auto = [] if sweep.auto is None or sweep.auto.score is None else [sweep.auto]
    return _rows(sweep, [*sweep.ranked[:_MAX_ROWS], *auto])


def _rows(sweep: Sweep, trials: Iterable[SweepTrial]) -> list[ResultRow]:
    rows = []
    for trial in sorted(trials, key=lambda trial: -(trial.score or 0.0)):
        values = (trial.values.get(parameter.name, NO_VALUE) for parameter in sweep.space)
        shown = (f"{value:.4g}" if isinstance(value, float) else single_line(str(value)) for value in values)
        times = f"{trial.epoch} of {trial.epochs}", format_elapsed(trial.seconds)
        label = trial_name(trial) if trial.number else f"auto: {trial.values['method']}"
        rows.append(ResultRow(label, (format_measure(trial.score, 2), *shown, *times), trial == sweep.best))
    return rows


def sweep_table(sweep: Sweep) -> ResultTable:
    """Return the table of the best trials for the terminal."""
    title = f"{sweep.method} on {sweep.data}: the best of {len(sweep.trials):,} trials"
    count, epochs = len(sweep.pruned), sum(trial.epochs for trial in sweep.pruned)
    notes = [f"{pluralize(count, 'trial')} stopped early, after {pluralize(epochs, 'epoch')} in all: behind the median"]
    return ResultTable(title, sweep_columns(sweep), sweep_rows(sweep), notes if count else [])


def importance_figure(sweep: Sweep, *, width: float = style.WIDE) -> Figure:
    """Draw the share of the variance of the scores that each setting explains."""
    rows = sorted(sweep.importance.items(), key=lambda pair: -pair[1])
    figure, (axis,) = style.make_figure(width=width, height=0.8 + 0.36 * len(rows))
    places = np.arange(len(rows))
    axis.barh(places, [value for _, value in rows], height=0.55, color=style.BLUE)
    for place, (_, value) in enumerate(rows):
        style.draw_value(axis, f"{100 * value:.0f} %", value, place, offset=6)
    style.set_rows(axis, places, style.fit_names((name.replace("_", " ") for name, _ in rows), width), 12)
    axis.set_xlim(0, max(1.15 * max(value for _, value in rows), 0.1))
    style.swap_grid(axis)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    return figure


def parallel_figure(sweep: Sweep, score: str, *, width: float = style.WIDE) -> Figure:
    """Draw every trial with a score as a line over an axis for each setting: the best thick, ``auto`` a green mark."""
    trials = [trial for trial in sweep.trials if trial.score is not None and trial.state != "running"]
    figure, (axis,) = style.make_figure(width=width, height=4.2)
    axis.grid(False)
    axis.spines["bottom"].set_visible(False)
    scores = [100 * (trial.score or 0.0) for trial in trials]
    line = None if sweep.auto is None or sweep.auto.score is None else 100 * sweep.auto.score
    ends = scores if line is None else [*scores, line]
    columns = [_Column(float(each.low), float(each.high), each.log, each.choices) for each in sweep.space]
    columns.append(_Column(min(ends), max(ends)))
    places = np.arange(len(columns))
    ranks = {trial.number: rank for rank, trial in enumerate(sweep.ranked)}
    good = max(round(_GOOD * len(ranks)), 2)
    for trial in sorted(trials, key=lambda each: -ranks.get(each.number, len(trials))):
        rank = ranks.get(trial.number, len(trials))
        values = [*(trial.values.get(parameter.name) for parameter in sweep.space), 100 * (trial.score or 0.0)]
        heights = [column.height(value) for column, value in zip(columns, values, strict=True)]
        if rank == 0:
            axis.plot(places, heights, color=style.VERMILLION, linewidth=2.6, marker="o", markersize=6, zorder=5)
        elif rank < good:
            axis.plot(places, heights, color=style.BLUE, linewidth=1.6, zorder=4)
        else:
            dashes = (0, (3, 2)) if trial.state == "pruned" else "-"
            axis.plot(places, heights, color=style.MUTED_COLOR, linewidth=0.8, alpha=0.55, linestyle=dashes)
    for place, column in enumerate(columns):
        axis.plot([place, place], [0, 1], color=style.MUTED_COLOR, linewidth=1.0, zorder=2)
        for height, text in column.ticks():
            _write(axis, truncate_label(text, 14), (place, height), 6, fontsize=10, zorder=6, color=style.TEXT_COLOR)
    if line is not None:  # beside its axis, to the left, where no value is written
        place, height = len(columns) - 1, columns[-1].height(line)
        axis.plot([place - 0.12, place], [height, height], color=style.GREEN, linewidth=2.6, zorder=7)
        _write(axis, f"auto {line:.2f}", (place - 0.12, height), -4, ha="right", color=style.GREEN, zorder=7)
    names = [*(parameter.name.replace("_", " ") for parameter in sweep.space), score]
    letters = 16 if width > style.NARROW else 9
    labels = [textwrap.fill(truncate_label(name), letters, break_long_words=False) for name in names]
    axis.set_xticks(range(len(columns)), labels, parse_math=False)
    axis.tick_params(axis="x", labelcolor=style.TEXT_COLOR, labelsize=12)
    axis.set_yticks([])
    axis.set_ylim(-0.05, 1.05)
    axis.set_xlim(-0.3, len(columns) - 0.6)
    return figure


def _write(axis: Axes, text: str, place: tuple[float, float], offset: float, **look: Any) -> None:
    label = axis.annotate(text, place, (offset, 0), textcoords="offset points", va="center", parse_math=False, **look)
    label.set_bbox({"facecolor": style.BACKGROUND_COLOR, "edgecolor": "none", "alpha": 0.8, "pad": 1})


class _Column:
    """One axis of the parallel coordinates: the height of a value, from 0 to 1, and the values beside it."""

    def __init__(self, low: float, high: float, log: bool = False, choices: Sequence[Value] = ()) -> None:
        middle = float(np.sqrt(low * high)) if log else (low + high) / 2
        numbers = all(isinstance(value, int | float) for value in choices)
        self.choices = sorted(choices, key=float) if numbers else list(choices)
        self.shown = self.choices[:: -(-len(choices) // _MAX_LABELS)] if choices else (low, middle, high)
        low, high = (0, len(choices) - 1) if choices else (low, high)
        self.scale = Normalize(low - 0.5, high + 0.5) if low == high else (LogNorm if log else Normalize)(low, high)

    def height(self, value: Value | None) -> float:
        if self.choices:
            value = self.choices.index(value) if value in self.choices else 0
        return float(self.scale(float(value or 0)))

    def ticks(self) -> list[tuple[float, str]]:
        return [(self.height(each), f"{each:.3g}" if isinstance(each, float) else str(each)) for each in self.shown]


def sweep_page(sweep: Sweep, page: Page) -> Markup:
    """Return the page."""
    trials = [*sweep.trials, *([] if sweep.auto is None else [sweep.auto])]
    run, auto_run, entry = sweep.best_run(), sweep.auto_run(), find_method(sweep.method)
    test_map, auto_map = (each and (each.metrics.get("test") or {}).get("map") for each in (run, auto_run))
    best = None if sweep.best is None else format_values(sweep.best.values)
    scored = [trial for trial in trials if trial.score is not None and trial.state != "running"]
    failed = [trial for trial in trials if trial.state == "failed"][:_MAX_LISTED]
    parallel = importance = None
    if scored:
        columns = {
            "trial": [trial.number or "auto" for trial in scored],
            "state": [trial.state for trial in scored],
            **{each.name: [trial.values.get(each.name) for trial in scored] for each in sweep.space},
            "score": [trial.score for trial in scored],
        }
        description = f"Every trial as a line over its settings; the best: {best or 'none'}."
        parallel = page.figure("trials", description, columns, parallel_figure, sweep, _score_name(sweep))
    if sweep.importance:
        shares = ", ".join(f"{name} {100 * value:.0f} %" for name, value in sweep.importance.items())
        columns = {"setting": list(sweep.importance), "importance": list(sweep.importance.values())}
        importance = page.figure("importance", f"Importance: {shares}.", columns, importance_figure, sweep)
    return render_template(
        "pages/sweep.html",
        title=f"The settings of {sweep.method} on {sweep.data}",
        sweep=sweep,
        progress=describe_progress(sweep),
        best=best,
        score=_score_name(sweep),
        test_map=test_map,
        auto_map=auto_map,
        parallel=parallel,
        columns=("", *sweep_columns(sweep)),
        rows=sweep_rows(sweep),
        pruned=_rows(sweep, sweep.pruned)[:_MAX_LISTED],
        pruned_epochs=sum(trial.epochs for trial in sweep.pruned),
        whole_epochs=max((trial.epochs for trial in sweep.ranked), default=0),
        importance=importance,
        effects=parameter_effects_section(sweep, page),
        selection=SELECTION_RULES[sweep.rule],
        auto=describe_auto(sweep),
        retraining=describe_retraining(sweep),
        command=wrapped_command(best_command(sweep, whole_path=False)),
        report=f"best/{REPORT_FILE}" if run is not None and (run.path / REPORT_FILE).is_file() else "",
        failed=[(trial_name(each), f"{format_values(each.values)}: {each.reason}") for each in failed],
        method=sweep.method if entry is None else f"{sweep.method}: {entry.summary} ({entry.reference})",
        storage=sweep.storage.rpartition("/")[2] if sweep.storage.startswith("sqlite") else sweep.storage,
        has_images=False,
    )
