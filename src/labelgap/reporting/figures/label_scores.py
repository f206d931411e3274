"""Figures of the scores of training labels: loss of observed positives, absolute logits, and probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labelgap.reporting.analysis.label_scores import BINS, LabelKind, LabelScores
from labelgap.reporting.colors import BACKGROUND_COLOR, BLUE, COLOR_CYCLE, GREEN, MUTED_COLOR, TEXT_COLOR, VERMILLION
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.style import NARROW, WIDE, add_legend, make_figure, set_epoch_axis

Methods = Mapping[str, Mapping[LabelKind, LabelScores]]
KIND_NAMES: Final[Mapping[LabelKind, str]] = {
    "observed": "observed present",
    "unknown_present": "unknown, truly present",
    "unknown_absent": "unknown, truly absent",
    "unknown": "unknown",
}
_STYLES: Final[Mapping[LabelKind, tuple[str, str, Literal["-", "--"]]]] = {
    "observed": (GREEN, "^", "-"),
    "unknown_present": (VERMILLION, "o", "-"),
    "unknown_absent": (BLUE, "s", "--"),
    "unknown": (MUTED_COLOR, "D", "--"),
}
"""Color, marker and dash of every kind."""


def positive_loss_figure(methods: Methods, *, width: float = WIDE) -> Figure:
    """Draw the mean loss of the observed positives per epoch, a line a method (Zhou et al. 2022, figure 7).

    Args:
        methods: by label, what ``label_scores`` returns; up to six differ in color and marker.
        width: in inches.
    """
    figure, (axis,) = make_figure(width=width, height=2.9 if len(methods) > 1 else 2.5)
    shown = {label: kinds["observed"] for label, kinds in methods.items() if "observed" in kinds}
    lines = []
    for number, scores in enumerate(shown.values()):
        color, marker = COLOR_CYCLE[number % len(COLOR_CYCLE)]
        lines += axis.plot(
            np.arange(1, len(scores.loss) + 1),
            scores.loss,
            color=color,
            marker=marker,
            markeredgecolor=BACKGROUND_COLOR,
            linewidth=2,
        )
    axis.set_title("loss of observed positives", loc="left", color=TEXT_COLOR)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("epoch")
    set_epoch_axis(axis, max((len(scores.loss) for scores in shown.values()), default=1))
    if len(shown) > 1:
        add_legend(figure, lines, [truncate_label(label, 24) for label in shown], 4 if width > NARROW else 2)
    return figure


def absolute_logit_panels(methods: Methods, *, width: float = WIDE) -> Figure:
    """Draw the absolute logit of unknown positives and negatives per epoch (Zhou et al. 2022, figure 8).

    Each method has a panel, all on one scale, in which a line is the median and a band the middle half of the labels.
    Where the truth is not known, observed positives and all unknown labels are drawn.
    """
    kinds = _kinds_of(methods, ("unknown_present", "unknown_absent"))
    found = [scores for each in methods.values() for kind, scores in each.items() if kind in kinds]
    top = max((float(np.nanmax(scores.magnitude, initial=0.0)) for scores in found), default=0.0)

    def draw(axis: Axes, scores: Mapping[LabelKind, LabelScores]) -> None:
        for kind in (kind for kind in kinds if kind in scores):
            color, marker, dash = _STYLES[kind]
            low, median, high = scores[kind].magnitude.T
            epochs = np.arange(1, len(median) + 1)
            axis.fill_between(epochs, low, high, color=color, alpha=0.18, linewidth=0)
            axis.plot(
                epochs,
                median,
                color=color,
                marker=marker,
                linestyle=dash,
                markeredgecolor=BACKGROUND_COLOR,
                linewidth=2,
            )
        axis.set_ylim(0, 1.06 * top if top > 0 else 1.0)
        set_epoch_axis(axis, max(len(each.loss) for each in found))

    return _panels(methods, draw, "absolute logit", "epoch", kinds, width)


def probability_panels(methods: Methods, *, width: float = WIDE) -> Figure:
    """Draw the distribution of the scores of observed and unknown positives (Zhou et al. 2022, figure 9).

    Each method has a panel, all on one scale: percent of the labels of a kind in intervals of 0.05; a dashed line
    with a marker is the mean. Where the truth is not known, observed positives and all unknown labels are drawn.
    """
    kinds = _kinds_of(methods, ("observed", "unknown_present"))
    found = [scores for each in methods.values() for kind, scores in each.items() if kind in kinds]
    top = 100 * max((float(np.nanmax(scores.shares, initial=0.0)) for scores in found), default=0.0)
    edges = np.linspace(0, 1, BINS + 1)

    def draw(axis: Axes, scores: Mapping[LabelKind, LabelScores]) -> None:
        for kind in (kind for kind in kinds if kind in scores):
            color, marker, dash = _STYLES[kind]
            percent = 100 * scores[kind].shares
            axis.stairs(percent, edges, color=color, alpha=0.18, fill=True, linewidth=0)
            axis.stairs(percent, edges, color=color, linewidth=1.8, linestyle=dash)
            mean = [scores[kind].mean_probability] * 2
            axis.plot(mean, [0, top], color=color, linewidth=1.2, linestyle=(0, (4, 3)), marker=marker, markevery=[1])
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1.06 * top if top > 0 else 1.0)
        axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])

    return _panels(methods, draw, "% of labels", "score", kinds, width)


def _kinds_of(methods: Methods, wanted: Iterable[LabelKind]) -> tuple[LabelKind, ...]:
    """Return the kinds to draw; where the truth of no method's unknown labels is known, observed and unknown."""
    known = any({"unknown_present", "unknown_absent"} & kinds.keys() for kinds in methods.values())
    return tuple(wanted) if known else ("observed", "unknown")


def _panels(
    methods: Methods,
    draw: Callable[[Axes, Mapping[LabelKind, LabelScores]], None],
    y_label: str,
    x_label: str,
    kinds: tuple[LabelKind, ...],
    width: float,
) -> Figure:
    """Draw one panel a method, and the legend of the kinds."""
    columns = min(len(methods), 4 if width > NARROW else 2)
    rows = -(-len(methods) // columns)
    figure, axes = make_figure(rows, columns, width=width, height=2.2 * rows + 0.6)
    for place, (axis, (label, scores)) in enumerate(zip(axes, methods.items(), strict=False)):
        draw(axis, scores)
        if len(methods) > 1:
            axis.set_title(truncate_label(label, 24), loc="left", color=TEXT_COLOR, fontweight="bold", parse_math=False)
        axis.set_ylabel(y_label if place % columns == 0 else "")
        axis.set_xlabel(x_label if place + columns >= len(methods) else "")
        axis.tick_params(labelleft=place % columns == 0)
    for axis in axes[len(methods) :]:
        axis.set_visible(False)
    lines = [
        Line2D([], [], color=_STYLES[kind][0], marker=_STYLES[kind][1], linestyle=_STYLES[kind][2], linewidth=2)
        for kind in kinds
    ]
    add_legend(figure, lines, [KIND_NAMES[kind] for kind in kinds], 2 if width > NARROW else 1)
    return figure
