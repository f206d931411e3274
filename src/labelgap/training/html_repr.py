"""A run as HTML for notebooks: a small table and a sparkline of the scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from labelgap.core.text import html_facts, pluralize
from labelgap.training.config import RunConfig
from labelgap.training.history import (
    describe_estimated,
    describe_kept_epoch,
    has_accuracy,
    trained_epochs,
    unseen_splits,
)
from labelgap.training.rerun import format_value, run_review_commands
from labelgap.training.settings import PROTOCOLS

_WIDTH: Final = 220
_HEIGHT: Final = 44
_EDGE: Final = 5
_NO_ACCURACY: Final = "the known labels support no accuracy"
_SCORES: Final = {
    "clean": "val mAP by epoch",
    "known": "val mAP by epoch, over the classes with known presents and absents",
    "observed": "how high the observed labels of val rank, by epoch; this orders epochs and is no accuracy",
}


def run_html(path: Path, config: RunConfig, history: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]) -> str:
    """Return a self-contained HTML fragment of a run; all text is escaped.

    It shows only numbers that the known labels support.
    """
    source = [format_value(config.data[key]) for key in ("name", "path") if config.data.get(key)]
    rows = [
        ("method", config.method if config.why is None else f"{config.method}: {config.why}"),
        ("data", f"{' '.join(source) or 'made by hand'}, {pluralize(len(config.classes), 'class')}"),
        ("trained", f"{PROTOCOLS[config.protocol]}, {config.backbone}"),
        ("epochs", _epochs(config, history, metrics)),
        *((heading, _measured(metrics[split])) for split, heading in reversed(unseen_splits(metrics).items())),
        *(("to measure it", command) for command in _review_commands(path, config, metrics)),
        ("folder", str(path)),
    ]
    return html_facts("run", rows, _sparkline(config.select, history, metrics.get("best_epoch")))


def _review_commands(path: Path, config: RunConfig, metrics: Mapping[str, Any]) -> tuple[str, ...]:
    return run_review_commands(path, config) if metrics and not has_accuracy(metrics) else ()


def _epochs(config: RunConfig, history: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]) -> str:
    if not metrics:
        return f"{trained_epochs(history)} of {config.epochs} so far, not finished"
    kept = describe_kept_epoch(metrics)
    return f"{kept}; stopped before {config.epochs}" if metrics.get("interrupted") else kept


def _measured(measured: Mapping[str, Any]) -> str:
    estimated = describe_estimated(measured)
    if measured["map"] is None:
        return _NO_ACCURACY if estimated is None else f"{_NO_ACCURACY}; estimated mAP {estimated}"
    counted = f"{measured['classes_counted']:,} of {measured['classes']:,} classes"
    f1 = ", ".join(
        f"F1 {average} {100 * value:.1f}"
        for average in ("micro", "macro")
        if (value := measured[f"f1_{average}"]) is not None
    )
    return f"mAP {100 * measured['map']:.1f} over {counted}; {f1}"


def _sparkline(rule: str, history: Sequence[Mapping[str, Any]], best_epoch: int | None) -> str:
    """Draw the score of every epoch, with a dot at the best one; nothing with fewer than two scores."""
    scores = {record["epoch"]: record.get("score") for record in history}
    points = {epoch: float(score) for epoch, score in scores.items() if score is not None and math.isfinite(score)}
    if rule not in _SCORES or len(points) < 2:
        return ""
    low, high, first, last = min(points.values()), max(points.values()), min(points), max(points)

    def position(epoch: int) -> tuple[float, float]:
        across = (epoch - first) / (last - first)
        up = (points[epoch] - low) / (high - low) if high > low else 0.5
        return _EDGE + across * (_WIDTH - 2 * _EDGE), _HEIGHT - _EDGE - up * (_HEIGHT - 2 * _EDGE)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(position, points))
    best = max(points, key=lambda epoch: points[epoch]) if best_epoch is None else best_epoch
    dot = ""
    if best in points:
        x, y = position(best)
        dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="currentColor"/>'
    numbers = "" if rule == "observed" else f": {100 * low:.1f} to {100 * high:.1f}"
    caption = f"{_SCORES[rule]}{numbers}"
    return (
        f'<svg role="img" aria-label="{caption}" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>{dot}</svg>'
        f'<div style="font-size:smaller">{caption}</div>'
    )
