"""How a run shows itself in a notebook: a small table, and a line of how it went."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any, Final

from labelgap.training.config.describe import PROTOCOLS, format_value

if TYPE_CHECKING:
    from labelgap.training.run import Run

__all__ = ["run_html"]

_WIDTH: Final = 220
_HEIGHT: Final = 44
_EDGE: Final = 5
_NO_ACCURACY: Final = "the known labels support no accuracy"
_SCORES: Final = {
    "clean": "val mAP by epoch",
    "known": "val mAP by epoch, over the classes with known presents and absents",
    "observed": "how high the observed labels of val rank, by epoch; this orders epochs and is no accuracy",
}


def run_html(run: Run) -> str:
    """Return a run as a piece of HTML that needs nothing else; every text that somebody made up is escaped.

    Numbers stand in it only where the known labels support them.
    """
    config = run.config
    data = (
        " ".join(format_value(config.data[key]) for key in ("name", "path") if config.data.get(key)) or "made by hand"
    )
    rows = [
        ("method", f"{config.method}: {config.why}"),
        ("data", f"{data}, {len(config.classes):,} classes"),
        ("trained", f"{PROTOCOLS[config.protocol]}, {config.backbone}"),
        ("epochs", _epochs(run)),
        *((split, _measured(run.metrics[split])) for split in ("val", "test") if split in run.metrics),
        ("folder", str(run.path)),
    ]
    cells = "".join(
        f'<tr><th style="text-align:left;padding:2px 12px 2px 0">{name}</th>'
        f'<td style="text-align:left;padding:2px 0">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f'<div class="labelgap-run"><table style="border-collapse:collapse">{cells}</table>{_sparkline(run)}</div>'


def _epochs(run: Run) -> str:
    done, planned = len(run.history), run.config.epochs
    if not run.finished:
        return f"{done} of {planned} so far, not finished"
    kept = f"epoch {run.metrics['best_epoch']} of {run.metrics['epochs']} kept"
    return f"{kept}; stopped before {planned}" if run.metrics.get("interrupted") else kept


def _measured(measured: dict[str, Any]) -> str:
    if measured["map"] is None:
        return _NO_ACCURACY
    counted = f"{measured['classes_counted']:,} of {measured['classes']:,} classes"
    decided = ", ".join(
        f"F1 {name} {100 * measured[field]:.1f}"
        for name, field in (("micro", "f1_micro"), ("macro", "f1_macro"))
        if measured[field] is not None
    )
    return f"mAP {100 * measured['map']:.1f} over {counted}; {decided}"


def _sparkline(run: Run) -> str:
    """Draw the score of every epoch, with a dot at the one that was kept; nothing without two scores."""
    rule = run.config.select
    scores = {record["epoch"]: record.get("score") for record in run.history}
    points = {epoch: float(score) for epoch, score in scores.items() if score is not None and math.isfinite(score)}
    if rule not in _SCORES or len(points) < 2:
        return ""
    low, high, first, last = min(points.values()), max(points.values()), min(points), max(points)

    def place(epoch: int) -> tuple[float, float]:
        across = (epoch - first) / (last - first)
        up = (points[epoch] - low) / (high - low) if high > low else 0.5
        return _EDGE + across * (_WIDTH - 2 * _EDGE), _HEIGHT - _EDGE - up * (_HEIGHT - 2 * _EDGE)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, points))
    best = run.metrics.get("best_epoch", max(points, key=lambda epoch: points[epoch]))
    dot = ""
    if best in points:
        x, y = place(best)
        dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="currentColor"/>'
    numbers = "" if rule == "observed" else f": {100 * low:.1f} to {100 * high:.1f}"
    caption = f"{_SCORES[rule]}{numbers}"
    return (
        f'<svg role="img" aria-label="{caption}" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>{dot}</svg>'
        f'<div style="font-size:smaller">{caption}</div>'
    )
