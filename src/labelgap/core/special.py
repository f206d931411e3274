"""Special functions in NumPy: to import ``scipy.special`` takes every command a quarter of a second."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def expit(log_odds: ArrayLike) -> NDArray[Any]:
    """Return the probabilities of log-odds, in their float type, float32 or wider.

    >>> expit(np.array([-np.inf, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-_widen(log_odds))))


def logit(probabilities: ArrayLike) -> NDArray[Any]:
    """Return the log-odds of probabilities, in their float type, float32 or wider.

    >>> logit(np.array([0.0, 0.5, 1.0])).tolist()
    [-inf, 0.0, inf]
    """
    probabilities = _widen(probabilities)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probabilities) - np.log1p(-probabilities))


def _widen(values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    return array.astype(np.result_type(array.dtype, np.float32), copy=False)


def student_quantile(freedom: float, shares: ArrayLike) -> NDArray[np.float64]:
    r"""Return the values below which so large shares of Student's distribution lie; its freedom is 1 or more.

    With :math:`t = \sqrt n \tan\theta` the density of :math:`\theta` is proportional to :math:`\cos^{n-1}\theta`; the
    angle is found by Newton's method.

    >>> student_quantile(2, [0.025, 0.5, 0.975]).round(6).tolist()
    [-4.302653, 0.0, 4.302653]
    """
    nodes, weights = np.polynomial.legendre.leggauss(40)

    def area(angle: NDArray[np.float64]) -> NDArray[np.float64]:  # from 0 to the angle
        return np.asarray(angle / 2 * (np.cos(angle[:, None] * (nodes + 1) / 2) ** (freedom - 1) @ weights))

    sides = 2 * np.ravel(np.asarray(shares, dtype=np.float64)) - 1
    half = np.sqrt(np.pi) / 2 * np.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    whole = np.abs(sides) * half
    angle = np.zeros_like(sides)
    for _ in range(40):  # the density falls from 0 on, so that no step goes too far
        angle += (whole - area(angle)) / np.cos(angle) ** (freedom - 1)
    return np.asarray(np.sign(sides) * np.sqrt(freedom) * np.tan(angle)).reshape(np.shape(shares))
