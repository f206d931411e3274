"""What a sweep shows: how far it is, what it gained, whether the best trial was trained again to the same score."""

from __future__ import annotations

from collections import Counter

from labelgap.core.text import pluralize
from labelgap.studies.sweep.results import Sweep, format_values
from labelgap.training.rerun import train_command, train_script, without_directories

_OUT = "runs/best"
_TOLERANCE = 1e-6


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
    above = (
        f"{len(gains):,} of {pluralize(len(sweep.ranked), 'trial')} above it, by up to {max(gains):.2f}"
        if gains
        else ""
    )
    return f"{name} has {100 * auto.score:.2f} with {format_values(auto.values)}: {above or 'no trial is above it'}"


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
    """Return the command that trains the best settings, or Python where the commands cannot; "" before they are known.

    ``whole_path``: whether paths have their folders; not in a report, because reports are shared.
    """
    run = sweep.best_run()
    if run is None:
        return ""
    config = run.config if whole_path else without_directories(run.config)
    return train_command(config, _OUT) or train_script(config, _OUT)
