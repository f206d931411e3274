"""Scores of annotated and of missing labels in training (Zhou et al. 2022, figures 7–9).

Figure 7 is the loss of the annotated (observed) positives over epochs, figure 8 the absolute logit of unknown positives
and unknown negatives, figure 9 the predicted probability of annotated and of unknown positives. All three are of the
recorded training labels, as the network scored them in the batches of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.training import Run

LabelKind = Literal["observed", "unknown_present", "unknown_absent", "unknown"]
BINS: Final = 20
"""Intervals of the probability, each 0.05 wide."""


@dataclass(frozen=True, eq=False)
class LabelScores:
    """Losses, logits and probabilities of the training labels of one kind.

    Attributes:
        count: how many were recorded.
        loss: ``(E,)`` mean loss, unknown labels taken as absent; NaN in an epoch that saw none.
        magnitude: ``(E, 3)`` first quartile, median and third quartile of the absolute logit.
        epoch: that the probabilities are of, counted from 1.
        shares: ``(BINS,)`` of the labels by the interval of their probability; they sum to 1.
        mean_probability: of the labels that the epoch saw; NaN if none.
    """

    count: int
    loss: NDArray[np.float64]
    magnitude: NDArray[np.float64]
    epoch: int
    shares: NDArray[np.float64]
    mean_probability: float


def label_scores(trace: Mapping[str, NDArray[Any]], epoch: int | None = None) -> dict[LabelKind, LabelScores]:
    """Return the scores of each kind of training labels, those of them that exist.

    Args:
        trace: as ``Run.trace`` gives it: observed, truth ``(R,)``; loss, logit ``(E, R)``.
        epoch: that the probabilities are of; the last when not given. It is limited to the recorded ones.

    Returns:
        "observed", the labels observed as present, and "unknown_present" and "unknown_absent" where the truth of
        unknown labels is known; elsewhere "observed" and "unknown". Labels observed as absent are left out, and so are
        unknown labels of unknown truth if the truth of others is known.

    Example:
        >>> labels = {"observed": np.array([1, -1, -1]), "truth": np.array([1, 1, 0])}
        >>> found = label_scores(labels | {"loss": np.ones((1, 3)), "logit": np.array([[2.0, -1.0, -3.0]])})
        >>> {kind: scores.magnitude[0, 1].item() for kind, scores in found.items()}
        {'observed': 2.0, 'unknown_present': 1.0, 'unknown_absent': 3.0}
    """
    if not trace or len(trace["logit"]) == 0:
        return {}
    observed, truth = trace["observed"], trace["truth"]
    unknown = observed == UNKNOWN
    kinds: dict[LabelKind, NDArray[np.bool_]] = {"observed": observed == PRESENT}
    if (truth[unknown] != UNKNOWN).any():
        kinds["unknown_present"] = unknown & (truth == PRESENT)
        kinds["unknown_absent"] = unknown & (truth == ABSENT)
    else:
        kinds["unknown"] = unknown
    epochs = len(trace["logit"])
    shown = epochs if epoch is None else min(max(epoch, 1), epochs)
    return {kind: _scores(trace, np.flatnonzero(chosen), shown) for kind, chosen in kinds.items() if chosen.any()}


def label_scores_from_run(run: Run) -> dict[LabelKind, LabelScores]:
    """Return the scores of a run's training labels; the probabilities are of the epoch that was kept."""
    return label_scores(run.trace, run.metrics.get("best_epoch"))


def probability_shares(probabilities: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the shares of probabilities in ``BINS`` equal intervals from 0 to 1, ``(BINS,)``; NaN without any.

    An interval contains its lower end; the last one also contains 1.

    Example:
        >>> probability_shares(np.array([0.0, 0.06, 0.07, 1.0]))[[0, 1, 2, -1]]
        array([0.25, 0.5 , 0.  , 0.25])
    """
    if not len(probabilities):
        return np.full(BINS, np.nan)
    places = np.minimum((probabilities.astype(np.float64) * BINS).astype(np.int64), BINS - 1)
    return np.bincount(places, minlength=BINS) / len(probabilities)


def _scores(trace: Mapping[str, NDArray[Any]], entries: NDArray[np.int64], epoch: int) -> LabelScores:
    """Summarize the entries, one epoch in memory at a time."""
    epochs = len(trace["logit"])
    loss, magnitude = np.full(epochs, np.nan), np.full((epochs, 3), np.nan)
    for number in range(epochs):
        losses, logits = (_seen(trace[name][number, entries]) for name in ("loss", "logit"))
        if len(losses) and len(logits):
            loss[number] = losses.mean(dtype=np.float64)
            magnitude[number] = np.quantile(np.abs(logits), [0.25, 0.5, 0.75])
    probabilities = expit(_seen(trace["logit"][epoch - 1, entries]).astype(np.float64))
    mean = float(probabilities.mean()) if len(probabilities) else np.nan
    return LabelScores(len(entries), loss, magnitude, epoch, probability_shares(probabilities), mean)


def _seen(values: NDArray[Any]) -> NDArray[Any]:
    seen: NDArray[Any] = values[~np.isnan(values)]
    return seen
