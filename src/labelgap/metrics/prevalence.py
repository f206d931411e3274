r"""The share of images in which a class is present, and an average precision that is corrected by it.

Of a class with :math:`P` known present labels, :math:`A` known absent ones and :math:`N` images, let :math:`r(t)` be
the share of the known presents that score at least :math:`t`, :math:`f(t)` that of the known absents, and :math:`q(t)`
that of all images, known or not. Average precision over the known labels alone depends on :math:`P / (P + A)`, which
says how people label, not how often the class occurs: with 50 known presents and one known absent even random scores
reach 0.98. With the prevalence :math:`\pi`, the share of *all* images in which the class is present, precision is
:math:`\pi r / (\pi r + (1 - \pi) f)`, and chance is :math:`\pi`.

The estimate of :math:`\pi` assumes that **labels are missing at random**: the known presents of a class score as its
unknown ones do. Then :math:`q = \pi r + (1 - \pi) f` at every :math:`t`. Among the highest scores nearly all images are
present, which gives a first value, too high a one where some are not; calibrated probabilities of all classes together
(``labelgap.metrics.shared_calibration``) give a better one. It says what :math:`f` is where few absents are known; and
least squares over all cuts give the second value:

.. math:: \pi_0 = \frac{\sum_t w q}{\sum_t w r},\; w = \max(\tfrac12 - r, 0), \qquad
          \hat f = \frac{A f + c f_0}{A + c},\; f_0 = \frac{q - \pi_0 r}{1 - \pi_0}, \qquad
          \pi = \frac{\sum_t (q - \hat f)(r - \hat f)}{\sum_t (r - \hat f)^2}

with :math:`c = 30` and :math:`P / N \le \pi \le P / (P + A)`: people label what is present rather than what is absent.
On complete labels :math:`\pi = P / N`, and the corrected average precision is the plain one. For scores that do not
rank at all nothing can tell presents from absents: :math:`\pi` is then near its upper limit, and so is chance.

Reference: Elkan & Noto, "Learning classifiers from only positive and unlabeled data", KDD 2008, for the assumption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.metrics.average_precision import cuts_at_present, map_chunks, to_rows
from labelgap.metrics.validation import Codes, Floats, Labels, Scores, format_pair, unknown_as_absent

_KNOWN_WEIGHT: Final = 30.0
"""Known absents from which on their own share counts more than what the unknown images imply."""


@dataclass(frozen=True, eq=False)
class PartialCuts:
    """The shares at or above each known present label of R classes, ordered by class and in it by rising score.

    Attributes:
        ranking: ``(C,)`` the class of a cut.
        taken: ``(C,)`` images at or above it.
        recall: ``(C,)`` r, of the known presents.
        share: ``(C,)`` q, of all images.
        false_share: ``(C,)`` f, of the known absents; 0 where none is known.
        present: ``(R,)`` known presents.
        absent: ``(R,)`` known absents.
        images: N.
    """

    ranking: NDArray[np.int64]
    taken: NDArray[np.int64]
    recall: NDArray[np.float64]
    share: NDArray[np.float64]
    false_share: NDArray[np.float64]
    present: NDArray[np.int64]
    absent: NDArray[np.int64]
    images: int

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of one number per cut for each class, ``(R,)``."""
        return np.bincount(self.ranking, weights=values, minlength=len(self.present)).astype(np.float64)

    def prevalence(self, first: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return π of each class, ``(R,)``; the module's docstring has the formula. NaN without a known present.

        Args:
            first: π₀ of each class; None for that of the highest scores.
        """
        low = self.present / max(self.images, 1)
        high = self.present / np.maximum(self.present + self.absent, 1)
        weight = np.maximum(0.5 - self.recall, 0) + 1e-3  # one known present has a recall of 1 alone
        with np.errstate(divide="ignore", invalid="ignore"):
            if first is None:
                first = self.sums(weight * self.share) / self.sums(weight * self.recall)
            first = np.clip(first, low, high)
            implied = self.smoothed_false_share(first)
            slope, rise = self.recall - implied, self.share - implied
            steep = self.sums(slope * slope)
            found = np.where(steep > 1e-12, self.sums(rise * slope) / np.maximum(steep, 1e-12), first)
        prevalence: NDArray[np.float64] = np.where(self.present > 0, np.clip(found, low, high), np.nan)
        return prevalence

    def smoothed_false_share(self, prevalence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return f̂ at each cut: f of the known absents, and what the unknown images imply where few are known."""
        complete = (self.present + self.absent == self.images)[self.ranking]
        pi, absent = prevalence[self.ranking], self.absent[self.ranking]
        implied = np.clip((self.share - pi * self.recall) / np.maximum(1 - pi, 1e-9), 0, 1)
        smoothed = (absent * self.false_share + _KNOWN_WEIGHT * implied) / (absent + _KNOWN_WEIGHT)
        return np.where(complete, self.false_share, smoothed)


@dataclass(frozen=True, eq=False)
class CorrectedPrecision:
    """Average precision of each class as it would be over all images, and what random scores would reach.

    Attributes:
        values: ``(K,)`` average precision; NaN without a known present.
        chance: ``(K,)`` that of random scores: the prevalence.
    """

    values: NDArray[np.float64]
    chance: NDArray[np.float64]


def partial_cuts(scores: Floats, codes: Codes) -> PartialCuts:
    """Return the cuts of R classes of M images at their known present labels."""
    known, everything = cuts_at_present(scores, codes), cuts_at_present(scores, unknown_as_absent(codes))
    present, absent = (np.count_nonzero(codes == state, axis=1) for state in (PRESENT, ABSENT))
    images = codes.shape[1]
    return PartialCuts(
        ranking=known.ranking,
        taken=everything.taken,
        recall=known.hits / np.maximum(present, 1)[known.ranking],
        share=everything.taken / max(images, 1),
        false_share=(known.taken - known.hits) / np.maximum(absent, 1)[known.ranking],
        present=present,
        absent=absent,
        images=images,
    )


def corrected_average_precision(
    scores: Scores, labels: Labels, *, prevalence: NDArray[np.float64] | None = None
) -> CorrectedPrecision:
    r"""Average precision of each class over all images, estimated from the known labels.

    .. math:: \mathrm{AP} = \frac1P \sum_{i=1}^{P} \frac{\pi\, r_i}{\pi\, r_i + (1 - \pi)\, \hat f_i}

    at the known presents; :math:`\pi` and :math:`\hat f` are in the module's docstring, with the assumption. It needs
    no known absent label, and is the plain average precision where every label is known.

    Args:
        scores: ``(N, K)`` finite numbers, probabilities or logits alike.
        labels: ``(N, K)`` of 1 present, 0 absent, -1 or NaN unknown; or a label table.
        prevalence: ``(K,)`` :math:`\pi_0`, e.g. of calibrated probabilities; None for that of the highest scores.

    Example:
        >>> random = np.random.default_rng(0)
        >>> truth = (random.random((2000, 1)) < 0.1).astype(np.int8)
        >>> scores = random.normal(size=truth.shape) + 2.5 * truth
        >>> observed = np.where((truth == 1) & (random.random(truth.shape) < 0.5), truth, -1)
        >>> found = corrected_average_precision(scores, observed)
        >>> exact = corrected_average_precision(scores, truth)
        >>> found.values.round(2), exact.values.round(2), found.chance.round(2)
        (array([0.81]), array([0.79]), array([0.13]))
    """
    formatted, codes = format_pair(scores, labels)
    values, chance = np.full(codes.shape[1], np.nan), np.full(codes.shape[1], np.nan)

    def measure(chunk: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        cuts = partial_cuts(to_rows(formatted.T[chunk]), to_rows(codes.T[chunk]))
        share = cuts.prevalence(None if prevalence is None else prevalence[chunk])
        hits = share[cuts.ranking] * cuts.recall
        misses = (1 - share[cuts.ranking]) * cuts.smoothed_false_share(share)
        mean = cuts.sums(hits / np.maximum(hits + misses, 1e-300)) / np.maximum(cuts.present, 1)
        return np.where(cuts.present > 0, mean, np.nan), share

    for chunk, part in map_chunks(measure, *formatted.shape[::-1]):
        values[chunk], chance[chunk] = part
    return CorrectedPrecision(values, chance)


def estimate_prevalence(scores: Scores, labels: Labels) -> NDArray[np.float64]:
    """Return the estimated share of images in which each class is present, ``(K,)``; NaN without a known present.

    The assumption and the formula are in the module's docstring.
    """
    return corrected_average_precision(scores, labels).chance
