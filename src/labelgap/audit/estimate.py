r"""How many labels are missing: a model of which labels are present, and which of those are known.

Let :math:`z` be the log-odds, from out-of-fold scores, that a label is observed present. Of class :math:`k`

.. math:: P(\text{present}) = p = \sigma(a z + b_k), \qquad P(\text{known} \mid \text{present}) = e_k, \qquad
          P(\text{known} \mid \text{absent}) = f_k

with one slope for all classes. Where nearly all of the highest-scoring labels are known, :math:`e_k` is high; where
few of them are, many labels are missing. Scores that hardly separate, or a handful of known labels, say nothing about
:math:`e_k`, so classes share their strength: the logits of :math:`e_k` are normal around the album's mean, which has a
prior too, and :math:`b_k + \ln e_k`, 0 for exact scores and :math:`a = 1`, is normal around a common number. The
parameters are a maximum of the posterior, reached from the priors' means; where the scores hardly separate there may be
a higher one. :math:`f_k` is 0 where no absent label is known.

**People stop after one or two tags.** Then a label beside a known one is known less often than :math:`e_k`. Let
:math:`r` be the number of known present labels beside another known present label of their image, divided by the sum
of :math:`\sigma(z)` over all labels beside a known present one. It is about 0.7 without such a habit (of several likely
labels of an image some are alternatives), and 0 if nobody gives a second tag. With :math:`\kappa = 0.4 + 0.6
\min(1, r / 0.7)` the odds of an unknown label are

.. math:: \frac{P(\text{present} \mid \text{unknown})}{P(\text{absent} \mid \text{unknown})}
          = e^{a z + b_k}\; \frac{1 - \kappa e_k}{1 - f_k}

These probabilities are the scores of the candidates. The estimate of a class *is* their sum over its unknown labels,
and that of all classes the sum of those. The range, half to twice as many, is wide: who tags which labels is not known.
Only a review of random candidates supports an interval. docs/audit.md says how the constants were chosen, and what
came true.

Reference: Elkan & Noto, "Learning classifiers from only positive and unlabeled data", KDD 2008, for :math:`e_k`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from labelgap.audit.score_sample import ScoreSample

KNOWN_MEAN: Final = 1.0
"""Mean of the prior of the album's mean logit of e."""
KNOWN_MEAN_SPREAD: Final = 0.7
KNOWN_SPREAD: Final = 0.5
"""Standard deviation of the logits of e over classes."""
OFFSET_SPREAD: Final = 0.25
"""Standard deviation of b + ln e over classes."""
SLOPE_SPREAD: Final = 0.5
ABSENT_MEAN, ABSENT_MEAN_SPREAD, ABSENT_SPREAD = -2.0, 3.0, 1.0
_PRIOR_MEAN: Final = np.array([0.0, 0.0, KNOWN_MEAN, ABSENT_MEAN])
_PRECISION: Final = np.array([SLOPE_SPREAD, np.inf, KNOWN_MEAN_SPREAD, ABSENT_MEAN_SPREAD]) ** -2.0
"""Of the priors of the four common parameters; the second, the mean of b + ln e, has none."""
_SPREADS, _OWN = np.array([KNOWN_SPREAD, OFFSET_SPREAD, ABSENT_SPREAD]), np.array([2, 1, 3])
"""Of the three parameters of a class, and which of the four common ones each is added to."""
_FIRST_ITERATIONS, _NEWTON_ITERATIONS, _LONGEST_STEP = 30, 200, 3.0
_DECREASE: Final = 1e-9
"""Twice the decrease, of the logarithm of the posterior, for which no further step is made."""
_TINY: Final = 1e-300
INDEPENDENT_RATIO: Final = 0.7
"""What the ratio of known labels beside known ones to their scores is where people do not stop early."""
MIN_STOPPING: Final = 0.4
"""The smallest κ."""
RANGE_FACTOR: Final = 2.0
"""The range is from the estimate divided by this to the estimate times this."""


@dataclass(frozen=True, eq=False)
class LabelModel:
    """The parameters; see the module's docstring.

    Attributes:
        slope: a.
        offset: ``(K,)`` b.
        known: ``(K,)`` e, the share of the present labels that is known.
        known_absent: ``(K,)`` f, that of the absent labels.
    """

    slope: float
    offset: NDArray[np.float64]
    known: NDArray[np.float64]
    known_absent: NDArray[np.float64]

    def unknown_offset(self, stopping: float) -> NDArray[np.float64]:
        """Return what is added to ``slope`` × z for the log-odds of unknown labels, ``(K,)``; ``stopping`` is κ."""
        return self.offset + np.log1p(-stopping * self.known) - np.log1p(-self.known_absent)


@dataclass(frozen=True, eq=False)
class MissingEstimate:
    """How many unknown labels are present, estimated before a review.

    Attributes:
        by_class: ``(K,)`` the sum of the scores of each class's unknown labels.
        known: ``(K,)`` known present labels.
    """

    by_class: NDArray[np.float64]
    known: NDArray[np.int64]

    @property
    def missing(self) -> float:
        """Missing labels of all classes."""
        return float(self.by_class.sum())

    def to_json(self, classes: Sequence[str]) -> dict[str, Any]:
        """Return the metadata for ``candidates.parquet``; the integers of all classes sum to the total.

        The range, how few and how many they may be, is that of a review before its first decision.
        """
        by_class = round_to_sum(self.by_class).tolist()
        total = sum(by_class)
        return {
            "missing": total,
            "range": [math.floor(total / RANGE_FACTOR), math.ceil(total * RANGE_FACTOR)],
            "known": int(self.known.sum()),
            "missing_per_class": dict(zip(classes, by_class, strict=True)),
        }


def round_to_sum(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round numbers to integers that sum to their rounded sum: those with the largest fractions are rounded up.

    Example:
        >>> round_to_sum(np.array([1.5, 1.3, 0.4]))
        array([2, 1, 0])
    """
    floor = np.floor(values).astype(np.int64)
    up = round(float(values.sum())) - int(floor.sum())
    floor[np.argsort(floor - values, kind="stable")[:up]] += 1
    return floor


def fit_label_model(z: NDArray[np.float64], counts: NDArray[np.floating[Any]]) -> LabelModel:
    """Fit the model to histograms of z.

    Args:
        z: ``(K, G)`` centers of each class's bins.
        counts: ``(3, K, G)`` known present, known absent and unknown labels in each bin.

    Example:
        >>> z = np.linspace(-6, 3, 10)[None]
        >>> present = 1000 / (1 + np.exp(-z))
        >>> model = fit_label_model(z, np.stack([0.5 * present, 0 * z, 1000 - 0.5 * present]))
        >>> model.known.round(1), model.known_absent
        (array([0.5]), array([0.]))
    """
    start = np.concatenate([_PRIOR_MEAN, np.zeros(3 * len(z))])
    slope, offset, known, absent = _unpack(_minimize(start, z, counts), len(z))
    return LabelModel(slope, offset, known, absent if counts[1].any() else np.zeros(len(z)))


def _minimize(
    start: NDArray[np.float64], z: NDArray[np.float64], counts: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Return parameters at a minimum of the loss: a few iterations of L-BFGS, then Newton's method.

    Scores that hardly separate, or few labels, leave two minima. The first iterations choose between them: those of
    L-BFGS are short and stay on the side of the prior's mean, which is not always the lower minimum; those of Newton's
    method are few but may go to the other.
    """
    options = {"maxiter": _FIRST_ITERATIONS}
    values = minimize(_loss, start, args=(z, counts), jac=True, method="L-BFGS-B", options=options).x
    cost, gradient = _loss(values, z, counts)
    for _ in range(_NEWTON_ITERATIONS):
        step = _newton_step(values, gradient, z, counts)
        slope = float(gradient @ step)
        if slope > -_DECREASE:
            break
        length = min(1.0, _LONGEST_STEP / float(np.abs(step).max()))
        moved, after = _loss(values + length * step, z, counts)
        while moved > cost + 1e-4 * length * slope and length > 1e-6:
            length /= 2
            moved, after = _loss(values + length * step, z, counts)
        if moved >= cost:
            break
        values, cost, gradient = values + length * step, moved, after
    return np.asarray(values)


def _unpack(
    values: NDArray[np.float64], classes: int
) -> tuple[float, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return a, b, e and f; the free parameters are standard normal but for the first four."""
    by_class = values[4:].reshape(3, classes)
    known, absent = expit(values[2] + KNOWN_SPREAD * by_class[0]), expit(values[3] + ABSENT_SPREAD * by_class[2])
    return float(np.exp(values[0])), values[1] - np.log(known) + OFFSET_SPREAD * by_class[1], known, absent


def _loss(
    values: NDArray[np.float64], z: NDArray[np.float64], counts: NDArray[np.floating[Any]]
) -> tuple[float, NDArray[np.float64]]:
    """Return minus the logarithm of the posterior, and its gradient."""
    classes = len(z)
    slope, offset, known, known_absent = _unpack(values, classes)
    any_absent = bool(counts[1].any())
    e, f = known[:, None], known_absent[:, None] * any_absent
    x = slope * z + offset[:, None]
    p, q = expit(x), expit(-x)
    unknown = np.maximum((1 - e) * p + (1 - f) * q, _TINY)
    cost = (counts[0] * (np.logaddexp(0, -x) - np.log(e)) - counts[2] * np.log(unknown)).sum()
    by_x = -counts[0] * q - counts[2] * (f - e) * p * q / unknown
    by_known = ((counts[2] * p / unknown).sum(axis=1) - counts[0].sum(axis=1) / known) * known * (1 - known)
    by_absent = np.zeros(classes)
    if any_absent:
        cost += (counts[1] * (np.logaddexp(0, x) - np.log(f))).sum()
        by_x += counts[1] * p
        by_f = (counts[2] * q / unknown).sum(axis=1) - counts[1].sum(axis=1) / known_absent
        by_absent = by_f * known_absent * (1 - known_absent)
    by_offset = by_x.sum(axis=1)
    by_known -= by_offset * (1 - known)
    common = values[:4] - _PRIOR_MEAN
    gradient = np.concatenate([_PRECISION * common, values[4:]])
    cost += 0.5 * (gradient[:4] @ common + values[4:] @ values[4:])
    gradient[:4] += [slope * (by_x * z).sum(), by_offset.sum(), by_known.sum(), by_absent.sum()]
    gradient[4:] += np.concatenate([KNOWN_SPREAD * by_known, OFFSET_SPREAD * by_offset, ABSENT_SPREAD * by_absent])
    return float(cost), gradient


def _hessian(
    values: NDArray[np.float64], z: NDArray[np.float64], counts: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    r"""Return the Hessian ``(K, 4, 4)`` of minus the logarithm of each class's likelihood.

    It is in :math:`\ln a`, :math:`\beta = b + \ln e` and the logits u of e and w of f, so that
    :math:`x = a z + \beta - \ln \sigma(u)`. An unknown label costs :math:`-\ln U` with :math:`U = (1-e)\,p + (1-f)\,q`:

    .. math:: U_x = (f-e)\,pq, \quad U_u = -e(1-e)\,p, \quad U_w = -f(1-f)\,q

    .. math:: U_{xx} = U_x (q-p), \quad U_{xu} = U_u\,q, \quad U_{xw} = -U_w\,p, \quad
              U_{uu} = U_u (1-2e), \quad U_{ww} = U_w (1-2f)
    """
    slope, offset, known, known_absent = _unpack(values, len(z))
    any_absent = bool(counts[1].any())
    e, f = known[:, None], known_absent[:, None] * any_absent
    x = slope * z + offset[:, None]
    p, q = expit(x), expit(-x)
    present, absent = counts[0].sum(axis=1), counts[1].sum(axis=1)
    total = np.maximum((1 - e) * p + (1 - f) * q, _TINY)
    share = counts[2] / total
    squared, pq = share / total, p * q
    ux, uu, uw = (f - e) * pq, -e * (1 - e) * p, -f * (1 - f) * q
    gx = counts[1] * p - counts[0] * q - share * ux
    hxx = (counts[0] + counts[1]) * pq + ux * (squared * ux - share * (q - p))
    hxu, hxw = uu * (squared * ux - share * q), uw * (squared * ux + share * p)
    x_u, e, f = known - 1, known, f[:, 0]
    sum_u, sum_w, step = _sums(share, uu), _sums(share, uw), slope * z
    x, sx, ss, s = hxx.sum(axis=1), _sums(hxx, step), _sums(hxx * step, step), _sums(gx, step)
    xu, su, xw, sw = x * x_u + hxu.sum(axis=1), sx * x_u + _sums(hxu, step), hxw.sum(axis=1), _sums(hxw, step)
    vv = _sums(squared * uu, uu) - sum_u * (1 - 2 * e) + (present + gx.sum(axis=1)) * e * (1 - e)
    vv += x_u * (xu + hxu.sum(axis=1))
    vw = xw * x_u + _sums(squared * uu, uw)
    ww = _sums(squared * uw, uw) - sum_w * (1 - 2 * f) + absent * f * (1 - f)
    hessian = np.array([[ss + s, sx, su, sw], [sx, x, xu, xw], [su, xu, vv, vw], [sw, xw, vw, ww]])
    return np.moveaxis(hessian, -1, 0)


def _sums(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums over bins of products, ``(K,)``."""
    return np.asarray(np.einsum("kg,kg->k", one, other))


def _newton_step(
    values: NDArray[np.float64],
    gradient: NDArray[np.float64],
    z: NDArray[np.float64],
    counts: NDArray[np.floating[Any]],
) -> NDArray[np.float64]:
    r"""Return the step of Newton's method.

    Two classes meet only in the four common parameters :math:`c`. With those of a class eliminated,

    .. math:: \Bigl(H_{cc} - \sum_k H_{ck} H_{kk}^{-1} H_{kc}\Bigr)\, d_c = -g_c + \sum_k H_{ck} H_{kk}^{-1} g_k, \qquad
              d_k = -H_{kk}^{-1} (g_k + H_{kc}\, d_c)

    is a system of four equations. Negative curvature is turned around, so that the step always descends.
    """
    hessian, own = _hessian(values, z, counts), gradient[4:].reshape(3, len(z)).T
    across = hessian[:, :, _OWN] * _SPREADS
    inverse = _positive_inverse(across[:, _OWN] * _SPREADS[:, None] + np.eye(3))
    shared = across @ inverse
    matrix = hessian.sum(axis=0) + np.diag(_PRECISION) - np.einsum("kci,kdi->cd", shared, across)
    common = _positive_inverse(matrix) @ (np.einsum("kci,ki->c", shared, own) - gradient[:4])
    return np.concatenate([common, -np.einsum("kij,kj->ik", inverse, own + common @ across).ravel()])


def _positive_inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse of symmetric matrices ``(…, n, n)``, eigenvalues by their magnitude."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors / np.maximum(np.abs(values), 1e-3)[..., None, :]) @ np.swapaxes(vectors, -1, -2))


def stopping_ratio(odds: ScoreSample) -> float:
    """Return κ, from 0.4 to 1: 1 where a known label makes others in the image no less likely to be known.

    ``odds`` are z. A few pseudo-counts keep it near 1 where hardly any label stands beside a known one.
    """
    beside = odds.present_others > 0
    expected = odds.scale * float(np.nansum(expit(odds.unknown[odds.unknown_others > 0])))
    expected += float(expit(odds.present[beside]).sum())
    ratio = min(1.0, (float(beside.sum()) / INDEPENDENT_RATIO + 2) / (expected + 2))
    return MIN_STOPPING + (1 - MIN_STOPPING) * ratio
