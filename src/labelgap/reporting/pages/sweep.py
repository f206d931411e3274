"""The values of a sweep's page, for ``sweep.html``."""

from __future__ import annotations

from typing import Any, Final

from labelgap.core.text import pluralize
from labelgap.reporting.analysis.parameter_effects import val_score_name
from labelgap.reporting.figures.sweep import importance_figure, parallel_figure
from labelgap.reporting.formatting import (
    format_elapsed,
    format_measure,
    selection_rule_text,
    single_line,
    wrapped_command,
)
from labelgap.reporting.html import FigureRenderer
from labelgap.reporting.pages.sections.curves import parameter_effects_section
from labelgap.reporting.run_description import find_method
from labelgap.reporting.sweep_summary import best_command, describe_auto, describe_progress, describe_retraining
from labelgap.reporting.tables.sweep import pruned_rows, sweep_columns, sweep_rows
from labelgap.studies.sweep.results import Sweep, format_values, trial_name

_MAX_PRUNED: Final = 20


def sweep_page(sweep: Sweep, figures: FigureRenderer) -> dict[str, Any]:
    """Return the values of the template."""
    score = val_score_name(sweep.rule, folds=bool(sweep.folds))
    trials = [*sweep.trials, *([] if sweep.auto is None else [sweep.auto])]
    scored = [trial for trial in trials if trial.score is not None and trial.state != "running"]
    shares = ", ".join(f"{name} {100 * value:.0f} %" for name, value in sweep.importance.items())
    best, run = sweep.best, sweep.best_run()
    return {
        "title": single_line(f"The settings of {sweep.method} on {sweep.data}"),
        "progress": describe_progress(sweep),
        "finding": _finding(sweep, score),
        "observed": sweep.rule == "observed",
        "parallel": figures.render(
            lambda width: parallel_figure(sweep, score, width=width),
            f"Every trial as a line over its settings; the best: {format_values(best.values) if best else 'none'}.",
            name="trials",
            data={
                "trial": [trial.number or "auto" for trial in scored],
                "state": [trial.state for trial in scored],
                **{each.name: [trial.values.get(each.name) for trial in scored] for each in sweep.space},
                "score": [trial.score for trial in scored],
            },
        )
        if scored
        else None,
        "pruned": pruned_rows(sweep, _MAX_PRUNED),
        "pruning": _describe_pruning(sweep),
        "importance": figures.render(
            lambda width: importance_figure(sweep, width=width),
            f"Importance: {shares}.",
            name="importance",
            data={"setting": list(sweep.importance), "importance": list(sweep.importance.values())},
        )
        if sweep.importance
        else None,
        "columns": ("", *sweep_columns(sweep)),
        "rows": sweep_rows(sweep),
        "selection": _selection(sweep),
        "auto": describe_auto(sweep),
        "retraining": describe_retraining(sweep),
        "command": wrapped_command(best_command(sweep, whole_path=False)),
        "report": "best/report.html" if run is not None and (run.path / "report.html").is_file() else "",
        "failed": [
            (trial_name(trial), single_line(f"{format_values(trial.values)}: {trial.reason}"))
            for trial in trials
            if trial.state == "failed"
        ][:20],
        "settings": _settings(sweep),
        **parameter_effects_section(sweep, figures),
    }


def _selection(sweep: Sweep) -> str:
    """Return how trials were scored, and what follows from it."""
    if not sweep.folds:
        return f"{selection_rule_text(sweep.rule)} The trials were ordered in the same way."
    text = (
        f"There is no val. Trials were ordered by {sweep.folds}-fold cross-validation, all on the same folds: each "
        "training image was scored by a head that had not seen its labels, and classes were weighted by their known "
        "presents. The final head was trained on all images."
    )
    ranking = " Too few labels are known to measure accuracy: unknown ones counted as absent, which orders trials only."
    return text + (ranking if sweep.rule == "observed" else "")


def _describe_pruning(sweep: Sweep) -> str:
    """Return what was stopped, and what it saved; "" where nothing was."""
    if not sweep.pruned:
        return ""
    trained = sum(trial.epochs for trial in sweep.pruned)
    whole = [trial.epochs for trial in sweep.ranked]
    text = f"{pluralize(len(sweep.pruned), 'trial')} stopped after {pluralize(trained, 'epoch')} in all"
    return f"{text}, of {max(whole) * len(sweep.pruned):,} that they would have had" if whole else text


def _finding(sweep: Sweep, score: str) -> str:
    """Return the best trial, and what its run reached on test."""
    best, run = sweep.best, sweep.best_run()
    if best is None:
        return ""
    text = f"Trial {best.number} is the best, with {format_values(best.values)}: {score} {100 * (best.score or 0):.2f}"
    measured, auto = (each and (each.metrics.get("test") or {}).get("map") for each in (run, sweep.auto_run()))
    if not measured:
        return f"{text}."
    line = f" (auto {format_measure(auto)})" if auto else ""
    return f"{text}; test mAP {format_measure(measured)}{line}, which chose nothing."


def _settings(sweep: Sweep) -> list[tuple[str, str]]:
    entry = find_method(sweep.method)
    pairs = [
        ("method", sweep.method if entry is None else f"{sweep.method}: {entry.summary} ({entry.reference})"),
        ("data", sweep.data),
        ("images", ", ".join(f"{count:,} {name}" for name, count in sweep.images.items())),
        ("backbone", sweep.backbone),
        ("protocol", sweep.protocol),
        ("epochs", str(sweep.epochs)),
        ("searched", "; ".join(map(str, sweep.space))),
        ("storage", sweep.storage.rpartition("/")[2] if sweep.storage.startswith("sqlite") else sweep.storage),
        ("time of all trials", format_elapsed(sweep.seconds)),
    ]
    return [(name, single_line(text)) for name, text in pairs]
