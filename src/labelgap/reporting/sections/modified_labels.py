"""Unknown labels that a method modified, per epoch, and how many rightly (Kim et al. 2022, figure 4; Zhou et al. 2022,
tables 2 and 6).

The trace has those that large-loss methods take for present, the revisions those of pseudo-labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.text import join_names
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revisions
from labelgap.losses.base.state import PseudoLabelRounds
from labelgap.losses.large_loss import AbsoluteLargeLoss, PermanentCorrection, RelativeLargeLoss
from labelgap.reporting import style
from labelgap.reporting.descriptions import find_method
from labelgap.reporting.formatting import divide, truncate_label
from labelgap.reporting.page import Page, render_template, stack_columns
from labelgap.reporting.sections.separability import count_unknown_positives, unknown_positives_from_run
from labelgap.training import Run
from labelgap.training.history import trained_epochs

_TITLES: Final = {
    "share": "modified, % of unknown",
    "precision": "precision: truly {state}, %",
    "recall": "recall, % of truly {state}",
}


@dataclass(frozen=True, eq=False)
class ModifiedLabels:
    """The unknown labels that a method took for one state, in each of E epochs. What is not determined is NaN."""

    share: NDArray[np.float64]  # (E,) of the unknown labels that were modified, 0 to 1
    precision: NDArray[np.float64]  # (E,) of the modified labels that are truly of the state
    recall: NDArray[np.float64]  # (E,) of the unknown labels truly of the state that were modified
    base_rate: float  # the share of unknown labels truly of the state, i.e. the precision of modifying at random
    accumulated: bool = False  # whether an epoch counts what it and all earlier ones modified


def modified_labels_from_run(run: Run, data: Dataset | None = None) -> dict[int, ModifiedLabels]:
    """Return what a large-loss method modified, or its pseudo-labels, for which data are needed, by state."""
    method = find_method(run.config.method)
    if method is None:
        return {}
    if issubclass(method.loss_class, RelativeLargeLoss | AbsoluteLargeLoss):
        unknown = unknown_positives_from_run(run, data)
        population = None if unknown is None else unknown.totals
        accumulated = issubclass(method.loss_class, PermanentCorrection)
        found = modified_labels_from_trace(run.trace, population, accumulated=accumulated)
        return {} if found is None else {PRESENT: found}
    if data is None or not issubclass(method.loss_class, PseudoLabelRounds):
        return {}
    observed, truth = data.train.labels, data.train.truth
    try:
        return pseudo_labels_from_revisions(run.revisions, observed, truth, trained_epochs(run.history))
    except InputError:  # the data set has other images than the run was trained on
        return {}


def modified_labels_from_trace(
    trace: Mapping[str, NDArray[Any]], population: tuple[int, int] | None = None, *, accumulated: bool = False
) -> ModifiedLabels | None:
    """Summarize the modified flags of a trace, as weighted by the ``population``; None if none is set.

    Flags that are ``accumulated`` stay set in later epochs. Labels of unknown truth are left out, unless there are no
    others.
    """
    if not trace:
        return None
    unknown, flags = trace["observed"] == UNKNOWN, trace["modified"]
    absent, present = (unknown & (trace["truth"] == state) for state in (ABSENT, PRESENT))
    blank = np.full(len(flags), np.nan)
    if not (absent | present).any():
        return ModifiedLabels(_rate(flags, unknown), blank, blank, np.nan, accumulated) if flags.any() else None
    if not flags[:, absent | present].any():
        return None
    recall = _rate(flags, present)
    if population is None or not (absent.any() and present.any()):
        return ModifiedLabels(blank, blank, recall, np.nan, accumulated)
    wrong, right = _rate(flags, absent) * population[0], recall * population[1]
    share, precision = (wrong + right) / sum(population), divide(right, wrong + right)
    return ModifiedLabels(share, precision, recall, population[1] / sum(population), accumulated)


def pseudo_labels_from_revisions(
    revisions: Revisions, observed: LabelTable, truth: LabelTable | None, epochs: int
) -> dict[int, ModifiedLabels]:
    """Return the pseudo-labels so far at the end of every epoch, by the state that they assign."""
    entries = revisions.to_table()
    value = entries["value"].to_numpy()
    epoch = entries["epoch"].fill_null(epochs + 1).to_numpy()
    known = None if truth is None else truth.codes_at(*revisions.indices(truth))
    hidden = (0, 0) if truth is None else count_unknown_positives(observed, truth).totals
    unknown, found = observed.counts().total[2], {}
    for state, count in zip((ABSENT, PRESENT), hidden, strict=True):
        chosen = value == state
        if not chosen.any():
            continue
        assigned = _accumulate(epoch[chosen], epochs)
        precision = recall = np.full(epochs, np.nan)
        if known is not None:
            right = _accumulate(epoch[chosen & (known == state)], epochs)
            precision = divide(right, _accumulate(epoch[chosen & (known != UNKNOWN)], epochs))
            recall = right / count if count else recall
        base_rate = count / sum(hidden) if sum(hidden) else np.nan
        found[state] = ModifiedLabels(assigned / max(unknown, 1), precision, recall, base_rate, accumulated=True)
    return found


def _rate(flags: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of the chosen entries that are set, per epoch; NaN without entries."""
    return flags[:, chosen].mean(axis=1) if chosen.any() else np.full(len(flags), np.nan)


def _accumulate(epochs: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    return np.searchsorted(np.sort(epochs), np.arange(1, count + 1), side="right")


def _measures(methods: Mapping[str, ModifiedLabels]) -> list[str]:
    return [name for name in _TITLES if any(np.isfinite(getattr(values, name)).any() for values in methods.values())]


def modified_label_panels(
    methods: Mapping[str, ModifiedLabels], state: str = "present", *, width: float = style.WIDE
) -> Figure:
    """Draw share, precision and recall of the labels taken for a state; a measure that no method has, is left out."""
    names = _measures(methods)
    figure, axes, columns = style.make_panels(len(names), width=width, each=2.2, extra=0.7)
    for axis, name in zip(axes, names, strict=True):
        for number, (method, values) in enumerate(methods.items()):
            epochs, label = np.arange(1, len(values.share) + 1), truncate_label(method, 24) if axis is axes[0] else None
            style.draw_line(axis, epochs, 100 * getattr(values, name), *style.cycle(number), label=label)
            style.set_epoch_axis(axis, len(epochs))
        axis.set_title(_TITLES[name].format(state=state), loc="left")
        axis.set_ylim(0, None if name == "share" else 103)
    style.label_panels(axes, columns, "epoch")
    if "precision" in names:
        base_rate = 100 * float(np.nanmean([values.base_rate for values in methods.values()]))
        label, axis = f"modifying at random ({base_rate:.1f} %)", axes[names.index("precision")]
        axis.axhline(base_rate, color=style.MUTED_COLOR, linewidth=1.2, linestyle=style.DASHED, label=label)
    style.add_legend(figure)
    return figure


def modified_labels_section(runs: Mapping[str, Run], page: Page) -> Markup:
    """Return the figures of labels taken as present and as absent, with their captions."""
    every, parts = {label: modified_labels_from_run(run, page.data) for label, run in runs.items()}, []
    for state, name in ((PRESENT, "present"), (ABSENT, "absent")):
        methods = {label: found[state] for label, found in every.items() if state in found}
        if methods:
            columns = {
                label: {"epoch": np.arange(1, len(values.share) + 1)}
                | {measure: getattr(values, measure) for measure in _TITLES}
                | {"random_precision": values.base_rate}
                for label, values in methods.items()
            }
            names, kept = join_names(list(methods)), [label for label, each in methods.items() if each.accumulated]
            description, data = f"Labels modified by {names} per epoch.", stack_columns("run", columns)
            parts.append(
                {
                    "figure": page.figure(
                        f"modified-labels-{name}", description, data, modified_label_panels, methods, name
                    ),
                    "names": names,
                    "state": name,
                    "kept": "all" if len(kept) == len(methods) else join_names(kept),
                    "measured": _measures(methods),
                }
            )
    return render_template("sections/modified_labels.html", parts=parts)
