"""Figures of scores against a hyperparameter, against epochs, and against the number of observed labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from labelgap.reporting.analysis.epoch_scores import EpochScores
from labelgap.reporting.analysis.label_budget import LabelBudget
from labelgap.reporting.analysis.parameter_effects import ParameterEffect
from labelgap.reporting.colors import BACKGROUND_COLOR, BLUE, COLOR_CYCLE, GREEN, TEXT_COLOR, VERMILLION
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, add_legend, make_figure, set_epoch_axis

MAX_CURVES: Final = 12
"""Curves in one figure; of more, those with the highest scores are drawn."""
MAX_BANDS: Final = 4
"""Curves with a band for their seeds; of more, bands would cover each other."""
_MAX_VALUES: Final = 8
"""Values of a parameter that each have a tick."""
_LETTER: Final = 0.105
"""Width of a letter of a tick's label, in inches."""
_LOG_RATIO: Final = 20
"""The largest value to the smallest from which an axis is logarithmic."""


def parameter_effect_figure(effect: ParameterEffect, *, width: float = WIDE) -> Figure:
    """Draw the score of val and the test mAP against the values of a parameter, and beside them the best epoch.

    Dots are means over seeds, bars their standard deviation.
    """
    narrow = width <= NARROW
    rows, columns = (2, 1) if narrow else (1, 2)
    figure, axes = make_figure(rows, columns, width=width, height=2.6 * rows + 0.4)
    places = np.array(effect.values, dtype=np.float64) if effect.numeric else np.arange(len(effect.values), dtype=float)
    connected = len(places) <= _MAX_VALUES or bool((effect.tried == 1).all() and len(places) <= 3 * _MAX_VALUES)
    lines, labels = [], []
    shown = ((effect.val_name, effect.val, BLUE, "o"), ("test mAP", effect.test, VERMILLION, "s"))
    for label, table, color, marker in shown:
        if np.isfinite(table).any():
            lines.append(_with_spread(axes[0], places, 100 * table, color, marker, connected))
            labels.append(label)
    _with_spread(axes[1], places, effect.epoch, GREEN, "^", connected)
    axes[0].set_title("mAP" if effect.val_name.endswith("mAP") else "score", loc="left", color=TEXT_COLOR)
    axes[1].set_title("best epoch", loc="left", color=TEXT_COLOR)
    axes[1].yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes[1].set_ylim(bottom=0)
    for axis in axes:
        _value_axis(axis, effect, places)
    add_legend(figure, lines, labels, columns=2)
    return figure


def epoch_scores_figure(curves: Mapping[str, EpochScores], *, width: float = WIDE) -> Figure:
    """Draw the score of val after each epoch, the mean over seeds, with a mark at the epoch that was kept.

    A band is the range of the seeds, where there are few curves. Of more than ``MAX_CURVES`` those with the highest
    scores are drawn.
    """
    narrow = width <= NARROW
    shown = sorted(curves, key=lambda label: -float(np.nanmax(curves[label].mean)))[:MAX_CURVES]
    figure, (axis,) = make_figure(width=width, height=3.6 + (0.22 * len(shown) if narrow else 0.1 * len(shown)))
    lines, drawn = [], list[NDArray[np.float64]]()
    for number, label in enumerate(label for label in curves if label in shown):
        values, color, marker, dash = curves[label], *_curve_style(number)
        means = 100 * values.mean
        drawn.append(means)
        axis.plot(values.epochs, means, color=color, linewidth=1.8, linestyle=dash)
        if len(values.scores) > 1 and len(shown) <= MAX_BANDS:
            low, high = (100 * limit(values.scores, axis=0) for limit in (np.nanmin, np.nanmax))
            axis.fill_between(values.epochs, low, high, color=color, alpha=0.12, linewidth=0)
            drawn += [low, high]
        kept = int(np.clip(round(float(np.median(values.best))), values.epochs[0], values.epochs[-1]))
        axis.plot(
            [kept],
            [means[kept - values.first]],
            marker=marker,
            markersize=8,
            color=color,
            markeredgecolor=BACKGROUND_COLOR,
        )
        lines.append(Line2D([], [], color=color, linestyle=dash, marker=marker, markeredgecolor=BACKGROUND_COLOR))
    first = min(values.first for values in curves.values())
    set_epoch_axis(axis, max(int(values.epochs[-1]) for values in curves.values()), first)
    names = dict.fromkeys(values.name for values in curves.values())
    axis.set_title(", ".join(names), loc="left", color=TEXT_COLOR)
    axis.set_xlabel("epoch")
    _clip_low(axis, drawn)
    length = 36 if narrow else 24
    labels = [truncate_label(label, length) for label in curves if label in shown]
    add_legend(figure, lines, labels, columns=1 if narrow else min(len(labels), 4))
    return figure


def label_budget_figure(methods: Mapping[str, LabelBudget], name: str = "test mAP", *, width: float = WIDE) -> Figure:
    """Draw the metric of every method against the number of labels that it saw, on a logarithmic axis.

    Dots are means over seeds, bars their standard deviation. Methods that saw more labels are dashed.

    Args:
        methods: by name.
        name: of the metric.
        width: in inches.
    """
    narrow = width <= NARROW
    figure, (axis,) = make_figure(width=width, height=3.8 + (0.22 * len(methods) if narrow else 0))
    lines = []
    for number, values in enumerate(methods.values()):
        color, marker, dash = _curve_style(number)
        dash = (0, (5, 2)) if values.extra_labels else dash
        lines.append(_with_spread(axis, values.known_labels, 100 * values.value, color, marker, True, dash))
    axis.set_xscale("log")
    counts = np.concatenate([values.known_labels for values in methods.values()])
    fine = counts.max() < (_LOG_RATIO if narrow else 20 * _LOG_RATIO) * max(counts.min(), 1)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if fine else (1,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_title(name, loc="left", color=TEXT_COLOR)
    axis.set_xlabel("observed training labels, present and absent")
    labels = [truncate_label(label, 30) for label in methods]
    add_legend(figure, lines, labels, columns=1 if narrow else min(len(labels), 4))
    return figure


def _curve_style(number: int) -> tuple[str, str, Any]:
    """Return color, marker and dash of a curve; the second six are dashed."""
    color, marker = COLOR_CYCLE[number % len(COLOR_CYCLE)]
    return color, marker, "-" if number % (2 * len(COLOR_CYCLE)) < len(COLOR_CYCLE) else (0, (2, 1.5))


def _with_spread(
    axis: Axes,
    places: NDArray[Any],
    table: NDArray[np.float64],
    color: str,
    marker: str,
    connected: bool,
    dash: Any = "-",
) -> Line2D:
    """Draw the means over the columns of a table, with their standard deviation where there are several."""
    known = np.isfinite(table).any(axis=1)
    places, table = places[known], table[known]
    counts = np.isfinite(table).sum(axis=1)
    means = np.nanmean(table, axis=1)
    spread = np.sqrt(np.nansum((table - means[:, None]) ** 2, axis=1) / np.maximum(counts - 1, 1))
    if (counts > 1).any():
        axis.vlines(places, means - spread, means + spread, color=color, linewidth=1.4, alpha=0.8)
    style: dict[str, Any] = {
        "marker": marker,
        "markersize": 7,
        "markeredgecolor": BACKGROUND_COLOR,
        "color": color,
        "linewidth": 1.8,
    }
    (line,) = axis.plot(places, means, linestyle=dash if connected else "none", **style)
    return line


def _value_axis(axis: Axes, effect: ParameterEffect, places: NDArray[np.float64]) -> None:
    axis.set_xlabel(truncate_label(effect.name.replace("_", " ")))
    positive = bool(effect.numeric and places.min() > 0)
    if positive and places.max() >= _LOG_RATIO * places.min():
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
    if len(places) <= _MAX_VALUES:
        axis.xaxis.set_major_locator(FixedLocator(places.tolist()))
        _label_values(axis, effect, places, np.log(places) if axis.get_xscale() == "log" else places)
    elif not positive or places.max() < _LOG_RATIO * places.min():
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6))


def _label_values(axis: Axes, effect: ParameterEffect, places: NDArray[Any], along: NDArray[Any]) -> None:
    """Label the ticks without overlap: numbers that have no room are left out, names are turned.

    Args:
        axis: with a tick at each place.
        effect: whose values are the labels.
        places: of the values.
        along: the places on a linear scale.
    """
    inches = axis.get_figure(root=True).get_figwidth() * axis.get_position().width  # type: ignore[union-attr]
    centers = inches * (along - along.min()) / max(float(np.ptp(along)), 1e-12)
    if not effect.numeric:
        labels = [truncate_label(str(value), 14) for value in effect.values]
        crowded = len(labels) > 1 and _LETTER * (max(map(len, labels)) + 1) > inches / (len(labels) - 1)
        turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axis.set_xticks(places, labels, parse_math=False, **turned)
        return
    texts = [f"{value:g}" if len(f"{value:g}") <= 6 else f"{value:.2g}" for value in places]
    shown, end = [], -np.inf
    for text, center in zip(texts, centers, strict=True):
        half = _LETTER * len(text) / 2
        fits = center - half > end
        shown.append(text if fits else "")
        end = center + half + _LETTER if fits else end
    axis.set_xticks(places, shown, parse_math=False)


def _clip_low(axis: Axes, curves: list[NDArray[np.float64]]) -> None:
    """Begin the axis at the lower quarter of the last scores' range below them: the first epochs may be far lower."""
    ends = [float(curve[np.isfinite(curve)][-1]) for curve in curves]
    tops = [float(np.nanmax(curve)) for curve in curves]
    low, high = min([*ends, *tops]), max(tops)
    everything = min(float(np.nanmin(curve)) for curve in curves)
    reach = max(high - low, 1.0)
    axis.set_ylim(bottom=max(everything - 0.1 * reach, low - 1.5 * reach), top=high + 0.15 * reach)
