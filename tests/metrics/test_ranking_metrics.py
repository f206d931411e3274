"""Measures of an order of candidates, against counting by hand and against average precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelgap.core.errors import InputError
from labelgap.metrics import average_precision
from labelgap.metrics.average_precision import ranked_average_precision
from labelgap.metrics.bootstrap import paired_bootstrap
from labelgap.metrics.ranking import precision_at_k, recall_at_k

HITS = st.lists(st.booleans(), min_size=1, max_size=30)


@given(HITS, st.integers(1, 40))
def test_measures_are_what_counting_says(hits: list[bool], count: int) -> None:
    first = hits[:count]
    assert precision_at_k(hits, count) == pytest.approx(sum(first) / len(first))
    if any(hits):
        assert recall_at_k(hits, count) == pytest.approx(sum(first) / sum(hits))
        precisions = [sum(hits[: at + 1]) / (at + 1) for at, hit in enumerate(hits) if hit]
        assert ranked_average_precision(hits) == pytest.approx(sum(precisions) / len(precisions))


@given(HITS, st.integers(0, 9999), st.integers(1, 40))
def test_a_weight_counts_a_candidate_so_often(hits: list[bool], seed: int, count: int) -> None:
    times = np.random.default_rng(seed).integers(0, 4, size=len(hits))
    repeated = np.repeat(hits, times)
    for measure in (precision_at_k, recall_at_k):
        expected, got = measure(repeated, count), measure(hits, count, times)
        assert math.isnan(expected) == math.isnan(got) and (math.isnan(got) or got == pytest.approx(expected))


def test_the_precision_of_an_order_without_ties_is_average_precision() -> None:
    random = np.random.default_rng(0)
    scores, hits = random.normal(size=200), random.random(200) < 0.2
    order = np.argsort(-scores)
    expected = average_precision(scores[:, None], hits[:, None].astype(np.int8))
    assert ranked_average_precision(hits[order]) == pytest.approx(expected)


def test_nothing_to_find_is_not_a_number() -> None:
    assert math.isnan(precision_at_k([], 5)) and math.isnan(recall_at_k([False], 5))
    assert math.isnan(ranked_average_precision([False, False]))
    with pytest.raises(InputError, match="one of each"):
        precision_at_k([True], 1, [1, 2])


def test_the_better_order_is_ahead_the_same_one_is_not_and_the_seed_decides() -> None:
    random = np.random.default_rng(1)
    hits, images = random.random(600) < 0.2, np.repeat(np.arange(150), 4)
    better = np.argsort(-(hits + random.normal(0, 0.6, 600)))
    worse = np.argsort(-(hits + random.normal(0, 3.0, 600)))
    measures = {"AP": ranked_average_precision, "half": lambda h, w: recall_at_k(h, 300, w)}
    found = paired_bootstrap(hits, images, better, worse, measures, draws=200)
    assert found["AP"].significant and found["AP"].low < found["AP"].value < found["AP"].high
    assert not paired_bootstrap(hits, images, worse, better, measures, draws=200)["AP"].significant
    same = paired_bootstrap(hits, images, better, better, measures, draws=20)["AP"]
    assert (same.value, same.low, same.high) == (0, 0, 0) and not same.significant
    assert found == paired_bootstrap(hits, images, better, worse, measures, draws=200)
    with pytest.raises(InputError, match="same candidates"):
        paired_bootstrap(hits, images[:-1], better, worse, measures)
