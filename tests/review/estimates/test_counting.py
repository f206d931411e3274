"""Counting random answers: exact where nothing else was decided, and right when answers change the order."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import hypergeom

from labelgap.labels.codes import UNKNOWN
from labelgap.review.estimates import EXACT, ReviewedLabels, count_random


def counted(truth: NDArray[np.bool_], asked: list[tuple[int, bool]]) -> ReviewedLabels:
    """One class: which labels were asked, in order, and whether as random ones."""
    decided, random = np.zeros((2, len(truth)), dtype=np.bool_)
    order = np.zeros(len(truth), dtype=np.int64)
    for turn, (row, is_random) in enumerate(asked):
        decided[row], random[row], order[row] = True, is_random, turn
    value = np.where(decided, truth, UNKNOWN).astype(np.int8)
    column, scores = np.zeros(len(truth), dtype=np.int64), np.full(len(truth), np.nan)
    return ReviewedLabels(column, scores, decided, value, random, order, np.array([len(truth)]))


def reference(total: int, drawn: int, present: int) -> tuple[int, int]:
    """How many of the labels that were not drawn may be present: both hypergeometric tails are 2.5 % or more."""
    possible = [
        whole - present
        for whole in range(present, total - drawn + present + 1)
        if min(hypergeom.cdf(present, total, whole, drawn), hypergeom.sf(present - 1, total, whole, drawn)) >= 0.025
    ]
    return min(possible), max(possible)


@pytest.mark.parametrize(
    ("total", "drawn", "present"), [(30, 10, 0), (30, 29, 3), (50, 20, 20), (400, 40, 7), (90, 1, 1)]
)
def test_without_ranked_answers_the_interval_is_the_hypergeometric_one(total: int, drawn: int, present: int) -> None:
    asked = np.random.default_rng(0).permutation(drawn).tolist()
    made = count_random(counted(np.arange(total) < present, [(row, True) for row in asked]), 0)
    assert (made.low, made.high) == reference(total, drawn, present)
    assert made.low <= made.estimate <= made.high
    assert made.estimate == pytest.approx((total - drawn) * present / drawn, abs=1e-5)


def test_many_answers_give_nearly_the_exact_interval() -> None:
    drawn, present, total = 6 * EXACT, 30, 3000
    made = count_random(counted(np.arange(total) < present, [(row, True) for row in range(drawn)]), 0)
    low, high = reference(total, drawn, present)
    assert made.low == pytest.approx(low, rel=0.05) and made.high == pytest.approx(high, rel=0.05)


def simulate(random: np.random.Generator, depth: int) -> tuple[ReviewedLabels, int]:
    """An order that learns: after a find it looks at neighbors, which are alike; every fifth is a random one."""
    total = 300
    truth = np.zeros(total, dtype=np.bool_)
    for start in random.integers(total - 12, size=5).tolist():
        truth[start : start + 12] = True
    draw, decided, asked = random.permutation(total).tolist(), np.zeros(total, dtype=np.bool_), list[tuple[int, bool]]()
    near = 0
    for turn in range(depth):
        is_random = turn % 5 == 4
        open_rows = np.flatnonzero(~decided)
        row = (
            next(each for each in draw if not decided[each])
            if is_random
            else int(open_rows[np.abs(open_rows - near).argmin()])
        )
        decided[row] = True
        asked.append((row, is_random))
        near = row if truth[row] else int(random.integers(total))
    return counted(truth, asked), int((truth & ~decided).sum())


@pytest.mark.parametrize("depth", [60, 200])
def test_the_interval_holds_the_truth_when_answers_change_the_order(depth: int) -> None:
    random = np.random.default_rng(0)
    hits, errors = [], []
    for _ in range(150):
        labels, left = simulate(random, depth)
        made = count_random(labels, 0)
        hits.append(made.low <= left <= made.high)
        errors.append(made.estimate - left)
    assert np.mean(hits) >= 0.93
    assert abs(np.mean(errors)) < 3 * np.std(errors) / np.sqrt(len(errors)) + 1


def test_without_random_answers_everything_is_possible() -> None:
    made = count_random(counted(np.arange(10) < 5, [(0, False)]), 0)
    assert (made.low, made.high) == (0, 9)
