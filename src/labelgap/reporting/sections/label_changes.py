"""Labels of single images as a method changes them over the epochs (Kim et al. 2022, figure 3).

What lasts for one step is in the trace, what stays in the revisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset, Split
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, Revisions
from labelgap.losses.large_loss import (
    AbsoluteLargeLoss,
    AbsoluteLargeLossRejection,
    LargeLossRejection,
    PermanentCorrection,
    RelativeLargeLoss,
)
from labelgap.reporting import style
from labelgap.reporting.descriptions import find_method
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.page import Page, render_template
from labelgap.reporting.sections.examples import diverse_sample, thumbnail_data_url, thumbnail_image
from labelgap.training import Run
from labelgap.training.history import trained_epochs

IMAGES: Final = 8
LABELS_PER_IMAGE: Final = 6
_STATES: Final = {PRESENT: "present", ABSENT: "absent", UNKNOWN: "unknown"}


@dataclass(frozen=True, eq=False)
class LabelChanges:
    """Labels of some training images, epoch by epoch: changed, given or truly present, ``LABELS_PER_IMAGE`` of each."""

    split: Split  # the training images
    rows: NDArray[np.int64]  # (C,) row of the image
    columns: NDArray[np.int64]  # (C,) class number
    observed: NDArray[np.int8]  # (C,) the given label
    truth: NDArray[np.int8]  # (C,) the true label, UNKNOWN where it is not known
    states: NDArray[np.int8]  # (E, C) what an epoch took a changed label for, PRESENT or ABSENT; UNKNOWN for others
    rejected: bool  # whether a changed label was left out of the loss, not trained as the other state
    total: int  # how many labels of the run were changed at least once
    judged: int  # of how many of those the truth is known
    right: int  # how many of the judged truly have the state that they were taken for
    complete: bool = True  # whether these are all labels of the run: a sampled trace has too many of the rare kinds

    @property
    def taken_for(self) -> NDArray[np.int8]:
        """``(C,)`` the state that the label was taken for, UNKNOWN where it was never changed."""
        taken: NDArray[np.int8] = self.states.max(axis=0)
        return taken


class _Changed(NamedTuple):
    """Every label that a run changed, each to one state; the fields are those of ``LabelChanges``."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    states: NDArray[np.int8]


def label_changes(run: Run, data: Dataset, *, images: int | Sequence[str] = IMAGES) -> LabelChanges | None:
    """Return the labels of some images that a method changed; None if it changed none, or has no record of it.

    ``images`` are names, or how many are chosen: half for a change that is right, half for a wrong one, over many
    classes.
    """
    split, method = run.with_val(data).train, find_method(run.config.method)
    named = [] if isinstance(images, int) else [_row_of(split, name) for name in images]
    if method is None:
        return None
    permanent = issubclass(method.loss_class, PermanentCorrection)
    traced = not permanent and issubclass(method.loss_class, RelativeLargeLoss | AbsoluteLargeLoss)
    changed = _from_trace(run, split) if traced else _from_revisions(run, split, delay=0 if permanent else 1)
    if changed is None or not len(changed.rows):
        return None
    known = split.labels if split.truth is None else split.truth
    truth = known.codes_at(
        changed.rows, changed.columns
    )  # of labels that were unknown, so that without the truth none is known
    places = _choose(changed, truth, images).tolist() if isinstance(images, int) else []
    chosen = [(int(changed.rows[place]), changed.columns[[place]]) for place in places]
    chosen += [(row, np.zeros(0, dtype=np.int64)) for row in dict.fromkeys(named)]
    parts = [_labels_of_image(split, changed, row, first) for row, first in chosen]
    rows, columns, states = (np.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
    return LabelChanges(
        split,
        rows,
        columns,
        split.labels.codes_at(rows, columns),
        known.codes_at(rows, columns),
        states,
        rejected=issubclass(method.loss_class, LargeLossRejection | AbsoluteLargeLossRejection),
        total=len(truth),
        judged=int((truth != UNKNOWN).sum()),
        right=int((truth == changed.states.max(axis=0)).sum()),
        complete=not traced or run.config.trace == "all",
    )


def _from_trace(run: Run, split: Split) -> _Changed | None:
    """Return the modified labels of a trace; None if it is of other images than the split."""
    trace = run.trace
    if not trace or not len(trace["row"]) or trace["row"].max() >= len(split):
        return None
    known = trace["observed"] != UNKNOWN
    if not np.array_equal(split.labels.codes_at(trace["row"][known], trace["column"][known]), trace["observed"][known]):
        return None
    found = np.flatnonzero(trace["modified"].any(axis=0) & ~known)
    states = np.where(trace["modified"][:, found], PRESENT, UNKNOWN).astype(np.int8)
    return _Changed(trace["row"][found], trace["column"][found], states)


def _from_revisions(run: Run, split: Split, delay: int) -> _Changed | None:
    """Return the revisions of a method; those of the end of an epoch count from the next one on (``delay``)."""
    entries = run.revisions.to_table()
    made = Revisions.from_table(entries.filter(entries["epoch"].is_valid()))
    try:
        rows, columns = made.indices(split.labels)
    except InputError:  # the data set has other images than the run was trained on
        return None
    table, epochs = made.to_table(), np.arange(1, trained_epochs(run.history) + 1)
    made_so_far = epochs[:, None] >= table["epoch"].to_numpy() + delay
    states = np.where(made_so_far, table["value"].to_numpy(), UNKNOWN).astype(np.int8)
    used = made_so_far.any(axis=0)
    return _Changed(rows[used], columns[used], states[:, used])


def _choose(changed: _Changed, truth: NDArray[np.int8], images: int) -> NDArray[np.int64]:
    """Return positions of changed labels, of different images: right ones, then wrong ones; random ones if unknown."""
    rows, columns, value = changed.rows, changed.columns, changed.states.max(axis=0)
    kinds = columns * 2 + (value == PRESENT)
    right, wrong = truth == value, (truth != value) & (truth != UNKNOWN)
    groups = [("right", right), ("wrong", wrong)] if (right | wrong).any() else [("changed", right | True)]
    chosen = np.zeros(0, dtype=np.int64)
    for number, (name, members) in enumerate(groups):
        places = np.flatnonzero(members & ~np.isin(rows, rows[chosen]))
        count = -(-images // len(groups)) if number == 0 else images - len(chosen)
        picked = diverse_sample(rows[places], kinds[places], count, f"label changes {name}")
        chosen = np.concatenate([chosen, places[picked]])
    return chosen


def _row_of(split: Split, name: str) -> int:
    if name not in split.labels.images:
        raise UnknownNameError("training image", name, split.labels.images)
    return split.labels.images.index(name)


def _labels_of_image(split: Split, changed: _Changed, row: int, first: NDArray[np.int64]) -> _Changed:
    """Return labels of an image, the ``first`` columns before all others."""
    own = changed.rows == row
    columns, changes = changed.columns[own], changed.states[:, own]
    observed = split.labels.batch([row]).numpy()[0]
    truth = observed if split.truth is None else split.truth.batch([row]).numpy()[0]
    wrong = (truth[columns] != changes.max(axis=0)) & (truth[columns] != UNKNOWN)
    given, present = np.flatnonzero(observed == PRESENT), np.flatnonzero(truth == PRESENT)
    order = np.concatenate([first, given, columns[wrong], present, columns])
    shown = np.array(list(dict.fromkeys(order.tolist()))[:LABELS_PER_IMAGE], dtype=np.int64)
    states = np.full((len(changes), len(observed)), UNKNOWN, dtype=np.int8)
    states[:, columns] = changes
    return _Changed(np.full(len(shown), row), shown, states[:, shown])


def label_change_figure(changes: LabelChanges, images: bool = True, *, width: float = style.WIDE) -> Figure:
    """Draw the labels of every image as lines over the epochs, filled where changed: rightly, wrongly, or unknown."""
    groups = {row: np.flatnonzero(changes.rows == row) for row in dict.fromkeys(changes.rows.tolist())}
    each = max(0.27 * max(map(len, groups.values())) + 0.55, 1.4)
    columns = 1 if width <= style.NARROW else 2
    lines = -(-len(groups) // columns)
    figure, axes = style.make_figure(lines, columns, width=width, height=lines * each)
    for axis, (row, group) in zip(axes, groups.items(), strict=False):
        _draw(axis, changes, group)
        axis.set_title(truncate_label(changes.split.labels.images[row], 34), loc="left", fontsize=10, parse_math=False)
        if images:
            inset = axis.inset_axes((-0.62, 0.0, 0.3, 1.0))
            inset.imshow(np.asarray(thumbnail_image(changes.split, row).convert("RGB")))
            inset.set_axis_off()
    for axis in axes[len(groups) :]:
        axis.set_axis_off()
    style.label_panels(axes[: len(groups)], columns, "epoch")
    return figure


def _draw(axis: Axes, changes: LabelChanges, group: NDArray[np.int64]) -> None:
    epochs = len(changes.states)
    for line, place in enumerate(group.tolist()):
        axis.add_patch(Rectangle((0.55, line - 0.3), epochs - 0.1, 0.6, color=style.GRID_COLOR, linewidth=0))
        for epoch in np.flatnonzero(changes.states[:, place] != UNKNOWN).tolist():
            truth, state = changes.truth[place], changes.states[epoch, place]
            color = style.BLUE if truth == UNKNOWN else style.GREEN if truth == state else style.VERMILLION
            axis.add_patch(Rectangle((epoch + 0.55, line - 0.3), 0.9, 0.6, color=color, linewidth=0))
            if color == style.VERMILLION:
                axis.plot(epoch + 1, line, marker="x", color=style.TEXT_COLOR, markersize=4)
    names = changes.split.labels.classes
    shown = [truncate_label(names[column], 14) for column in changes.columns[group].tolist()]
    axis.set_yticks(np.arange(len(group)), shown, parse_math=False)
    for label, place in zip(axis.get_yticklabels(), group.tolist(), strict=True):
        label.set_fontweight("bold" if changes.observed[place] == PRESENT else "normal")
    axis.tick_params(axis="y", labelcolor=style.TEXT_COLOR)
    axis.set_ylim(len(group) - 0.5, -0.6)
    axis.grid(False)
    style.set_epoch_axis(axis, epochs)
    axis.set_xlim(0.4, epochs + 0.6)


def label_changes_section(run: Run, page: Page) -> Markup:
    """Return some training images with their given, changed and true labels; nothing where no label was changed."""
    changes = None if page.data is None else label_changes(run, page.data, images=page.label_changes or IMAGES)
    if changes is None:
        return Markup("")
    rows, thumbnails = list(dict.fromkeys(changes.rows.tolist())), dict[int, str]()
    with suppress(InputError, OSError):  # data of features have no images, and a file may be gone
        thumbnails = {row: thumbnail_data_url(changes.split, row) for row in rows if page.images}
    names, named = changes.split.labels.images, np.vectorize(_STATES.get, otypes=[object])
    columns = {
        "image": np.array([[names[row]] for row in changes.rows.tolist()]),
        "class": np.array(changes.split.labels.classes)[changes.columns][:, None],
        "epoch": np.arange(1, len(changes.states) + 1),
        "observed": named(changes.observed)[:, None],
        "taken_for": np.where(changes.states.T == UNKNOWN, None, named(changes.states.T)),
        "truth": named(changes.truth)[:, None],
    }
    description, given = "Labels of single images, as the method changed them.", (changes, bool(thumbnails))
    page.figure("label-changes", description, columns, label_change_figure, *given, shown=False)
    return render_template(
        "sections/label_changes.html",
        method=run.config.method,
        changes=changes,
        asked=bool(page.label_changes),
        epochs=len(changes.states),
        images=[
            {
                "name": names[row],
                "thumbnail": thumbnails.get(row, ""),
                "labels": [_label(changes, place) for place in np.flatnonzero(changes.rows == row).tolist()],
            }
            for row in rows
        ],
    )


def _label(changes: LabelChanges, place: int) -> dict[str, Any]:
    """Return what a label was taken for, whether rightly, and when: the first epoch and the length of every span."""
    given, taken, truth = (int(each[place]) for each in (changes.observed, changes.taken_for, changes.truth))
    if given != UNKNOWN:
        outcome, state = "given", given
    elif taken == UNKNOWN:
        outcome, state = "missed", truth
    else:
        outcome, state = "unknown" if truth == UNKNOWN else "right" if taken == truth else "wrong", taken
    changed = np.concatenate([[False], changes.states[:, place] != UNKNOWN, [False]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(changed)).reshape(-1, 2).tolist()
    return {
        "name": changes.split.labels.classes[changes.columns[place]],
        "outcome": outcome,
        "text": _STATES[state],
        "when": ", ".join(str(first + 1) if last - first == 1 else f"{first + 1}–{last}" for first, last in edges),
        "spans": [(first + 1, last - first) for first, last in edges],
    }
