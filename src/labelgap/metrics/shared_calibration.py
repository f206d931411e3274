r"""Probabilities of all labels from the few that are known: one slope for all classes, an offset for each.

With the logit :math:`x` of an image and a class :math:`k`, the label is present with probability
:math:`p = \sigma(a x + b_k)`. People give a present label with probability :math:`c_k` and an absent one with
:math:`d_k`, whatever the image (labels are **missing at random**, given their state). What is observed of an entry has
the likelihood

.. math:: P(\text{present}) = c_k\, p, \qquad P(\text{absent}) = d_k (1 - p), \qquad
          P(\text{unknown}) = (1 - c_k)\, p + (1 - d_k)(1 - p)

so presents alone determine the line: images that score as the known presents do are present, known or not. A class
with few known presents borrows from the others, by normal priors on :math:`b_k` (deviation 1 around the mean of the
classes), on :math:`\operatorname{logit} c_k` (deviation ½ around a mean that is itself 0 ± 1) and on :math:`\ln a`. The
result is the most probable set of parameters. On complete labels it is Platt scaling with shrunken offsets.

References: Platt, "Probabilistic outputs for support vector machines", 1999; Elkan & Noto, "Learning classifiers from
only positive and unlabeled data", KDD 2008, for c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit
from threadpoolctl import ThreadpoolController

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics.average_precision import map_chunks, slices
from labelgap.metrics.validation import Codes, Floats

OFFSET_DEVIATION: Final = 1.0
"""Prior standard deviation of the offsets around their mean."""
FREQUENCY_DEVIATION: Final = 0.5
"""Prior standard deviation of the logit of c around its mean."""
MEAN_FREQUENCY_DEVIATION: Final = 1.0
"""Prior standard deviation of that mean around 0, a frequency of one half."""
LOG_SLOPE: Final = 0.7
"""Prior mean of the log of the slope, for logits of deviation 1; its standard deviation is 1."""
MIN_RANKING: Final = 2.0
"""Standard deviations by which known presents must score higher than others, in the mean over classes."""
_MAX_LOG_SLOPE: Final = 50.0
"""Limit of ln a in the objective: the first step of a line search may go farther than exp can."""
_PSEUDO_LABELS: Final = 0.5
"""Known and unknown absents that are added to each class, so that d stays between 0 and 1."""
_MAX_DEVIATION: Final = 8.0
"""Logits farther than this from the mean, in standard deviations, count as this."""
_BINS: Final = 512
"""Above this number of images, logits of a class and state that are close to each other count as their mean: those of
one of so many bins."""
_MANY_CLASSES: Final = 1000
_COARSE_BINS: Final = 128
"""The number of bins with more than so many classes. The parameters that they share have data enough, and the time of
the fit grows with classes × bins; a bin is an eighth of a standard deviation wide."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SharedCalibration:
    """The line of every class; a class without a known present has the mean offset.

    Attributes:
        scale: a, above 0.
        slope: a for logits of deviation 1: near 0 for scores that do not rank.
        offset: ``(K,)`` b.
        present_known: ``(K,)`` c, the estimated share of the present labels that is known; NaN without a known present.
        absent_known: ``(K,)`` d, of the absent labels.
    """

    scale: float
    slope: float
    offset: Array
    present_known: Array
    absent_known: Array

    def probabilities(self, logits: Floats, columns: slice = slice(None)) -> Array:
        """Return p of any images, ``(N, K)``, whatever is known of them; of some classes where ``columns`` says so."""
        result: Array = expit(self.scale * logits[:, columns].astype(np.float64) + self.offset[columns])
        return result

    def posterior(self, logits: Floats, codes: Codes, columns: slice = slice(None)) -> Array:
        """Return the probability that each label is present, given what is known of it, ``(N, K)``.

        1 and 0 for known labels. An unknown one is less often present than ``probabilities`` says where people label
        mostly what is present. The sum over the images estimates how many are present.
        """
        chance, codes = self.probabilities(logits, columns), codes[:, columns]
        hidden = (1 - np.nan_to_num(self.present_known[columns])) * chance
        rest = (1 - self.absent_known[columns]) * (1 - chance)
        known: Array = np.where(codes == PRESENT, 1.0, 0.0)
        return np.where(codes == UNKNOWN, hidden / np.maximum(hidden + rest, 1e-300), known)

    def prevalence(self, logits: Floats, codes: Codes) -> Array:
        """Return the estimated share of the images in which each class is present, ``(K,)``."""
        means = map_chunks(lambda part: self.posterior(logits, codes, part).mean(axis=0), *codes.shape[::-1])
        return np.concatenate([each for _, each in means])


def ranks_presents(logits: Floats, codes: Codes) -> bool:
    """Return whether known presents score higher than the other labels of their class: a rank-sum test.

    Where they do not, nothing separates "few are present" from "all are present, and few of them known".

    Example:
        >>> codes = np.where(np.arange(40) < 8, PRESENT, UNKNOWN)[:, None]
        >>> scores = np.arange(40.0)[:, None]
        >>> ranks_presents(-scores, codes), ranks_presents(scores, codes), ranks_presents(0 * scores, codes)
        (True, False, False)
    """
    excess, variance = 0.0, 0.0
    for column in np.flatnonzero((codes == PRESENT).any(axis=0)).tolist():
        present = codes[:, column] == PRESENT
        own, others = logits[present, column], np.sort(logits[~present, column])
        below = (np.searchsorted(others, own) + np.searchsorted(others, own, side="right")) / 2
        excess += float((below - len(others) / 2).sum())
        variance += len(own) * len(others) * (len(codes) + 1) / 12
    return excess > 0 and excess >= MIN_RANKING * math.sqrt(variance)


def fit_shared_calibration(logits: Floats, codes: Codes) -> SharedCalibration | None:
    """Fit the lines of K classes on images that the model was not trained on; None without a known present.

    Args:
        logits: ``(N, K)`` finite.
        codes: ``(N, K)`` of PRESENT, ABSENT, UNKNOWN.

    Example:
        >>> random = np.random.default_rng(0)
        >>> truth = (random.random((2000, 3)) < 0.2).astype(np.int8)
        >>> logits = random.normal(size=truth.shape) + 3 * truth
        >>> codes = np.where((truth == 1) & (random.random(truth.shape) < 0.4), truth, -1).astype(np.int8)
        >>> found = fit_shared_calibration(logits, codes)
        >>> round(float(found.posterior(logits, codes).sum() / truth.sum()), 1), found.present_known.round(1)
        (1.0, array([0.4, 0.4, 0.4]))
    """
    columns = np.flatnonzero((codes == PRESENT).any(axis=0))
    if not columns.size:
        return None
    center, deviation = _mean_and_deviation(logits, columns)
    entries = _collect(logits, codes, columns, center, deviation)
    options = {"maxiter": 500, "maxfun": 1000, "ftol": 1e-11, "gtol": 1e-5}
    with _libraries().limit(limits=1, user_api="blas"):  # threads take six times as long for so few parameters
        found = minimize(entries.objective, entries.start(), jac=True, method="L-BFGS-B", options=options).x
    slope = float(np.exp(found[0]))
    own, present_known, absent_known = found[1:].reshape(3, -1)
    scale = slope / deviation
    offset = np.full(codes.shape[1], own.mean())
    offset[columns] = own
    shares = np.full((2, codes.shape[1]), np.nan)
    shares[1] = (codes == ABSENT).mean(axis=0)
    shares[:, columns] = expit([present_known, absent_known])
    return SharedCalibration(scale, slope, offset - scale * center, *shares)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


@dataclass(frozen=True, eq=False)
class _Entries:
    """Standardized logits of the three states, with the class and the number of images of each."""

    classes: int
    images: int
    column: NDArray[np.int64]
    state: Codes
    value: Array
    count: Array

    @cached_property
    def known(self) -> tuple[Array, Array]:
        """How many labels of every class are known to be present, and absent."""
        present, absent = (self._sums((self.state == state) * self.count) for state in (PRESENT, ABSENT))
        return present, absent

    @cached_property
    def unknown(self) -> Array:
        """How many labels of every class are unknown."""
        return self._sums((self.state == UNKNOWN) * self.count)

    def start(self) -> Array:
        """Return parameters to start from: ln a, then b, logit c and logit d of every class."""
        offset, known = (logit((number + 0.5) / (self.images + 1)) for number in self.known)
        return np.concatenate([[LOG_SLOPE], offset - 0.5, np.zeros(self.classes), known])

    def objective(self, parameters: Array) -> tuple[float, Array]:
        """Return the negative log posterior, up to a constant, and its gradient."""
        log_slope, slope = parameters[0], np.exp(min(parameters[0], _MAX_LOG_SLOPE))
        offset, present_known, absent_known = parameters[1:].reshape(3, -1)
        line = slope * self.value + offset[self.column]
        present, hidden_classes = log_expit(line), log_expit(-present_known)
        # ln P(unknown) = ln((1 - c) p) - ln P(present | unknown), and P(present | unknown) = sigma(line + a ratio)
        log_posterior = log_expit(line + (hidden_classes - log_expit(-absent_known))[self.column])
        unknown = self.state == UNKNOWN
        either = hidden_classes[self.column] + present - log_posterior
        cost = -self.count @ np.where(unknown, either, present - line * (self.state == ABSENT))
        posterior = np.where(unknown, np.exp(log_posterior), self.state == PRESENT)
        error = self.count * (np.exp(present) - posterior)

        known, missing = [*self.known], [self._sums(unknown * self.count * posterior)]
        missing.append(self.unknown - missing[0])
        known[1], missing[1] = known[1] + _PSEUDO_LABELS, missing[1] + _PSEUDO_LABELS
        mean, precision = offset.mean(), FREQUENCY_DEVIATION**-2
        mean_known = present_known.sum() * precision / (self.classes * precision + MEAN_FREQUENCY_DEVIATION**-2)
        around, around_known = (offset - mean) / OFFSET_DEVIATION**2, (present_known - mean_known) * precision
        cost -= known[0] @ log_expit(present_known) + known[1] @ log_expit(absent_known)
        cost -= _PSEUDO_LABELS * log_expit(-absent_known).sum()
        cost += around @ (offset - mean) / 2 + around_known @ (present_known - mean_known) / 2
        cost += (mean_known / MEAN_FREQUENCY_DEVIATION) ** 2 / 2 + (log_slope - LOG_SLOPE) ** 2 / 2
        gradient = [
            [slope * (error @ self.value) + log_slope - LOG_SLOPE],
            self._sums(error) + around,
            missing[0] * expit(present_known) - known[0] * expit(-present_known) + around_known,
            missing[1] * expit(absent_known) - known[1] * expit(-absent_known),
        ]
        return float(cost), np.concatenate(gradient)

    def _sums(self, values: NDArray[Any]) -> Array:
        return np.bincount(self.column, weights=values, minlength=self.classes).astype(np.float64)


def _mean_and_deviation(logits: Floats, columns: NDArray[np.int64]) -> tuple[float, float]:
    """Return those of all logits of some classes; a deviation of 0 counts as 1."""
    chunks, count = list(slices(columns.size, len(logits))), len(logits) * columns.size
    mean = sum(float(logits[:, columns[chunk]].sum(dtype=np.float64)) for chunk in chunks) / count
    squares = sum(float(np.square(logits[:, columns[chunk]] - np.float64(mean)).sum()) for chunk in chunks)
    return mean, float(np.sqrt(squares / count)) or 1.0


def _collect(logits: Floats, codes: Codes, columns: NDArray[np.int64], center: float, deviation: float) -> _Entries:
    """Return the entries of some classes; close logits of many images count as their mean."""
    parts, bins = [], _BINS if columns.size <= _MANY_CLASSES else _COARSE_BINS
    for chunk in slices(columns.size, len(logits)):
        part = columns[chunk]
        values = (logits[:, part].astype(np.float64) - center) / deviation
        flat, state = np.clip(values, -_MAX_DEVIATION, _MAX_DEVIATION).ravel(), codes[:, part].ravel()
        column = np.broadcast_to(np.arange(part.size), values.shape).ravel()
        count = np.ones(flat.size)
        if len(logits) > _BINS:
            column, state, flat, count = _binned(column, state, flat, bins)
        parts.append((column + chunk.start, state, flat, count))
    return _Entries(columns.size, len(logits), *map(np.concatenate, zip(*parts, strict=True)))


def _binned(
    column: NDArray[np.int64], state: Codes, values: Array, bins: int
) -> tuple[NDArray[np.int64], Codes, Array, Array]:
    """Return the class, state, mean and number of the values of each bin."""
    place = np.minimum((values + _MAX_DEVIATION) * (bins / (2 * _MAX_DEVIATION)), bins - 1).astype(np.int64)
    index = (column * 3 + (state - UNKNOWN)) * bins + place
    count = np.bincount(index)
    used = np.flatnonzero(count)
    mean = np.bincount(index, weights=values)[used] / count[used]
    states = (used // bins % 3 + UNKNOWN).astype(np.int8)
    return used // (3 * bins), states, mean, count[used].astype(np.float64)
