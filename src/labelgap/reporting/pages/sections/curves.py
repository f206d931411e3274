"""The sections on the effect of hyperparameters, and on the score of val after each epoch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from labelgap.reporting.analysis.epoch_scores import EpochScores, epoch_scores
from labelgap.reporting.analysis.parameter_effects import ParameterEffect, parameter_effects
from labelgap.reporting.figure_data import Columns, stack_columns
from labelgap.reporting.figures.curves import MAX_BANDS, MAX_CURVES, epoch_scores_figure, parameter_effect_figure
from labelgap.reporting.formatting import NO_VALUE, single_line
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.studies import Study
from labelgap.studies.compare.results import Comparison
from labelgap.studies.sweep.results import Sweep

MAX_ROWS = 30
"""Values in the table below a figure; the figure and its numbers have all."""


def parameter_effects_section(what: Comparison | Sweep | Study, figures: FigureRenderer) -> dict[str, Any]:
    """Return the figure and the table of every hyperparameter that has several values."""
    return {"effects": [_effect(effect, figures) for effect in parameter_effects(what)]}


def epoch_scores_section(what: Comparison | Study, figures: FigureRenderer) -> dict[str, Any]:
    """Return the figure of val after each epoch, where two or more trainings were scored by val."""
    curves = epoch_scores(what)
    return {"epoch_scores": render_epoch_scores(curves, figures, "epoch-scores") if len(curves) > 1 else None}


def render_epoch_scores(curves: Mapping[str, EpochScores], figures: FigureRenderer, name: str) -> dict[str, Any]:
    """Return the figure of val after each epoch, and its caption."""
    best = "; ".join(
        f"{single_line(label)} {100 * float(np.nanmax(values.mean)):.1f} in epoch {_numbers(values.best)}"
        for label, values in curves.items()
    )
    columns: dict[str, Columns] = {label: _epoch_columns(values) for label, values in curves.items()}
    figure = figures.render(
        lambda width: epoch_scores_figure(curves, width=width),
        f"Score of val after each epoch. The highest: {best}.",
        name=name,
        data=stack_columns("training", columns),
    )
    seeds = max(len(values.scores) for values in curves.values())
    parts = ["The mark is the epoch that was kept."]
    if seeds > 1:
        bands = ", bands their range" if len(curves) <= MAX_BANDS else ""
        parts = [f"Lines are means over {seeds} seeds{bands}; the mark is the median of the epochs kept."]
    if len(curves) > MAX_CURVES:
        parts.append(f"The {MAX_CURVES} highest of {len(curves)} are drawn.")
    parts.append("The axis does not begin at zero; far lower scores of the first epochs may be below it.")
    parts.append("Val is scored after every epoch; test is measured once, in the epoch that was kept.")
    return {"figure": figure, "caption": " ".join(parts)}


def figure_name(*parts: str) -> str:
    """Return a name for the files of a figure.

    Example:
        >>> figure_name("effect", "ll-ct", "delta_rel")
        'effect-ll-ct-delta-rel'
    """
    return "-".join(re.findall("[a-z0-9]+", " ".join(parts).lower()))


def _effect(effect: ParameterEffect, figures: FigureRenderer) -> dict[str, Any]:
    values = [f"{value:g}" if isinstance(value, float) else single_line(str(value)) for value in effect.values]
    seeds = effect.val.shape[1]
    columns = {
        effect.name: np.repeat(np.array(effect.values, dtype=object), seeds),
        "seed": np.tile(np.arange(seeds), len(values)),
        "val": effect.val.ravel(),
        "test": effect.test.ravel(),
        "epoch": effect.epoch.ravel(),
        "settings_tried": np.repeat(effect.tried, seeds),
    }
    cells = [[_spread(100 * table[row]) for table in (effect.val, effect.test)] for row in range(len(values))]
    tested = bool(np.isfinite(effect.test).any())
    several = bool((effect.tried > 1).any())
    rows = []
    for row, text in enumerate(values):
        tried = [str(effect.tried[row])] if several else []
        rows.append((text, [*cells[row][: 1 + tested], _spread(effect.epoch[row], 1), *tried]))
    shown = "; ".join(f"{text}: {row[0]}" for text, row in zip(values, cells, strict=True))
    figure: ResponsiveFigure = figures.render(
        lambda width: parameter_effect_figure(effect, width=width),
        f"{effect.val_name} against {effect.name} of {effect.method}. {shown}.",
        name=figure_name("effect", effect.method, effect.name),
        data=columns,
    )
    return {
        "title": single_line(f"{effect.method}: {effect.name}"),
        "figure": figure,
        "caption": _caption(effect, seeds, tested),
        "columns": [
            "",
            effect.val_name,
            *(["test mAP"] if tested else []),
            "best epoch",
            *(["settings tried"] if several else []),
        ],
        "rows": rows[:MAX_ROWS],
    }


def _caption(effect: ParameterEffect, seeds: int, tested: bool) -> str:
    parts = []
    if seeds > 1:
        parts.append("Dots are means over seeds, bars their standard deviation.")
    if (effect.tried > 1).any():
        parts.append("Each value is shown with the best of its settings by the same score.")
    if not tested:
        parts.append("Test was not measured for each value.")
    parts.append("The axis does not begin at zero.")
    return " ".join(parts)


def _spread(values: np.ndarray[Any, np.dtype[np.float64]], digits: int = 2) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return NO_VALUE
    text = f"{known.mean():.{digits if len(known) > 1 or digits > 1 else 0}f}"
    return text if len(known) == 1 else f"{text} ± {known.std(ddof=1):.{digits}f}"


def _numbers(values: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    return ", ".join(map(str, dict.fromkeys(values.tolist())))


def _epoch_columns(values: EpochScores) -> Columns:
    seeds, epochs = values.scores.shape
    return {
        "seed": np.repeat(np.arange(seeds), epochs),
        "epoch": np.tile(values.epochs, seeds),
        "score": values.scores.ravel(),
        "kept": [int(epoch == best) for best in values.best for epoch in values.epochs],
        "test_map": [
            test if epoch == best else None
            for best, test in zip(values.best, values.test, strict=True)
            for epoch in values.epochs
        ],
    }
