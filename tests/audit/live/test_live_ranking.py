"""Rankings that learn from decisions: the fit against the formula, what it may see, and the three aims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logit

from labelgap.audit import live as live_heads
from labelgap.audit.candidates import CandidateList
from labelgap.audit.live import Aim, Decisions, FeatureScale, LiveRanking, fit_decisions, rank_open
from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN

CLASSES, WIDTH, IMAGES = 3, 6, 80
RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(2.0, 1.5, size=(IMAGES, WIDTH)).astype(np.float16)
SCALE = FeatureScale.of(FEATURES)
DIRECTION = RANDOM.normal(size=(CLASSES, WIDTH))
TRUTH = (FEATURES - FEATURES.mean(axis=0)) @ DIRECTION.T > 1
POOL = CandidateList.of_unknown(
    np.repeat(np.arange(IMAGES), CLASSES),
    np.tile(np.arange(CLASSES, dtype=np.int32), IMAGES),
    expit(RANDOM.normal(0, 1, size=IMAGES * CLASSES)).astype(np.float32),
)
"""All labels, with scores that know nothing."""


def decide(positions: np.ndarray, values: np.ndarray | None = None) -> Decisions:
    chosen = POOL.select(np.asarray(positions))
    answers = np.where(TRUTH[chosen.rows, chosen.columns], PRESENT, ABSENT) if values is None else values
    return Decisions(chosen, answers.astype(np.int8))


def rank(decisions: Decisions, aim: Aim = "missing", limit: int | None = None) -> LiveRanking:
    return rank_open(SCALE, POOL, decisions, CLASSES, aim, limit=limit)


def places(ranking: LiveRanking) -> list[int]:
    return [int(place) for place in ranking.candidates.rows * CLASSES + ranking.candidates.columns]


FIRST = decide(RANDOM.permutation(len(POOL))[:120])


def test_features_are_centered_and_have_only_directions_in_which_images_differ() -> None:
    scaled = SCALE.rows(np.arange(IMAGES)).astype(np.float64)
    assert np.abs(scaled.mean(axis=0)).max() < 1e-3
    assert (scaled**2).sum(axis=1).mean() == pytest.approx(1, abs=1e-3)
    assert FeatureScale.of(np.ones((4, 2))).rows(np.array([1])).tolist() == [[0, 0]]
    assert FeatureScale.of(np.ones((4, 2))).directions.shape == (2, 0)
    assert FeatureScale.of(FEATURES[:4]).directions.shape == (WIDTH, 3)
    equal = FeatureScale.of(np.ones((IMAGES, WIDTH), dtype=np.float32))
    assert len(rank_open(equal, POOL, FIRST, CLASSES).candidates) == 120


def test_the_fit_is_the_minimum_of_the_formula() -> None:
    """The gradient of the documented loss, written again with loops, vanishes at the fitted parameters."""
    chosen, present = FIRST.candidates, FIRST.values == PRESENT
    audited = logit(chosen.scores.astype(np.float64))
    fitted = fit_decisions(SCALE, chosen.rows, chosen.columns, audited, present, CLASSES)
    inputs = SCALE.rows(chosen.rows).astype(np.float64)
    by_weight, by_class = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
    by_slope = 0.0
    for x, k, z, is_present in zip(inputs, chosen.columns, audited, present, strict=True):
        residual = expit(fitted.slope * z + fitted.offset[k] + x @ fitted.weight[k]) - is_present
        by_weight[k] += residual * x
        by_class[k] += residual
        by_slope += residual * z
    tolerance = 0.02
    free = fitted.weight @ np.linalg.pinv(SCALE.directions).T
    assert np.abs(by_weight @ SCALE.directions + free / live_heads.WEIGHT_SPREAD**2).max() < tolerance
    assert abs(by_slope + (fitted.slope - 1) / live_heads.SLOPE_SPREAD**2) < tolerance
    # b is -σ_b² Σ residuals, and b_k is -σ_k² Σ residuals of the class
    common = -(live_heads.OFFSET_SPREAD**2) * by_class.sum()
    own = -(live_heads.CLASS_SPREAD**2) * by_class
    assert fitted.offset == pytest.approx(common + own, abs=10 * tolerance)


def test_without_decisions_the_order_is_that_of_the_audit() -> None:
    ranking = rank(decide(np.empty(0, dtype=np.int64)))
    assert places(ranking) == np.argsort(-POOL.scores, kind="stable").tolist()
    assert ranking.candidates.scores == pytest.approx(np.sort(POOL.scores)[::-1], abs=1e-6)
    assert ranking.decisions == 0


def test_decisions_move_what_is_open_and_what_was_decided_is_never_asked_again() -> None:
    ranking = rank(FIRST)
    decided = (FIRST.candidates.rows * CLASSES + FIRST.candidates.columns).tolist()
    assert sorted(places(ranking) + decided) == list(range(len(POOL)))
    answers = TRUTH[ranking.candidates.rows, ranking.candidates.columns]
    audited = np.argsort(-np.where(np.isin(np.arange(len(POOL)), decided), -1, POOL.scores), kind="stable")[:20]
    assert answers[:20].sum() > 1.5 * TRUTH.ravel()[audited].sum()
    assert ranking.decisions == len(FIRST) == 120


def test_the_same_decisions_in_any_order_give_the_same_model_and_others_another() -> None:
    shuffled = RANDOM.permutation(len(FIRST))
    again = Decisions(FIRST.candidates.select(shuffled), FIRST.values[shuffled])
    assert rank(FIRST).model == rank(again).model and places(rank(FIRST)) == places(rank(again))
    assert len({rank(FIRST).model, rank(decide(np.arange(7))).model, rank(decide(np.arange(0))).model}) == 3


def test_unsure_decisions_and_observed_labels_teach_nothing_but_are_not_asked_again() -> None:
    unsure = decide(np.arange(30), np.full(30, UNKNOWN))
    observed = decide(np.arange(30))
    observed = replace(observed, candidates=replace(observed.candidates, observed=np.full(30, PRESENT, np.int8)))
    untouched = rank(decide(np.empty(0, dtype=np.int64)))
    for decisions in (unsure, observed):
        ranking = rank(decisions)
        assert ranking.model == untouched.model and ranking.decisions == 0
        assert places(ranking) == [place for place in places(untouched) if place >= 30]


def test_the_random_draw_keeps_its_order_and_has_no_model() -> None:
    ranking = rank(FIRST, "random", limit=15)
    decided = set((FIRST.candidates.rows * CLASSES + FIRST.candidates.columns).tolist())
    assert places(ranking) == [place for place in range(len(POOL)) if place not in decided][:15]
    assert ranking.model == "" and ranking.decisions == 0


def test_for_the_classifier_every_class_has_its_turn_with_uncertain_images_that_differ() -> None:
    features = np.repeat(np.eye(4, WIDTH, dtype=np.float32), [40, 20, 10, 10], axis=0)
    scale = FeatureScale.of(features)
    ranking = rank_open(scale, POOL, decide(np.empty(0, dtype=np.int64)), CLASSES, "classifier", limit=12)
    chosen = ranking.candidates
    assert [sorted(chosen.columns[turn : turn + 3].tolist()) for turn in range(0, 12, 3)] == [[0, 1, 2]] * 4
    assert np.abs(logit(chosen.scores)).max() < 1
    for k in range(CLASSES):
        shown = features[chosen.rows[chosen.columns == k]].argmax(axis=1)
        of_class = POOL.select(np.flatnonzero(POOL.columns == k))
        nearest = np.argsort(np.abs(logit(of_class.scores)))[: 4 * 4]
        available = features[of_class.rows[nearest]].argmax(axis=1)
        assert len(set(shown.tolist())) == len(set(available.tolist()))
    assert len(rank(FIRST, "classifier").candidates) == 120


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(InputError, match="classifier"):
        rank(FIRST, "best")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="limit=0"):
        rank(FIRST, limit=0)
    nothing = CandidateList.of_unknown(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    assert all(len(rank_open(SCALE, nothing, FIRST, CLASSES, aim).candidates) == 0 for aim in ("missing", "classifier"))
