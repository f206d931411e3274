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

from labelgap.core.seeds import numpy_generator
from labelgap.core.text import join_names
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting import style
from labelgap.reporting.formatting import divide, format_measure, format_number
from labelgap.reporting.page import Page, ResponsiveFigure, render_template, stack_columns
from labelgap.studies.reproduce.results import first_epoch_share
from labelgap.training import Run

SINGLE_LABELS: Final = 12  # how many labels of a kind are followed one by one
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
_LINES: Final = {"FN": (style.VERMILLION, "o"), "TN": (style.BLUE, "s")}
_RUN_COLUMNS: Final = ["label", "recorded", "mean loss, epoch 1", "last epoch", "highest in epoch 1"]
_STUDY_COLUMNS: Final = ["highest in epoch 1", "TP", "FN", "TN"]


@dataclass(frozen=True, eq=False)
class LabelLosses:
    """Losses of the training labels of one kind, over E epochs; unknown labels are taken as absent."""

    count: int  # how many were recorded
    mean: NDArray[np.float64]  # (E,), NaN in an epoch that saw none
    first_epoch: float | None  # the share whose highest loss falls in the first epoch; None for fewer than two epochs
    row: NDArray[np.int64]  # (S,) row numbers of SINGLE_LABELS random labels, or of all if there are fewer
    column: NDArray[np.int64]  # (S,) their class numbers
    single: NDArray[np.float32]  # (E, S) their losses


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
    return {name: _losses(trace, np.flatnonzero(chosen), name) for name, chosen in kinds.items() if chosen.any()}


def _losses(trace: Mapping[str, NDArray[Any]], entries: NDArray[np.int64], name: str) -> LabelLosses:
    losses = trace["loss"][:, entries]
    seen = np.isfinite(losses)
    mean = divide(np.where(seen, losses, 0).sum(axis=1, dtype=np.float64), seen.sum(axis=1))
    random = numpy_generator(0, f"single labels {name}")
    picked = np.sort(random.choice(len(entries), min(SINGLE_LABELS, len(entries)), replace=False))
    share, single = first_epoch_share(losses) if len(losses) > 1 else None, entries[picked]
    return LabelLosses(len(entries), mean, share, trace["row"][single], trace["column"][single], losses[:, picked])


def memorization_panels(methods: Mapping[str, Losses], *, width: float = style.WIDE) -> Figure:
    """Draw the mean loss of true and false negatives, a panel a method, on one scale unless they differ very much."""
    figure, axes, columns = style.make_panels(len(methods), width=width, each=2.4, extra=0.5, wide=4, narrow=2)
    means = [np.stack([losses[kind].mean for kind in _LINES]) for losses in methods.values()]
    tops = [float(each[np.isfinite(each)].max(initial=0.0)) for each in means]
    common = max(tops) <= MAX_SCALE_RATIO * min(tops)
    for place, (axis, mean, top) in enumerate(zip(axes, means, tops, strict=True)):
        for loss, look in zip(mean, _LINES.values(), strict=True):
            style.draw_line(axis, np.arange(1, len(loss) + 1), loss, *look, markersize=5, markeredgewidth=0.8)
        style.set_epoch_axis(axis, max(each.shape[1] for each in means))
        style.set_top(axis, max(tops) if common else top)
        axis.tick_params(labelleft=not common or place % columns == 0)
    style.label_panels(axes, columns, "epoch", "mean loss", methods)
    edge: dict[str, Any] = {"linewidth": 2.0, "markersize": 6.0, "markeredgecolor": style.BACKGROUND_COLOR}
    looks = ((_KINDS[kind], color, marker) for kind, (color, marker) in _LINES.items())
    lines = [Line2D([], [], label=label, color=color, marker=marker, **edge) for label, color, marker in looks]
    style.add_legend(figure, 2 if width > style.NARROW else 1, lines)
    return figure


def single_label_panels(kinds: Losses, *, width: float = style.WIDE) -> Figure:
    """Draw the losses of single labels over epochs, thin, and the mean of all labels of the kind, one panel a kind."""
    figure, axes, columns = style.make_panels(len(kinds), width=width, each=2.5, extra=0.4)
    top = max(float(np.nanmax(np.c_[losses.single, losses.mean], initial=0.0)) for losses in kinds.values())
    for number, (axis, (title, losses)) in enumerate(zip(axes, kinds.items(), strict=True)):
        epochs = np.arange(1, len(losses.mean) + 1)
        look: dict[str, Any] = {"color": style.MUTED_COLOR, "linewidth": 0.8, "alpha": 0.7, "label": "a single label"}
        single, *_ = axis.plot(epochs, losses.single, **look)
        axis.plot(epochs, losses.mean, color=(style.VERMILLION, style.BLUE)[number % 2], linewidth=2.5)
        axis.set_title(title, loc="left")
        style.set_top(axis, top)
        style.set_epoch_axis(axis, len(epochs))
    style.label_panels(axes, columns, "epoch", "loss")
    mean = Line2D([], [], color=style.TEXT_COLOR, linewidth=2.5, label="the mean")
    style.add_legend(figure, 2, [single, mean])
    return figure


def memorization_section(runs: Mapping[str, Run], page: Page) -> Markup:
    """Return figures and a table of the losses of labels by kind, of runs by label.

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
    negatives, means = {label: found for label, found in kinds.items() if found.keys() >= _LINES.keys()}, None
    if negatives:
        columns = {
            label: {
                "epoch": np.arange(1, len(found["TN"].mean) + 1),
                "false_negative_loss": found["FN"].mean,
                "true_negative_loss": found["TN"].mean,
            }
            for label, found in negatives.items()
        }
        text = f"Mean loss of the unknown labels of {join_names(list(negatives))} per epoch, by their truth."
        means = page.figure("memorization", text, stack_columns("run", columns), memorization_panels, negatives)
    return render_template(
        "sections/memorization.html",
        means=means,
        known=any("unknown" not in found for found in unseen.values()),
        recorded=bool(unseen),
        off=hidden and all(each.trace == "off" and each.optimizer != "newton" and not each.folds for each in configs),
        single=None if single is None else _single_labels(single, np.array(configs[0].classes), page),
        columns=_STUDY_COLUMNS if single is None else _RUN_COLUMNS,
        rows=rows,
    )


def _single_labels(kinds: Losses, classes: NDArray[np.str_], page: Page) -> ResponsiveFigure:
    """Draw unknown labels by their truth, or observed present beside unknown ones where that is not known."""
    names = ("FN", "TN") if "unknown" not in kinds else ("present", "unknown")
    shown = {_KINDS[name].partition(" (")[0]: kinds[name] for name in names if name in kinds}
    counts = ", ".join(f"{losses.single.shape[1]} {name}" for name, losses in shown.items())
    columns = {
        name: {
            "image": losses.row[:, None],
            "class": classes[losses.column][:, None],
            "epoch": np.arange(1, len(losses.single) + 1),
            "loss": losses.single.T,
        }
        for name, losses in shown.items()
    }
    description = f"Loss of single labels per epoch: {counts}."
    return page.figure("single-labels", description, stack_columns("kind", columns), single_label_panels, shown)
