"""References of Cole et al. 2021: the equations, one entry at a time."""

from __future__ import annotations

import numpy as np
from tests.losses.reference import NOTHING, Answer, Batch, Cost, absent, entry_by_entry, present, reference, sigma

from labelgap.labels import ABSENT, PRESENT, UNKNOWN

EPS = {"eps": [0.0, 1e-5, 0.01]}


def pairs(batch: Batch) -> list[list[tuple[float, int]]]:
    """Every entry as (logit, label)."""
    return [list(zip(xs, ys, strict=True)) for xs, ys in zip(batch.logits.tolist(), batch.labels.tolist(), strict=True)]


def known_cost(x: float, y: int, eps: float) -> Cost:
    if y == PRESENT:
        return present(x, eps)
    return absent(x, eps) if y == ABSENT else NOTHING


@reference("iu", "iun", "bce", options=[{}, {"eps": 1e-5}], heads=EPS, known_as_bce=True)
def ignore_unknown(batch: Batch, *, eps: float = 0.0) -> Answer:
    return entry_by_entry([[known_cost(x, y, eps) for x, y in row] for row in pairs(batch)])


def smoothed(x: float, target: float, eps: float) -> Cost:
    return present(x, eps).times(target).plus(absent(x, eps).times(1 - target))


@reference(
    "bce-ls",
    options=[{}, {"smoothing": 0.3, "eps": 1e-5}, {"smoothing": 0.0}],
    heads={"smoothing": [0.0, 0.1, 0.25], **EPS},
)
def smoothed_known(batch: Batch, *, smoothing: float = 0.1, eps: float = 0.0) -> Answer:
    target = {PRESENT: 1 - smoothing, ABSENT: smoothing}
    return entry_by_entry(
        [[NOTHING if y == UNKNOWN else smoothed(x, target[y], eps) for x, y in row] for row in pairs(batch)]
    )


@reference("an", options=[{}, {"eps": 1e-5}], heads=EPS, known_as_bce=True)
def assume_negative(batch: Batch, *, eps: float = 0.0) -> Answer:
    return entry_by_entry(
        [[present(x, eps) if y == PRESENT else absent(x, eps) for x, y in row] for row in pairs(batch)]
    )


@reference(
    "an-ls",
    options=[{}, {"smoothing": 0.3, "eps": 1e-5}, {"smoothing": 0.0}],
    heads={"smoothing": [0.0, 0.1, 0.25], **EPS},
)
def smoothed_assume_negative(batch: Batch, *, smoothing: float = 0.1, eps: float = 0.0) -> Answer:
    return entry_by_entry(
        [[smoothed(x, 1 - smoothing if y == PRESENT else smoothing, eps) for x, y in row] for row in pairs(batch)]
    )


@reference(
    "wan",
    options=[{}, {"weight": 0.3, "eps": 1e-5}, {"weight": 0.0}],
    heads={"weight": [0.0, 0.5, 2.0], **EPS},
    known_as_bce=True,
)
def weak_assume_negative(batch: Batch, *, weight: float | None = None, eps: float = 0.0) -> Answer:
    classes = batch.logits.shape[1]
    chosen = 1 / max(classes - 1, 1) if weight is None else weight
    return entry_by_entry(
        [
            [absent(x, eps).times(chosen) if y == UNKNOWN else known_cost(x, y, eps) for x, y in row]
            for row in pairs(batch)
        ]
    )


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
