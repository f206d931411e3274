"""References of Kim et al. 2022: the large losses found by sorting a Python list."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

from tests.losses.reference import NOTHING, Answer, Batch, Cost, absent, present, reference
from tests.losses.reference_assume_negative import EPS, known_as_bce

from labelgap.labels import UNKNOWN

RELATIVE = {
    "options": [
        {},
        {"delta_rel": 1.7, "eps": 1e-5},
        {"delta_rel": 3, "base": "all"},
        {"delta_rel": 100, "base": "all"},
        {"delta_rel": 0.23571113171923293},
    ],
    "heads": {"delta_rel": [0.2, 1.5, 40.0], **EPS},
}
ABSOLUTE = {
    "options": [{}, {"r0": 1.0, "delta_abs": 0.09, "eps": 1e-5}, {"warmup": 2, "r0": 1.5}],
    "heads": {"r0": [1.0, 1.5, 2.0], "delta_abs": [0.05, 0.1, 0.15], "warmup": [0, 1, 7], **EPS},
}


def relative_threshold(batch: Batch, delta: float, base: str) -> float:
    """The logit of the k-th largest loss, with the δ that the user wrote; an assumed negative's loss grows with it."""
    unknown = sorted(batch.logits[batch.labels == UNKNOWN].tolist(), reverse=True)
    entries = len(unknown) if base == "unknown" else batch.labels.size
    count = min(math.ceil(entries * (batch.epoch - 1) * Fraction(str(delta)) / 100), len(unknown))
    return unknown[count - 1] if count else math.inf


def changed(batch: Batch, large: Callable[[float], bool], instead: Callable[[float], Cost], eps: float) -> Answer:
    """Assume negative, with something else in the place of large losses of unknown labels."""

    def of_unknown(x: float) -> Cost:
        return instead(x) if large(x) else absent(x, eps)

    return known_as_bce(batch, eps, of_unknown)


def above(batch: Batch, r0: float, delta_abs: float, warmup: int) -> Callable[[float], bool]:
    threshold = r0 - batch.epoch * delta_abs
    return lambda x: batch.epoch > warmup and absent(x).value > threshold


def relative(
    batch: Batch, *, corrected: bool, delta_rel: float = 0.2, base: str = "unknown", eps: float = 0.0
) -> Answer:
    threshold = relative_threshold(batch, delta_rel, base)
    return changed(batch, lambda x: x >= threshold, lambda x: present(x, eps) if corrected else NOTHING, eps)


def absolute(
    batch: Batch, *, corrected: bool, r0: float = 2.0, delta_abs: float = 0.1, warmup: int = 0, eps: float = 0.0
) -> Answer:
    large = above(batch, r0, delta_abs, warmup)
    return changed(batch, large, lambda x: present(x, eps) if corrected else NOTHING, eps)


for kind, corrected in (("ll-r", False), ("ll-ct", True)):
    reference(kind, **RELATIVE)(partial(relative, corrected=corrected))
    reference(f"{kind}-abs", **ABSOLUTE)(partial(absolute, corrected=corrected))
