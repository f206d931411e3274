"""Labels of single images as a method changes them over the epochs (Kim et al. 2022, figure 3).

Large-loss rejection and correction change a label for one step: their trace has it. Permanent corrections and
pseudo-labels stay: the revisions of the run have them. Other methods change no label (the estimates of `role` are not
recorded).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset, Split
from labelgap.labels import PRESENT, UNKNOWN, Revisions
from labelgap.losses.large_loss import (
    AbsoluteLargeLoss,
    AbsoluteLargeLossRejection,
    LargeLossRejection,
    PermanentCorrection,
    RelativeLargeLoss,
)
from labelgap.reporting.analysis.diverse_sample import diverse_sample
from labelgap.reporting.run_description import find_method
from labelgap.training import Run
from labelgap.training.history import trained_epochs

IMAGES: Final = 8
LABELS_PER_IMAGE: Final = 6


@dataclass(frozen=True, eq=False)
class LabelChanges:
    """Labels of some training images, epoch by epoch; those of an image follow each other.

    An image has the labels that the method changed, that were given as present, and that are truly present, at most
    ``LABELS_PER_IMAGE``.

    Attributes:
        split: the training images.
        rows: ``(C,)`` row of the image.
        columns: ``(C,)`` class number.
        observed: ``(C,)`` the given label.
        truth: ``(C,)`` the true label, UNKNOWN where it is not known.
        states: ``(E, C)`` the state that the method took a label for while it trained an epoch: PRESENT or ABSENT where
            it had changed it, else UNKNOWN.
        rejected: whether a changed label was left out of the loss, not trained as the other state.
        total: how many labels of the run were changed at least once.
        judged: of how many of those the truth is known.
        right: how many of the judged truly have the state that they were taken for.
        complete: whether these are all labels of the run. A sampled trace has too many of the rare kinds.
    """

    split: Split
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    observed: NDArray[np.int8]
    truth: NDArray[np.int8]
    states: NDArray[np.int8]
    rejected: bool
    total: int
    judged: int
    right: int
    complete: bool = True

    @property
    def changed(self) -> NDArray[np.bool_]:
        """``(C,)`` whether the method changed the label in any epoch."""
        changed: NDArray[np.bool_] = (self.states != UNKNOWN).any(axis=0)
        return changed

    @property
    def first_epoch(self) -> NDArray[np.int64]:
        """``(C,)`` the first epoch that trained with a changed label, 0 where none did."""
        return np.where(self.changed, (self.states != UNKNOWN).argmax(axis=0) + 1, 0)

    @property
    def taken_for(self) -> NDArray[np.int8]:
        """``(C,)`` the state that the label was last taken for, UNKNOWN where it was never changed."""
        seen = self.states != UNKNOWN
        last = len(seen) - 1 - seen[::-1].argmax(axis=0)
        return np.where(seen.any(axis=0), self.states[last, np.arange(seen.shape[1])], UNKNOWN).astype(np.int8)


@dataclass(frozen=True, eq=False)
class _Changed:
    """Every label that a run changed: its place and state, and ``first`` epoch or flags ``(E, R)`` per epoch."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    value: NDArray[np.int8]
    epochs: int
    first: NDArray[np.int64] | None = None
    flags: NDArray[np.bool_] | None = None

    def states(self, places: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return ``(E, n)`` of some of them."""
        if self.flags is not None:
            changed = self.flags[:, places]
        else:
            assert self.first is not None
            changed = np.arange(1, self.epochs + 1)[:, None] >= self.first[places]
        return np.where(changed, self.value[places], np.int8(UNKNOWN))


def label_changes(run: Run, data: Dataset, *, images: int = IMAGES) -> LabelChanges | None:
    """Return the labels of some images that a method changed; None if it changed none, or has no record of it.

    Half of the images are chosen for a change that is right, half for one that is wrong, over as many classes as
    possible and otherwise at random, always the same. Where the truth is not known they are random.

    Args:
        run: finished or not.
        data: that it was trained on.
        images: how many.
    """
    split = run.with_val(data).train
    method = find_method(run.config.method)
    if method is None:
        return None
    permanent = issubclass(method.loss_class, PermanentCorrection)
    if not permanent and issubclass(method.loss_class, RelativeLargeLoss | AbsoluteLargeLoss):
        changed = _from_trace(run, split)
    else:
        changed = _from_revisions(run, split, delay=0 if permanent else 1)
    if changed is None or not len(changed.rows):
        return None
    truth = np.full(len(changed.rows), UNKNOWN, dtype=np.int8)
    if split.truth is not None:
        truth = split.truth.codes_at(changed.rows, changed.columns)
    chosen = _choose(changed, truth, images)
    rejected = issubclass(method.loss_class, LargeLossRejection | AbsoluteLargeLossRejection)
    judged = int((truth != UNKNOWN).sum()), int((truth == changed.value).sum())
    found = _labels_of(split, changed, chosen, rejected, judged)
    return replace(found, complete=changed.flags is None or run.config.trace == "all")


def _from_trace(run: Run, split: Split) -> _Changed | None:
    """Return the modified labels of a trace; None if it is of other images than the split."""
    trace = run.trace
    if not trace or not len(trace["row"]) or trace["row"].max() >= len(split):
        return None
    known = trace["observed"] != UNKNOWN
    if not np.array_equal(split.labels.codes_at(trace["row"][known], trace["column"][known]), trace["observed"][known]):
        return None
    flags = trace["modified"]
    found = np.flatnonzero(flags.any(axis=0) & ~known)
    value = np.full(len(found), PRESENT, dtype=np.int8)
    return _Changed(trace["row"][found], trace["column"][found], value, len(flags), flags=flags[:, found])


def _from_revisions(run: Run, split: Split, delay: int) -> _Changed | None:
    """Return the revisions of a method; those of the end of an epoch count from the next one on (``delay``)."""
    entries = run.revisions.to_table()
    made = Revisions.from_table(entries.filter(entries["epoch"].is_valid()))
    try:
        rows, columns = made.indices(split.labels)
    except InputError:  # the data set has other images than the run was trained on
        return None
    table = made.to_table()
    first, epochs = table["epoch"].to_numpy().astype(np.int64) + delay, trained_epochs(run.history)
    used = np.flatnonzero(first <= epochs)
    return _Changed(rows[used], columns[used], table["value"].to_numpy()[used], epochs, first=first[used])


def _choose(changed: _Changed, truth: NDArray[np.int8], images: int) -> NDArray[np.int64]:
    """Return positions of changed labels, of different images: right ones, then wrong ones; random ones if unknown."""
    kinds = changed.columns * 2 + (changed.value == PRESENT)
    right, wrong = truth == changed.value, (truth != changed.value) & (truth != UNKNOWN)
    groups = [("right", right), ("wrong", wrong)] if (right | wrong).any() else [("changed", right | True)]
    chosen = np.zeros(0, dtype=np.int64)
    for number, (name, members) in enumerate(groups):
        places = np.flatnonzero(members & ~np.isin(changed.rows, changed.rows[chosen]))
        count = -(-images // len(groups)) if number == 0 else images - len(chosen)
        picked = diverse_sample(changed.rows[places], kinds[places], count, f"label changes {name}")
        chosen = np.concatenate([chosen, places[picked]])
    return chosen


def _labels_of(
    split: Split, changed: _Changed, chosen: NDArray[np.int64], rejected: bool, judged: tuple[int, int]
) -> LabelChanges:
    """Return the labels of the images of chosen changes, those first for which an image was chosen."""
    rows, columns, states = [], [], []
    for place in chosen.tolist():
        row = int(changed.rows[place])
        own = np.flatnonzero(changed.rows == row)
        observed = split.labels.batch([row]).numpy()[0]
        truth = observed if split.truth is None else split.truth.batch([row]).numpy()[0]
        wrong = own[(truth[changed.columns[own]] != changed.value[own]) & (truth[changed.columns[own]] != UNKNOWN)]
        given = np.flatnonzero(observed == PRESENT)
        first = [changed.columns[place : place + 1], given, changed.columns[wrong], np.flatnonzero(truth == PRESENT)]
        shown = list(dict.fromkeys(np.concatenate([*first, changed.columns[own]]).tolist()))[:LABELS_PER_IMAGE]
        place_of = {int(column): number for number, column in zip(own, changed.columns[own], strict=True)}
        unchanged = np.full(changed.epochs, UNKNOWN, dtype=np.int8)
        states += [changed.states(np.array([place_of[c]]))[:, 0] if c in place_of else unchanged for c in shown]
        rows += [row] * len(shown)
        columns += shown
    places = np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)
    observed = split.labels.codes_at(*places)
    truth = observed if split.truth is None else split.truth.codes_at(*places)
    table = np.stack(states, axis=1)
    return LabelChanges(split, *places, observed, truth, table, rejected, len(changed.rows), *judged)
