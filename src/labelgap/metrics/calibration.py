"""Platt scaling: from a logit to a probability, where known labels say how often such a logit was right.

The sigmoid of a logit ranks images. It is not a probability: trained with most labels missing, a network gives 0.3 to
what is present in nine of ten images. A line through the logits corrects that; all classes share its slope. It is
fitted on images that the model was not trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT, as_codes
from labelgap.metrics.shared_calibration import fit_shared_calibration, ranks_presents
from labelgap.metrics.validation import MIN_KNOWN_LABELS

_MAX_STEPS: Final = 100
_MIN_SLOPE: Final = 0.3
"""Smallest slope of a calibration, per standard deviation of the logits: with less, scores say next to nothing."""


@dataclass(frozen=True)
class PlattCalibration:
    """A line through the logits of each class: the probability is the sigmoid of ``scale`` × logit + ``offset``.

    Attributes:
        scale: above 0, so the order stays.
        offset: what is added, per class.
        classes: whether each class of the run is calibrated.
        present: known present labels it was found on.
        absent: known absent labels it was found on.
        known: the share of these classes' labels that is known. Below 1, the probability is an estimate: right where
            labels are missing at random.
    """

    scale: float
    offset: tuple[float, ...]
    classes: tuple[bool, ...]
    present: int
    absent: int
    known: float

    def probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return ``(N, K)``, NaN for a class that is not calibrated."""
        chance = expit(self.scale * logits.astype(np.float64) + np.asarray(self.offset))
        return np.where(np.asarray(self.classes)[None, :], chance, np.nan).astype(np.float32)


def fit_platt_calibration(logits: NDArray[np.float32], labels: LabelTable | NDArray[np.int8]) -> dict[str, Any] | None:
    """Find the calibration of a run on held-out images, as its summary keeps it; None where the labels support none.

    Args:
        logits: ``(N, K)`` of a held-out split, or out-of-fold.
        labels: what is known of these images: a label table, or ``(N, K)`` codes.

    A class takes part if it has at least five known present labels; absent ones need not be known
    (``labelgap.metrics.shared_calibration`` has the model). There is no calibration where no class takes part, or where
    higher logits are not more often present.

    Example:
        >>> random = np.random.default_rng(0)
        >>> labels = (random.random((400, 2)) < 0.5).astype(np.int8)
        >>> found = fit_platt_calibration(random.normal(size=(400, 2)) + labels, labels)
        >>> found["classes"], round(found["scale"]), round(found["known"])
        ([True, True], 1, 1)
    """
    codes = labels.to_dense() if isinstance(labels, LabelTable) else as_codes(labels)
    present, absent = (np.count_nonzero(codes == state, axis=0) for state in (PRESENT, ABSENT))
    supported = present >= MIN_KNOWN_LABELS
    if not supported.any() or not np.isfinite(logits).all() or not ranks_presents(logits, codes):
        return None
    line = fit_shared_calibration(logits, codes)
    if line is None or line.slope < _MIN_SLOPE:
        return None
    counts = int(present[supported].sum()), int(absent[supported].sum())
    share = sum(counts) / (len(codes) * int(supported.sum()))
    found = PlattCalibration(line.scale, tuple(line.offset.tolist()), tuple(supported.tolist()), *counts, share)
    return {"method": "platt", **asdict(found), "offset": list(found.offset), "classes": list(found.classes)}


def read_calibration(summary: Mapping[str, Any]) -> PlattCalibration | None:
    """Return the calibration in a run's summary; None for a run without one, or from before there were any.

    Older runs have one offset for all classes.
    """
    stored = summary.get("calibration")
    if not stored:
        return None
    classes, offset = tuple(stored["classes"]), stored["offset"]
    offsets = tuple(offset) if isinstance(offset, list) else (offset,) * len(classes)
    numbers = {name: stored[name] for name in ("scale", "present", "absent", "known")}
    return PlattCalibration(classes=classes, offset=offsets, **numbers)


def platt_scaling(
    logits: NDArray[np.floating[Any]],
    present: NDArray[np.bool_],
    weights: NDArray[np.floating[Any]] | None = None,
    *,
    min_slope: float | None = None,
) -> tuple[float, float]:
    r"""Fit the line of Platt scaling by Newton's method.

    .. math:: \min_{a, b} - \sum_i w_i \bigl( t_i \ln \sigma(a x_i + b) + (1 - t_i) \ln(1 - \sigma(a x_i + b)) \bigr)

    with targets :math:`t = (P + 1) / (P + 2)` for a present entry and :math:`1 / (A + 2)` for an absent one, so that
    logits that separate the two perfectly still give a finite line. P and A are the weights of the two states.

    Args:
        logits: ``(M,)`` finite.
        present: ``(M,)`` whether each entry is present.
        weights: ``(M,)`` how often each entry counts; once each when None.
        min_slope: the smallest slope per standard deviation of the logits; a model that ranks at random then does not
            reverse the order. None for no limit.

    Returns:
        a and b.

    Reference:
        Platt, "Probabilistic outputs for support vector machines", 1999; Lin, Lin & Weng, Machine Learning 68, 2007.

    Example:
        >>> slope, intercept = platt_scaling(np.array([-3.0, -1.0, 1.0, 3.0]), np.array([False, False, True, True]))
        >>> round(slope, 2), abs(round(intercept, 2))
        (0.45, 0.0)
    """
    values = logits.astype(np.float64)
    weight = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    positives, negatives = float(weight[present].sum()), float(weight[~present].sum())
    targets = np.where(present, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    mean = float(np.average(values, weights=weight))
    deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=weight))) or 1.0
    design = np.stack([(values - mean) / deviation, np.ones_like(values)])
    line = np.array([0.0, np.log((positives + 1) / (negatives + 1))])
    loss = _loss(line, design, targets, weight)
    for _ in range(_MAX_STEPS):
        probability = expit(line @ design)
        gradient = design @ (weight * (probability - targets))
        hessian = (design * (weight * probability * (1 - probability))) @ design.T + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        while (tried := _loss(line - step, design, targets, weight)) > loss and np.abs(step).max() > 1e-12:
            step = step / 2
        line, loss = line - step, min(loss, tried)
        if np.abs(step).max() < 1e-10:
            break
    slope = float(line[0]) if min_slope is None else max(float(line[0]), min_slope)
    return slope / deviation, float(line[1]) - slope * mean / deviation


def nonnegative_logistic(
    values: NDArray[np.floating[Any]],
    present: NDArray[np.bool_],
    weights: NDArray[np.floating[Any]],
    *,
    min_slopes: Sequence[float],
) -> tuple[NDArray[np.float64], float]:
    r"""Fit a logistic regression on several scores, with the targets of Platt scaling and bounded slopes.

    Args:
        values: ``(R, M)`` finite scores of R kinds.
        present: ``(M,)`` whether each entry is present; both states occur.
        weights: ``(M,)`` how often each entry counts.
        min_slopes: ``(R,)`` the smallest slope of each kind, per standard deviation of its scores.

    Returns:
        The slopes ``(R,)`` and the intercept. Scores that are constant get the slope 0.

    Example:
        >>> scores = np.array([[-3.0, -1.0, 1.0, 3.0], [1.0, -1.0, -1.0, 1.0]])
        >>> present = np.array([False, False, True, True])
        >>> slopes, intercept = nonnegative_logistic(scores, present, np.ones(4), min_slopes=(0.0, 0.0))
        >>> slopes.round(2).tolist(), abs(round(intercept, 2))
        ([0.45, 0.0], 0.0)
    """
    positives, negatives = float(weights[present].sum()), float(weights[~present].sum())
    targets = np.where(present, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    mean = np.average(values, axis=1, weights=weights)
    deviation = np.sqrt(np.average((values - mean[:, None]) ** 2, axis=1, weights=weights))
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    design = np.concatenate([(values - mean[:, None]) * scale[:, None], np.ones((1, values.shape[1]))])

    share = weights / weights.sum()

    def objective(line: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        gradient = design @ (share * (expit(line @ design) - targets))
        return _loss(line, design, targets, share), gradient

    start = np.array([*(max(slope, 0.0) for slope in min_slopes), np.log((positives + 1) / (negatives + 1))])
    bounds = [*((slope, None) for slope in min_slopes), (None, None)]
    options = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 1000}
    line: NDArray[np.float64] = minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x
    slopes = line[:-1] * scale
    return slopes, float(line[-1] - slopes @ mean)


def _loss(
    line: NDArray[np.float64], design: NDArray[np.float64], targets: NDArray[np.float64], weight: NDArray[np.float64]
) -> float:
    logits = line @ design
    return float(weight @ (np.logaddexp(0.0, logits) - targets * logits))
