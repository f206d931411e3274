"""How well scores separate the positives from the negatives of a class (Zhou et al. 2022, figures 10 and 11).

Figure 11 shows the densities of the predicted probabilities of positive and of negative labels, on the unknown labels
of the training images and on the test images. Two measures of how separable they are are given here: the area under
the ROC curve (AUC), which depends on the order of the scores alone, and the overlap coefficient of the two densities,
which depends on their values. Figure 10 is the share of unknown labels that are truly present, per class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.metrics.validation import MIN_KNOWN_LABELS
from labelgap.reporting.analysis.label_scores import BINS, probability_shares
from labelgap.training import Run
from labelgap.training.history import unseen_splits
from labelgap.training.run_folder import read_predictions

MAX_SCORES: Final = 1 << 25
"""Scores that are read at once; of more, those of random images are."""
_BLOCK: Final = 1 << 24


@dataclass(frozen=True, eq=False)
class ClassSeparability:
    """How separable the scores of present and absent labels are, per class.

    Attributes:
        classes: K names.
        present: ``(K,)`` number of labels known to be present.
        absent: ``(K,)`` number of labels known to be absent.
        auc: ``(K,)`` probability that a random present label has a higher score than a random absent one, ties counted
            half: 1 for separate scores, 0.5 for chance. NaN where a class has no present or no absent label.
        overlap: ``(K,)`` overlap coefficient: the sum over the intervals of the smaller share; 0 for separate scores, 1
            for equal densities. NaN as ``auc``.
        present_shares: ``(K, BINS)`` of the present labels by the interval of their score; NaN without any.
        absent_shares: ``(K, BINS)`` the same of the absent labels.
        images: number of images that the scores are of.
    """

    classes: tuple[str, ...]
    present: NDArray[np.int64]
    absent: NDArray[np.int64]
    auc: NDArray[np.float64]
    overlap: NDArray[np.float64]
    present_shares: NDArray[np.float64]
    absent_shares: NDArray[np.float64]
    images: int

    @property
    def counted(self) -> NDArray[np.int64]:
        """Numbers of the classes with at least ``MIN_KNOWN_LABELS`` of each state, the least separable first."""
        enough = np.flatnonzero(np.minimum(self.present, self.absent) >= MIN_KNOWN_LABELS)
        return enough[np.argsort(self.auc[enough], kind="stable")]

    def mean(self) -> tuple[float, float]:
        """Return the mean AUC and the mean overlap of the counted classes; NaN if none is."""
        counted = self.counted
        if not len(counted):
            return np.nan, np.nan
        return float(self.auc[counted].mean()), float(self.overlap[counted].mean())


@dataclass(frozen=True, eq=False)
class UnknownPositives:
    """Unknown training labels that are truly present, per class.

    Attributes:
        classes: K names.
        unknown: ``(K,)`` number of unknown labels of known truth.
        present: ``(K,)`` how many of them are truly present.
    """

    classes: tuple[str, ...]
    unknown: NDArray[np.int64]
    present: NDArray[np.int64]

    @property
    def share(self) -> NDArray[np.float64]:
        """``(K,)`` of the unknown labels that are truly present; NaN where no label is unknown."""
        return np.where(self.unknown > 0, self.present / np.maximum(self.unknown, 1), np.nan)


def class_separability(scores: ArrayLike, labels: ArrayLike, classes: Sequence[str] | None = None) -> ClassSeparability:
    """Measure how separable the scores of every class are.

    Args:
        scores: ``(N, K)`` from 0 to 1.
        labels: ``(N, K)`` of PRESENT, ABSENT, UNKNOWN; unknown labels are left out.
        classes: K names; numbers when not given.

    Example:
        >>> found = class_separability([[0.9, 0.3], [0.4, 0.6], [0.1, 0.3]], [[1, 1], [1, 0], [0, 0]])
        >>> found.auc, found.overlap
        (array([1.  , 0.25]), array([0. , 0.5]))
    """
    values, codes = np.asarray(scores), np.asarray(labels)
    if values.ndim != 2 or values.shape != codes.shape:
        raise InputError(
            f"scores of shape {values.shape} and labels of shape {codes.shape}: both are images × classes."
        )
    if values.size and not (values.min() >= 0 and values.max() <= 1):  # NaN as well
        raise InputError("a score is not between 0 and 1: give probabilities, not logits.")
    names = tuple(map(str, range(codes.shape[1]))) if classes is None else tuple(classes)
    states = (
        (values[codes[:, place] == PRESENT, place], values[codes[:, place] == ABSENT, place])
        for place in range(len(names))
    )
    return _separability(states, names, len(values))


def separability_from_trace(
    trace: Mapping[str, NDArray[Any]], classes: Sequence[str], epoch: int | None = None
) -> ClassSeparability | None:
    """Measure how separable the scores of unknown training labels are; None if the truth of none is known.

    Args:
        trace: as ``Run.trace`` gives it: row, column, observed, truth ``(R,)``; logit ``(E, R)``.
        classes: of the run.
        epoch: that recorded the scores; the last when not given. It is limited to the recorded ones.
    """
    if not trace or len(trace["logit"]) == 0:
        return None
    epochs = len(trace["logit"])
    logits = trace["logit"][(epochs if epoch is None else min(max(epoch, 1), epochs)) - 1]
    usable = (trace["observed"] == UNKNOWN) & (trace["truth"] != UNKNOWN) & ~np.isnan(logits)
    entries = np.flatnonzero(usable)
    if not len(entries):
        return None
    entries = entries[np.argsort(trace["column"][entries], kind="stable")]
    starts = np.searchsorted(trace["column"][entries], np.arange(len(classes) + 1))
    scores, truth = expit(logits[entries].astype(np.float64)), trace["truth"][entries]
    parts = (slice(first, last) for first, last in pairwise(starts.tolist()))
    states = ((scores[part][truth[part] == PRESENT], scores[part][truth[part] == ABSENT]) for part in parts)
    return _separability(states, classes, len(np.unique(trace["row"][entries])))


def separability_on_unseen(run: Run, data: Dataset | None) -> tuple[str, ClassSeparability] | None:
    """Measure how separable a run's scores of unseen images are: of test, else of the best evidence that there is.

    Args:
        run: its predictions are read.
        data: that it was trained on.

    Returns:
        What the images are ("test", "val", "out of fold"), and the measures over their known labels; None where the
        run has no predictions of them, or no label of both states of a class is known.
    """
    for name, heading in unseen_splits(run.metrics).items() if data is not None else ():
        split = next((each for each in data.splits if each.name == name), None) if data is not None else None
        if split is None or not len(split):
            continue
        most = max(1, MAX_SCORES // max(len(run.config.classes), 1))
        rows = np.arange(len(split))
        if len(rows) > most:
            rows = np.sort(numpy_generator(0, "separability").choice(rows, most, replace=False))
        images = [split.labels.images[row] for row in rows.tolist()]
        scores = read_predictions(run.path, split.name, images, run.config.classes)
        if scores is None:
            continue
        found = class_separability(scores, split.evaluation_labels.batch(rows).numpy(), run.config.classes)
        if np.isfinite(found.auc).any():
            return heading, found
    return None


def count_unknown_positives(observed: LabelTable, truth: LabelTable) -> UnknownPositives:
    """Count the unknown labels, and those of them that are truly present, per class; in blocks of rows.

    Example:
        >>> observed, truth = (LabelTable.from_dense(codes) for codes in ([[1, -1], [-1, -1]], [[1, 1], [0, -1]]))
        >>> count_unknown_positives(observed, truth).share
        array([0., 1.])
    """
    size = max(1, _BLOCK // max(len(observed.classes), 1))
    unknown, present = np.zeros((2, len(observed.classes)), dtype=np.int64)
    for start in range(0, len(observed), size):
        rows = np.arange(start, min(start + size, len(observed)))
        hidden, true = observed.batch(rows).numpy() == UNKNOWN, truth.batch(rows).numpy()
        unknown += (hidden & (true != UNKNOWN)).sum(axis=0)
        present += (hidden & (true == PRESENT)).sum(axis=0)
    return UnknownPositives(observed.classes, unknown, present)


def unknown_positives_from_run(run: Run, data: Dataset | None = None) -> UnknownPositives | None:
    """Count them from the data set of a run, or from a trace of all labels; None if the truth of no label is known."""
    found, trace = None, run.trace
    if data is not None and data.train.truth is not None:
        found = count_unknown_positives(data.train.labels, data.train.truth)
    elif run.config.trace == "all" and trace:
        hidden = (trace["observed"] == UNKNOWN) & (trace["truth"] != UNKNOWN)
        counts = [
            np.bincount(trace["column"][chosen], minlength=len(run.config.classes))
            for chosen in (hidden, hidden & (trace["truth"] == PRESENT))
        ]
        found = UnknownPositives(tuple(run.config.classes), *counts)
    return found if found is not None and found.unknown.any() else None


def _separability(
    states: Iterable[tuple[NDArray[Any], NDArray[Any]]], classes: Sequence[str], images: int
) -> ClassSeparability:
    """Measure every class, given the scores of its present and of its absent labels."""
    shape = (len(classes), BINS)
    shares = [np.full(shape, np.nan), np.full(shape, np.nan)]
    counts, auc = np.zeros((2, len(classes)), dtype=np.int64), np.full(len(classes), np.nan)
    for place, found in enumerate(states):
        for state, scores in enumerate(found):
            counts[state, place] = len(scores)
            shares[state][place] = probability_shares(scores)
        auc[place] = _area(*found)
    overlap = np.minimum(shares[0], shares[1]).sum(axis=1)
    return ClassSeparability(tuple(classes), counts[0], counts[1], auc, overlap, shares[0], shares[1], images)


def _area(present: NDArray[Any], absent: NDArray[Any]) -> float:
    """Return the area under the ROC curve, ties counted half; NaN without present or absent scores."""
    if not len(present) or not len(absent):
        return np.nan
    ordered = np.sort(absent)
    below, up_to = (np.searchsorted(ordered, present, side).mean() for side in ("left", "right"))
    return float((below + up_to) / (2 * len(absent)))
