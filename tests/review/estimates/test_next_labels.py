"""What the next candidates are expected to hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labelgap.labels.codes import UNKNOWN
from labelgap.review.estimates import (
    ExpectedPresent,
    ReviewedLabels,
    ReviewEstimate,
    describe_next,
    estimate_review,
    expect_next,
)


def reviewed(scores: np.ndarray, depth: int, truth: np.ndarray) -> ReviewEstimate:
    """One class in the order of its scores, so many decided, every tenth as a random one."""
    decided = np.argsort(np.argsort(-scores)) < depth
    random = decided & (np.arange(len(scores)) % 10 == 9)
    value = np.where(decided, truth, UNKNOWN).astype(np.int8)
    column = np.zeros(len(scores), dtype=np.int64)
    order, unknown = np.argsort(np.argsort(-scores)), np.array([len(scores)])
    return estimate_review(
        ReviewedLabels(column, scores, decided, value, random, order, unknown, np.array([scores.sum()]))
    )


def test_the_interval_holds_what_the_next_fifty_bring_in_95_of_100() -> None:
    random = np.random.default_rng(0)
    hits = []
    for _ in range(60):
        odds = random.normal(-2, 2, size=600)
        truth = random.random(600) < 1 / (1 + np.exp(-odds - random.normal(0, 0.5)))
        made = reviewed(1 / (1 + np.exp(-odds)), 100, truth)
        following = np.argsort(-odds)[100:150]
        expected = expect_next(made, following)
        assert expected is not None and expected.low <= expected.present <= expected.high
        hits.append(expected.low <= truth[following].sum() <= expected.high)
    assert np.mean(hits) >= 0.93


def test_probabilities_of_a_live_ranking_take_the_place_of_the_estimates() -> None:
    made = reviewed(np.linspace(0.9, 0.01, 200), 50, np.arange(200) < 40)
    expected = expect_next(made, np.arange(50, 100), np.full(50, 0.5))
    assert expected is not None and expected.present == 25 and 5 <= expected.low < 20 and 30 < expected.high <= 45


def test_there_is_nothing_to_expect_without_a_model_or_candidates() -> None:
    made = reviewed(np.linspace(0.9, 0.01, 200), 50, np.arange(200) < 40)
    assert expect_next(made, np.arange(0)) == ExpectedPresent(0, 0.0, 0, 0)
    assert expect_next(replace(made, probability=np.full(200, np.nan)), np.arange(60, 70)) is None
    assert describe_next(None) == describe_next(ExpectedPresent(0, 0.0, 0, 0)) == ""


@pytest.mark.parametrize(("present", "told"), [(12.4, "about 12."), (0.4, "less than 1."), (0.01, "none.")])
def test_a_number_below_one_is_said_in_words(present: float, told: str) -> None:
    assert describe_next(ExpectedPresent(50, present, 0, 20)) == f"The next 50 are expected to hold {told}"
