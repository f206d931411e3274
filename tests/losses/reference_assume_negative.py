"""References of Cole et al. 2021: the equations, one entry at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.losses.reference import NOTHING, Answer, Batch, Cost, absent, entry_by_entry, present, reference, sigma

from labelgap.labels import ABSENT, PRESENT, UNKNOWN

EPS = {"eps": [0.0, 1e-5, 0.01]}


def one_number(name: str, value: float, heads: list[float]) -> dict[str, Any]:
    """How a method with one number option, which may be 0, wants to be tried."""
    options = [{}, {name: value, "eps": 1e-5}, {name: 0.0}]
    return {"options": options, "heads": {name: heads, **EPS}}


SMOOTHING = one_number("smoothing", 0.3, [0.0, 0.1, 0.25])


def pairs(batch: Batch) -> list[list[tuple[float, int]]]:
    """Every entry as (logit, label)."""
    return [list(zip(xs, ys, strict=True)) for xs, ys in zip(batch.logits.tolist(), batch.labels.tolist(), strict=True)]


def by_state(
    batch: Batch,
    of_present: Callable[[float], Cost],
    of_absent: Callable[[float], Cost],
    of_unknown: Callable[[float], Cost],
) -> Answer:
    """The answer of a method whose entry costs what its logit costs in the state of its label."""
    costs = {PRESENT: of_present, ABSENT: of_absent, UNKNOWN: of_unknown}
    return entry_by_entry([[costs[y](x) for x, y in row] for row in pairs(batch)])


def nothing(x: float) -> Cost:
    return NOTHING


def known_cost(x: float, y: int, eps: float) -> Cost:
    if y == PRESENT:
        return present(x, eps)
    return absent(x, eps) if y == ABSENT else NOTHING


def known_as_bce(batch: Batch, eps: float, of_unknown: Callable[[float], Cost]) -> Answer:
    """Binary cross-entropy of known labels, and something else for unknown ones."""
    return by_state(batch, lambda x: present(x, eps), lambda x: absent(x, eps), of_unknown)


@reference("iu", "iun", "bce", options=[{}, {"eps": 1e-5}], heads=EPS)
def ignore_unknown(batch: Batch, *, eps: float = 0.0) -> Answer:
    return known_as_bce(batch, eps, nothing)


def smoothed(x: float, target: float, eps: float) -> Cost:
    return present(x, eps).times(target).plus(absent(x, eps).times(1 - target))


@reference("bce-ls", **SMOOTHING)
def smoothed_known(batch: Batch, *, smoothing: float = 0.1, eps: float = 0.0) -> Answer:
    of_present, of_absent = (lambda x, t=t: smoothed(x, t, eps) for t in (1 - smoothing, smoothing))
    return by_state(batch, of_present, of_absent, nothing)


@reference("an", options=[{}, {"eps": 1e-5}], heads=EPS)
@reference("l1r", "l2r", **one_number("weight", 1e-3, [0.0, 1e-7, 1e-3]))
def assume_negative(batch: Batch, *, weight: float = 1e-6, eps: float = 0.0) -> Answer:
    """A penalty of some weight looks at the network, not at the batch: it is tested by itself."""
    return known_as_bce(batch, eps, lambda x: absent(x, eps))


@reference("an-ls", "ls", **SMOOTHING)
def smoothed_assume_negative(batch: Batch, *, smoothing: float = 0.1, eps: float = 0.0) -> Answer:
    of_present, of_others = (lambda x, t=t: smoothed(x, t, eps) for t in (1 - smoothing, smoothing))
    return by_state(batch, of_present, of_others, of_others)


@reference("wan", **one_number("weight", 0.3, [0.0, 0.5, 2.0]))
def weak_assume_negative(batch: Batch, *, weight: float | None = None, eps: float = 0.0) -> Answer:
    chosen = 1 / max(batch.logits.shape[1] - 1, 1) if weight is None else weight
    return known_as_bce(batch, eps, lambda x: absent(x, eps).times(chosen))


@reference("pr", options=[{}, {"unknown": "ignore"}])
def pairwise_ranking(batch: Batch, *, unknown: str = "negative") -> Answer:
    entries, slopes = np.zeros(batch.logits.shape), np.zeros(batch.logits.shape)
    for b, row in enumerate(pairs(batch)):
        bending = [sigma(x) * sigma(-x) for x, _ in row]
        negatives = [j for j, (_, y) in enumerate(row) if y == ABSENT or (y == UNKNOWN and unknown == "negative")]
        for i in [i for i, (_, y) in enumerate(row) if y == PRESENT]:
            for j in negatives:
                hinge = sigma(-row[i][0]) + sigma(row[j][0])
                entries[b, i] += max(0.0, hinge)
                slopes[b, i] -= bending[i] if hinge > 0 else 0.0
                slopes[b, j] += bending[j] if hinge > 0 else 0.0
    return Answer(float(entries.mean()), slopes / slopes.size, entries)


@reference(
    "epr",
    options=[{"expected_positives": 0.9}, {"expected_positives": 0.7, "eps": 1e-5}],
    heads={"expected_positives": [0.5, 1.0, 3.0], **EPS},
)
def expected_positives_of_the_batch(batch: Batch, *, expected_positives: float, eps: float = 0.0) -> Answer:
    rows, classes = batch.logits.shape
    known = ignore_unknown(batch, eps=eps)
    assert known.entries is not None
    excess = sum(sigma(x) for row in batch.logits.tolist() for x in row) / rows - expected_positives
    bending = [[sigma(x) * sigma(-x) for x in row] for row in batch.logits.tolist()]
    regulariser = excess**2 / classes**2
    gradient = known.gradient + 2 * excess / classes**2 * np.array(bending) / rows
    return Answer(known.loss + regulariser, gradient, known.entries + regulariser)
