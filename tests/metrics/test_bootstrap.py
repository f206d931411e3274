from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.metrics.test_average_precision import reference_of_one

from labelgap.core.errors import InputError
from labelgap.metrics import bootstrap
from labelgap.metrics.bootstrap import average_precision_intervals, bootstrap_intervals

Matrix = NDArray[np.float64]
Batch = tuple[Matrix, NDArray[np.int8], NDArray[np.bool_]]


def precision_of(scores: Sequence[float], codes: Sequence[int]) -> float | None:
    """Average precision of one ranking; None without a present or without an absent entry."""
    return reference_of_one([*scores], [*codes]) if {0, 1} <= {*codes} else None


def measures(scores: Matrix, codes: NDArray[np.int8], decisions: NDArray[np.bool_]) -> list[float | None]:
    """AP of each class, their mean, the mean over images, F1 micro and macro."""
    classes = range(codes.shape[1])
    each = [precision_of(scores[:, k].tolist(), codes[:, k].tolist()) for k in classes]
    images = [precision_of(scores[i].tolist(), codes[i].tolist()) for i in range(len(codes))]
    counts = [[0, 0, 0] for _ in classes]
    for i in range(len(codes)):
        for k in classes:
            counts[k][0] += decisions[i, k] and codes[i, k] == 1
            counts[k][1] += decisions[i, k] and codes[i, k] != -1
            counts[k][2] += codes[i, k] == 1
    ratio = [2 * hits / max(predicted + present, 1) for hits, predicted, present in counts]
    hits, predicted, present = (sum(count[place] for count in counts) for place in range(3))
    defined = [value for value in each if value is not None]
    return [
        *each,
        _mean(defined),
        _mean([value for value in images if value is not None]),
        2 * hits / max(predicted + present, 1),
        _mean([value for value, one in zip(ratio, each, strict=True) if one is not None]),
    ]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def reference(batch: Batch, resamples: int, seed: int) -> list[bootstrap.Interval]:
    """Draw images with replacement, measure, and lay 1.96 standard deviations around the measure, as logits."""
    scores, codes, decisions = batch
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        rows = random.integers(0, len(codes), len(codes))
        drawn.append(measures(scores[rows], codes[rows], decisions[rows]))
    found = []
    for place, middle in enumerate(measures(scores, codes, decisions)):
        assert middle is not None
        spread = statistics.stdev(value for row in drawn if (value := row[place]) is not None)
        center, reach = math.log(middle / (1 - middle)), 1.959963984540054 * spread / (middle * (1 - middle))
        found.append((1 / (1 + math.exp(reach - center)), 1 / (1 + math.exp(-reach - center))))
    return found


@pytest.fixture
def batch() -> Batch:
    """Forty images of three classes, with ties and with unknown labels."""
    random = np.random.default_rng(3)
    codes = (random.random((40, 3)) < 0.4).astype(np.int8)
    scores = np.round(random.normal(size=codes.shape) + codes, 1)
    codes[random.random(codes.shape) < 0.2] = -1
    return scores, codes, scores > 0.5


def test_every_interval_is_that_of_the_loop(batch: Batch) -> None:
    found = bootstrap_intervals(*batch, resamples=30, seed=5)
    expected = reference(batch, resamples=30, seed=5)
    mine = [*found.average_precision, found.map, found.map_samples, found.f1_micro, found.f1_macro]
    assert None not in mine
    np.testing.assert_allclose(np.array(mine, dtype=np.float64), np.array(expected), atol=1e-6)


def test_pieces_are_the_same(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bootstrap_intervals(*batch, resamples=50)
    monkeypatch.setattr(bootstrap, "_MAX_DRAWN", 7 * 40)
    in_pieces = bootstrap_intervals(*batch, resamples=50)
    assert in_pieces.map == pytest.approx(whole.map) and in_pieces.f1_macro == pytest.approx(whole.f1_macro)
    monkeypatch.setattr(bootstrap, "_MAX_WORK", 1)
    assert bootstrap_intervals(*batch).resamples == 100, "much work is bounded"


def test_too_few_labels_have_no_interval() -> None:
    scores = np.arange(40.0).reshape(20, 2) % 7
    codes = np.full((20, 2), -1, dtype=np.int8)
    codes[:4], codes[4:, 0] = 1, 0
    found = bootstrap_intervals(scores, codes, scores > 3)
    assert found.average_precision == (None, None)
    assert found.map is None and found.f1_macro is None and found.f1_micro is None
    perfect = np.repeat([[1], [0]], 10, axis=0)
    assert bootstrap_intervals(perfect.astype(float), perfect).average_precision == (None,), "nothing varies"
    for count in (0, 5):
        nothing = bootstrap_intervals(np.zeros((count, 2)), np.full((count, 2), -1), np.zeros((count, 2), dtype=bool))
        assert nothing.map is None and nothing.map_samples is None


@pytest.mark.parametrize(("resamples", "level"), [(1, 0.95), (100, 0.0), (100, 1.0)])
def test_what_cannot_be_is_refused(resamples: int, level: float) -> None:
    with pytest.raises(InputError, match="resamples"):
        bootstrap_intervals([[0.5]], [[1]], resamples=resamples, level=level)


def weighted_precision(scores: Matrix, present: NDArray[np.bool_], weights: Matrix) -> float:
    """Average precision by its definition when an image counts as often as its weight says."""
    ratios = [weights[present & (scores >= score)].sum() / weights[scores >= score].sum() for score in scores[present]]
    return float(weights[present] @ np.array(ratios) / weights[present].sum())


def test_intervals_without_resampling_come_from_the_derivatives_by_the_weights_of_images() -> None:
    random = np.random.default_rng(3)
    codes = random.choice([-1, 0, 0, 0, 1], (60, 5)).astype(np.int8)
    codes[:, 3], codes[:, 4] = np.where(np.arange(60) < 4, 1, 0), 0  # four presents are too few, none has nothing
    scores = (random.normal(size=codes.shape) + 1.5 * (codes == 1)).round(0)
    scores[:, 2] = np.where(codes[:, 2] == 1, 9.0, scores[:, 2])  # a perfect ranking does not vary
    found = average_precision_intervals(scores, codes)
    assert np.isnan(found[2:]).all()
    for column in (0, 1):
        known = codes[:, column] != -1
        values, present = scores[known, column], codes[known, column] == 1
        ones, slopes = np.ones(len(values)), []
        for image in np.eye(len(values)) * 1e-5:
            ends = [weighted_precision(values, present, ones + sign * image) for sign in (1, -1)]
            slopes.append((ends[0] - ends[1]) / 2e-5)
        middle = weighted_precision(values, present, ones)
        reach = 1.959964 * math.sqrt(sum(slope**2 for slope in slopes)) / (middle * (1 - middle))
        logit = math.log(middle / (1 - middle))
        expected = [1 / (1 + math.exp(-(logit + sign * reach))) for sign in (-1, 1)]
        assert found[column] == pytest.approx(expected, abs=1e-5)
