"""Memorization of labels that are hidden from training but known for measurement (Kim et al. 2022, figure 1, table 1).

The loss of those that are truly present (false negatives) stays high at first and falls later. A good method delays
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from labelgap.core.text import join_names
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting import style
from labelgap.reporting.formatting import divide, format_measure, format_number
from labelgap.reporting.page import Page, render_template, stack_columns
from labelgap.studies.reproduce.results import first_epoch_share
from labelgap.training import Run

MAX_SCALE_RATIO: Final = 4.0  # panels share a scale unless their highest losses differ by more than this factor
_BY_TRUTH: Final = {"TP": (PRESENT, PRESENT), "FN": (UNKNOWN, PRESENT), "TN": (UNKNOWN, ABSENT)}
_BY_OBSERVATION: Final = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}
_KINDS: Final = {
    "TP": "observed present (true positive)",
    "FN": "unknown, truly present (false negative)",
    "TN": "unknown, truly absent (true negative)",
    "present": "observed present",
    "absent": "observed absent",
    "unknown": "unknown",
}
_LINES: Final = {
    "FN": ("false_negative_loss", style.VERMILLION, "o"),
    "TN": ("true_negative_loss", style.BLUE, "s"),
    "present": ("present_loss", style.GREEN, "^"),
    "unknown": ("unknown_loss", style.BLUE, "s"),
}
"""Column, color and marker of the kinds that are drawn: the unknown labels by their truth, where that is known."""
_RUN_COLUMNS: Final = ["label", "recorded", "mean loss, epoch 1", "last epoch", "highest in epoch 1"]
_STUDY_COLUMNS: Final = ["highest in epoch 1", "TP", "FN", "TN"]


@dataclass(frozen=True, eq=False)
class LabelLosses:
    """Losses of the training labels of one kind, over E epochs; unknown labels are taken as absent."""

    count: int  # how many were recorded
    mean: NDArray[np.float64]  # (E,), NaN in an epoch that saw none
    first_epoch: float | None  # the share whose highest loss falls in the first epoch; None for fewer than two epochs


Losses = Mapping[str, LabelLosses]  # the losses of each kind of labels, as ``label_losses`` returns them


def label_losses(trace: Mapping[str, NDArray[Any]]) -> dict[str, LabelLosses]:
    """Return the losses of "TP", "TN" and "FN" in a trace, or as observed where the truth of none is known."""
    if not trace or len(trace["loss"]) == 0:
        return {}
    observed, truth = trace["observed"], trace["truth"]
    if ((observed == UNKNOWN) & (truth != UNKNOWN)).any():
        kinds = {name: (observed == seen) & (truth == true) for name, (seen, true) in _BY_TRUTH.items()}
    else:
        kinds = {name: observed == seen for name, seen in _BY_OBSERVATION.items()}
    return {name: _losses(trace, np.flatnonzero(chosen)) for name, chosen in kinds.items() if chosen.any()}


def _losses(trace: Mapping[str, NDArray[Any]], entries: NDArray[np.int64]) -> LabelLosses:
    losses = trace["loss"][:, entries]
    seen = np.isfinite(losses)
    mean = divide(np.where(seen, losses, 0).sum(axis=1, dtype=np.float64), seen.sum(axis=1))
    return LabelLosses(len(entries), mean, first_epoch_share(losses) if len(losses) > 1 else None)


def memorization_panels(methods: Mapping[str, Losses], *, width: float = style.WIDE) -> Figure:
    """Draw the mean loss of labels by their kind, a panel a method, on one scale unless they differ very much."""
    figure, axes, columns = style.make_panels(len(methods), width=width, each=2.4, extra=0.5, wide=4, narrow=2)
    means = [{kind: losses[kind].mean for kind in _LINES if kind in losses} for losses in methods.values()]
    tops = [float(np.nanmax(np.stack([*each.values()]), initial=0.0)) for each in means]
    common = max(tops) <= MAX_SCALE_RATIO * min(tops)
    for place, (axis, each, top) in enumerate(zip(axes, means, tops, strict=True)):
        for kind, mean in each.items():
            epochs, look = np.arange(1, len(mean) + 1), _LINES[kind][1:]
            style.draw_line(axis, epochs, mean, *look, markersize=5, markeredgewidth=0.8)
        style.set_epoch_axis(axis, max(len(mean) for every in means for mean in every.values()))
        style.set_top(axis, max(tops) if common else top)
        axis.tick_params(labelleft=not common or place % columns == 0)
    style.label_panels(axes, columns, "epoch", "mean loss", methods if len(methods) > 1 else ())
    edge: dict[str, Any] = {"linewidth": 2.0, "markersize": 6.0, "markeredgecolor": style.BACKGROUND_COLOR}
    looks = [(_KINDS[kind], *_LINES[kind][1:]) for kind in _LINES if any(kind in each for each in means)]
    lines = [Line2D([], [], label=label, color=color, marker=marker, **edge) for label, color, marker in looks]
    style.add_legend(figure, 2 if width > style.NARROW else 1, lines)
    return figure


def memorization_section(runs: Mapping[str, Run], page: Page) -> Markup:
    """Return a figure and a table of the losses of labels by kind, of runs by label.

    Where the truth is not known, the losses are of the labels as observed. Without a record the section says how to get
    one.
    """
    kinds = {label: label_losses(run.trace) for label, run in runs.items()}
    unseen = {label: found for label, found in kinds.items() if not found.keys().isdisjoint(("TN", "FN", "unknown"))}
    single = next(iter(unseen.values())) if len(runs) == len(unseen) == 1 else None
    configs = [run.config for run in runs.values()]
    hidden = page.data is not None and not page.data.train.labels.complete
    rows: list[tuple[str, list[Any]]] = []
    for label, found in unseen.items() if single is None else ():
        shares = (found[name].first_epoch if name in found else None for name in _STUDY_COLUMNS[1:])
        rows += [] if "unknown" in found else [(label, [*map(format_measure, shares)])]
    for name, losses in (single or {}).items():
        ends = [format_number(value, 3) for value in losses.mean[[0, -1]].tolist()]
        rows.append((_KINDS[name], [losses.count, *ends, format_measure(losses.first_epoch)]))
    means = None
    if unseen:
        names = {kind: _LINES[kind][0] for kind in _LINES if any(kind in found for found in unseen.values())}
        columns = {
            label: {"epoch": np.arange(1, len(next(iter(found.values())).mean) + 1)}
            | {name: found[kind].mean if kind in found else np.nan for kind, name in names.items()}
            for label, found in unseen.items()
        }
        text = f"Mean loss of the labels of {join_names(list(unseen))} per epoch, by their kind."
        means = page.figure("memorization", text, stack_columns("run", columns), memorization_panels, unseen)
    return render_template(
        "sections/memorization.html",
        means=means,
        known=any("unknown" not in found for found in unseen.values()),
        recorded=bool(unseen),
        off=hidden and all(each.trace == "off" and each.optimizer != "newton" and not each.folds for each in configs),
        single=single is not None,
        columns=_STUDY_COLUMNS if single is None else _RUN_COLUMNS,
        rows=rows,
    )
