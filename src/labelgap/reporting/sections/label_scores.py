"""Scores of annotated and of missing labels in training, as the batches of an epoch had them (Zhou et al. 2022):

the loss of the observed positives over epochs (figure 7), the absolute logit of unknown positives and negatives
(figure 8), and the predicted probability of observed and of unknown positives (figure 9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from labelgap.core.special import expit
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting import style
from labelgap.reporting.formatting import format_number, truncate_label
from labelgap.reporting.page import Page, ResponsiveFigure, render_template, stack_columns
from labelgap.reporting.sections.separability import (
    BINS,
    TRAIN,
    density_pair_section,
    probability_shares,
    recorded_epoch,
    separability_of_run,
    separability_section,
)
from labelgap.training import Run

_KINDS: Final[Mapping[str, tuple[str, str, str, Any]]] = {
    "observed": ("observed present", style.GREEN, "^", "-"),
    "unknown_present": ("unknown, truly present", style.VERMILLION, "o", "-"),
    "unknown_absent": ("unknown, truly absent", style.BLUE, "s", "--"),
    "unknown": ("unknown", style.MUTED_COLOR, "D", "--"),
}
"""Name, color, marker and dash of every kind."""
_KIND_COLUMNS: Final = ["label", "recorded", "median |logit|, epoch 1", "last epoch", "mean score"]
_METHOD_COLUMNS: Final = ["method", "observed present", "unknown, truly present", "AUC, train", "AUC, unseen"]


@dataclass(frozen=True, eq=False)
class LabelScores:
    """Losses, logits and probabilities of the training labels of one kind, over E epochs."""

    count: int  # how many were recorded
    loss: NDArray[np.float64]  # (E,) mean, unknown labels taken as absent; NaN in an epoch that saw none
    magnitude: NDArray[np.float64]  # (E, 3) first quartile, median and third quartile of the absolute logit
    epoch: int  # that the probabilities are of, counted from 1
    shares: NDArray[np.float64]  # (BINS,) of the labels by the interval of their probability; they sum to 1
    mean_probability: float  # of the labels that the epoch saw; NaN if none


Methods = Mapping[str, Mapping[str, LabelScores]]  # by label of the run, what ``label_scores`` returns


def label_scores(trace: Mapping[str, NDArray[Any]], epoch: int | None = None) -> dict[str, LabelScores]:
    """Return the scores of each kind of training labels in a trace, in an epoch, by default the last recorded one.

    The kinds are "observed", the labels observed as present, and "unknown_present" and "unknown_absent" where the truth
    of unknown labels is known; elsewhere "unknown".
    """
    if not trace or len(trace["logit"]) == 0:
        return {}
    truth, unknown = trace["truth"], trace["observed"] == UNKNOWN
    kinds = {"observed": trace["observed"] == PRESENT}
    if (truth[unknown] != UNKNOWN).any():
        kinds |= {"unknown_present": unknown & (truth == PRESENT), "unknown_absent": unknown & (truth == ABSENT)}
    else:
        kinds["unknown"] = unknown
    shown = recorded_epoch(trace, epoch)
    return {kind: _scores(trace, np.flatnonzero(chosen), shown) for kind, chosen in kinds.items() if chosen.any()}


def _scores(trace: Mapping[str, NDArray[Any]], entries: NDArray[np.int64], epoch: int) -> LabelScores:
    """Summarize the entries, one epoch in memory at a time."""

    def seen(name: str, number: int) -> NDArray[Any]:
        values = trace[name][number, entries]
        found: NDArray[Any] = values[~np.isnan(values)]
        return found

    epochs = len(trace["logit"])
    loss, magnitude = np.full(epochs, np.nan), np.full((epochs, 3), np.nan)
    for number in range(epochs):
        losses, logits = seen("loss", number), seen("logit", number)
        if len(losses) and len(logits):
            loss[number] = losses.mean(dtype=np.float64)
            magnitude[number] = np.quantile(np.abs(logits), [0.25, 0.5, 0.75])
    probabilities = expit(seen("logit", epoch - 1).astype(np.float64))
    mean = float(probabilities.mean()) if len(probabilities) else np.nan
    return LabelScores(len(entries), loss, magnitude, epoch, probability_shares(probabilities), mean)


def positive_loss_figure(methods: Methods, *, width: float = style.WIDE) -> Figure:
    """Draw the mean loss of the observed positives per epoch, a line a method (Zhou et al. 2022, figure 7)."""
    figure, (axis,) = style.make_figure(width=width, height=2.9 if len(methods) > 1 else 2.5)
    shown = {label: kinds["observed"].loss for label, kinds in methods.items() if "observed" in kinds}
    for number, (label, loss) in enumerate(shown.items()):
        label = truncate_label(label, 24)
        style.draw_line(axis, np.arange(1, len(loss) + 1), loss, *style.cycle(number), label=label)
    axis.set_title("loss of observed positives", loc="left")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("epoch")
    style.set_epoch_axis(axis, max(map(len, shown.values()), default=1))
    if len(shown) > 1:
        style.add_legend(figure, 4 if width > style.NARROW else 2)
    return figure


def absolute_logit_panels(methods: Methods, *, width: float = style.WIDE) -> Figure:
    """Draw the absolute logit of unknown positives and negatives per epoch: median and middle half (figure 8)."""
    wanted, names = ("unknown_present", "unknown_absent"), ("epoch", "absolute logit")
    figure, panels, _ = _panels(methods, wanted, lambda scores: scores.magnitude, names, width)
    for axis, shown in panels:
        for kind, scores in shown.items():
            color, marker, dash = _KINDS[kind][1:]
            low, median, high = scores.magnitude.T
            epochs = np.arange(1, len(median) + 1)
            axis.fill_between(epochs, low, high, color=color, alpha=0.18, linewidth=0)
            style.draw_line(axis, epochs, median, color, marker, linestyle=dash)
        style.set_epoch_axis(axis, max(len(scores.loss) for kinds in methods.values() for scores in kinds.values()))
    return figure


def probability_panels(methods: Methods, *, width: float = style.WIDE) -> Figure:
    """Draw the distribution of the scores of observed and unknown positives, and their mean (figure 9)."""
    edges, wanted, names = np.linspace(0, 1, BINS + 1), ("observed", "unknown_present"), ("score", "% of labels")
    figure, panels, top = _panels(methods, wanted, lambda scores: 100 * scores.shares, names, width)
    for axis, shown in panels:
        for kind, scores in shown.items():
            color, marker, dash = _KINDS[kind][1:]
            axis.stairs(100 * scores.shares, edges, color=color, alpha=0.18, fill=True, linewidth=0)
            axis.stairs(100 * scores.shares, edges, color=color, linewidth=1.8, linestyle=dash)
            mean = [scores.mean_probability] * 2
            axis.plot(mean, [0, top], color=color, linewidth=1.2, linestyle=style.DASHED, marker=marker, markevery=[1])
        axis.set_xlim(0, 1)
        axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    return figure


def _panels(
    methods: Methods,
    wanted: tuple[str, ...],
    heights: Callable[[LabelScores], NDArray[np.float64]],
    names: tuple[str, str],
    width: float,
) -> tuple[Figure, list[tuple[Axes, dict[str, LabelScores]]], float]:
    """Return a figure with the legend of the kinds, a panel and what is in it for every method, and their height."""
    known = any({"unknown_present", "unknown_absent"} & found.keys() for found in methods.values())
    kinds = wanted if known else ("observed", "unknown")
    shown = [{kind: found[kind] for kind in kinds if kind in found} for found in methods.values()]
    drawn = (heights(scores) for found in shown for scores in found.values())
    top = max((float(np.nanmax(each, initial=0.0)) for each in drawn), default=0.0)
    figure, axes, columns = style.make_panels(len(methods), width=width, each=2.2, extra=0.6, wide=4, narrow=2)
    for place, axis in enumerate(axes):
        style.set_top(axis, top)
        axis.tick_params(labelleft=place % columns == 0)
    style.label_panels(axes, columns, *names, methods if len(methods) > 1 else ())
    fields = ("label", "color", "marker", "linestyle")
    lines = [Line2D([], [], linewidth=2, **dict(zip(fields, _KINDS[kind], strict=True))) for kind in kinds]
    style.add_legend(figure, 2 if width > style.NARROW else 1, lines)
    return figure, list(zip(axes, shown, strict=True)), top


def label_scores_section(runs: Mapping[str, Run], page: Page) -> Markup:
    """Return figures and a table of the scores of labels; of a single run also how separable classes are."""
    found = {label: label_scores(run.trace, run.metrics.get("best_epoch")) for label, run in runs.items()}
    hidden = {label: kinds for label, kinds in found.items() if kinds.keys() - {"observed"}}
    separable = {label: separability_of_run(run, page.data) for label, run in runs.items()}
    section, single, rows = Markup(""), len(runs) == 1, list[tuple[str, list[Any]]]()
    for label, kinds in hidden.items():
        if single:
            for kind, values in kinds.items():
                numbers = [*values.magnitude[[0, -1], 1].tolist(), values.mean_probability]
                rows.append((_KINDS[kind][0], [values.count, *map(format_number, numbers)]))
            continue
        measured = {name: values.mean()[0] for name, values in separable[label].items()}
        train = measured.pop(TRAIN, None)
        shown = (kinds[kind].mean_probability if kind in kinds else None for kind in ("observed", "unknown_present"))
        rows.append((label, [*map(format_number, (*shown, train, next(iter(measured.values()), None)))]))
    if hidden:
        section = render_template(
            "sections/label_scores.html",
            known=any("unknown" not in kinds for kinds in hidden.values()),
            epoch=next(iter(next(iter(hidden.values())).values())).epoch if single else None,
            **_figures(found, hidden, page),
            columns=_KIND_COLUMNS if single else _METHOD_COLUMNS,
            rows=rows,
        )
    if single:
        ((label, run),) = runs.items()
        section += separability_section(run, separable[label], page)
    else:
        section += density_pair_section(runs, separable, page)
    return section


def _figures(methods: Methods, hidden: Methods, page: Page) -> dict[str, ResponsiveFigure | None]:
    """Draw losses of every method, and logits and scores of those that left labels unknown."""
    losses = {label: kinds["observed"].loss for label, kinds in methods.items() if "observed" in kinds}
    columns = {label: {"epoch": np.arange(1, len(each) + 1), "loss": each} for label, each in losses.items()}
    ends = "; ".join(f"{label} {values[0]:.2f} to {values[-1]:.2f}" for label, values in losses.items())
    text = f"Mean loss of the observed positives in the first and the last epoch: {ends}."
    data = stack_columns("run", columns) if losses else {}
    loss = page.figure("observed-positive-loss", text, data, positive_loss_figure, methods) if losses else None
    every = {(label, _KINDS[kind][0]): each for label, kinds in hidden.items() for kind, each in kinds.items()}
    names = ("lower_quartile", "median", "upper_quartile")
    quartiles = {
        key: {"epoch": np.arange(1, len(each.loss) + 1), **dict(zip(names, each.magnitude.T, strict=True))}
        for key, each in every.items()
    }
    shares = {key: {"from": np.arange(BINS) / BINS, "share": each.shares} for key, each in every.items()}
    text = "; ".join(
        f"{', '.join(key)}: absolute logit {each.magnitude[-1, 1]:.1f}, score {each.mean_probability:.2f}"
        for key, each in every.items()
    )
    logits = f"Median absolute logit in the last epoch, and mean score. {text}.", stack_columns("run kind", quartiles)
    scores = f"Distribution of the scores. {text}.", stack_columns("run kind", shares)
    return {
        "loss": loss,
        "logits": page.figure("absolute-logits", *logits, absolute_logit_panels, hidden),
        "probabilities": page.figure("positive-probabilities", *scores, probability_panels, hidden),
    }
