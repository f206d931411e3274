"""How many labels are missing: counted, estimated with scores or without, in intervals that hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review.estimates import (
    ReviewedLabels,
    ReviewEstimate,
    SampleEstimate,
    count_random,
    describe_estimate,
    estimate_review,
)


def sampled(
    classes: list[int] | NDArray[np.int64], values: list[int] | NDArray[np.int64], unknown: list[int]
) -> ReviewEstimate:
    """The estimate without a model when only random labels were decided."""
    group, value = np.asarray(classes, dtype=np.int64), np.asarray(values, dtype=np.int8)
    every = np.ones(len(group), dtype=np.bool_)
    order, scores = np.arange(len(group)), np.full(len(group), np.nan)
    return estimate_review(ReviewedLabels(group, scores, every, value, every, order, np.array(unknown)))


def total_of(estimate: ReviewEstimate) -> SampleEstimate:
    assert estimate.total is not None
    return estimate.total


class Simulation:
    """Four classes with scores that are wrong by a factor of their odds, in all and for each class."""

    def __init__(self, random: np.random.Generator, wrong: float = 0.4) -> None:
        self.unknown = np.array([700, 500, 300, 200])
        self.column = np.repeat(np.arange(4), self.unknown)
        odds = random.normal(-4, 2, size=len(self.column))
        self.score = 1 / (1 + np.exp(-odds))
        shift = wrong * (random.normal() + random.normal(size=4))
        self.truth = random.random(len(odds)) < 1 / (1 + np.exp(-odds - shift[self.column]))
        self.random = random

    def review(
        self, depths: list[int], *, model: bool = True, learns: bool = False
    ) -> tuple[ReviewEstimate, ReviewedLabels]:
        """Decide so many labels of each class, every tenth a random one; return what is decided, too.

        Without a model the others are the first of the table; an order that learns knows something of the truth.
        """
        decided, asked = np.zeros((2, len(self.column)), dtype=np.bool_)
        order = np.zeros(len(self.column), dtype=np.int64)
        key = (
            np.log(self.score / (1 - self.score)) + learns * (self.truth + self.random.normal(size=len(self.truth))) / 2
        )
        for number, depth in enumerate(depths):
            mine = np.flatnonzero(self.column == number)
            lists = [mine[np.argsort(-key[mine])] if model else mine, self.random.permutation(mine)]
            for turn in range(min(depth, len(mine))):
                is_random = turn % 10 == 9 or (not model and turn % 2 == 0)
                chosen = lists[is_random][~decided[lists[is_random]]][0]
                decided[chosen], asked[chosen], order[chosen] = True, is_random, turn
        value = np.where(decided, self.truth, UNKNOWN).astype(np.int8)
        score = self.score if model else np.full(len(self.score), np.nan)
        expected = np.bincount(self.column, weights=self.score).astype(np.float64) if model else None
        labels = ReviewedLabels(self.column, score, decided, value, asked, order, self.unknown, expected)
        return estimate_review(labels), labels


@pytest.mark.parametrize(
    ("order", "depths"), [("fixed", [45, 45, 45, 45]), ("learns", [150, 90, 30, 0]), ("no model", [150, 90, 30, 0])]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(depths: list[int], order: str) -> None:
    random, model = np.random.default_rng(0), order != "no model"
    hits, widths = [], []
    for _ in range(50):
        simulation = Simulation(random)
        made, labels = simulation.review(depths, model=model, learns=order == "learns")
        total = total_of(made)
        inside = np.array([each is not None for each in made.by_class])[simulation.column]
        left = int((simulation.truth & ~labels.decided & inside).sum())
        assert total.found == int((simulation.truth & labels.decided & inside).sum())
        assert total.low <= total.still_missing <= total.high <= total.undecided
        assert total.still_missing == sum(each.still_missing for each in made.by_class if each)
        hits.append(total.low <= left <= total.high)
        counted = [count_random(labels, number) for number, each in enumerate(made.by_class) if each]
        widths.append((total.high - total.low) / np.sqrt(sum((each.high - each.low) ** 2 for each in counted)))
    assert np.mean(hits) >= 0.93
    assert np.median(widths) < (0.5 if model else 1.0), "scores narrow it; classes without scores help each other"


def test_before_a_review_it_is_the_estimate_of_the_audit() -> None:
    simulation = Simulation(np.random.default_rng(0))
    made, _ = simulation.review([0, 0, 0, 0])
    total = total_of(made)
    assert total.missing[0] == round(float(simulation.score.sum())) and not total.has_interval
    expected = np.bincount(simulation.column, weights=simulation.score)
    assert [each.still_missing for each in made.by_class if each] == pytest.approx(expected, abs=1)
    assert made.probability == pytest.approx(simulation.score, rel=0.06)


def test_ranked_answers_move_the_probabilities_of_their_class_and_a_little_the_others() -> None:
    simulation = Simulation(np.random.default_rng(0))
    simulation.truth[:] = False
    made, labels = simulation.review([100, 0, 0, 0])
    likely = ~labels.decided & (simulation.score > 0.1)
    shares = [
        made.probability[likely & (simulation.column == number)].sum()
        / simulation.score[likely & (simulation.column == number)].sum()
        for number in range(2)
    ]
    assert shares[0] < 0.35 and shares[0] + 0.2 < shares[1] < 1


def test_a_class_that_was_hardly_looked_at_does_not_spoil_the_rest() -> None:
    classes, values = [0] * 40 + [1], [PRESENT] * 4 + [ABSENT] * 36 + [PRESENT]
    made = total_of(sampled(classes, values, [1000, 1000]))
    assert (made.classes, made.reviewed) == (1, 40) and made.still_missing == pytest.approx(96, abs=2)
    both = total_of(sampled([0] * 40 + [1] * 20, [ABSENT] * 60, [1000, 1000]))
    many = total_of(sampled(np.arange(50), [ABSENT] * 50, [1000] * 50))
    assert (both.classes, many.classes) == (2, 50)
    some = total_of(sampled([0, 0, 0, 0], [PRESENT, ABSENT, UNKNOWN, ABSENT], [100, 9000]))
    assert (some.classes, some.undecided, some.reviewed, some.present, some.unsure) == (1, 96, 3, 1, 1)
    assert not some.has_interval and sampled([0], [UNKNOWN], [100]).total is None


def test_as_many_more_random_answers_as_it_says_halve_the_interval() -> None:
    made = total_of(sampled([0] * 20, [PRESENT] * 2 + [ABSENT] * 18, [5000]))
    assert f"About {made.halving:,} more random answers would halve" in describe_estimate(made)
    answers = 20 + made.halving
    more = total_of(sampled([0] * answers, [PRESENT] * (answers // 10) + [ABSENT] * (answers - answers // 10), [5000]))
    assert 0.35 < (more.high - more.low) / (made.high - made.low) < 0.65


def one_class(score: NDArray[np.float64], answers: list[tuple[int, int, bool]]) -> ReviewEstimate:
    """Labels of one class: which were answered, in order, with what, and whether as random ones."""
    decided, random = np.zeros((2, len(score)), dtype=np.bool_)
    value, order = np.full(len(score), UNKNOWN, dtype=np.int8), np.zeros(len(score), dtype=np.int64)
    for turn, (row, answer, is_random) in enumerate(answers):
        decided[row], value[row], random[row], order[row] = True, answer, is_random, turn
    column, unknown = np.zeros(len(score), dtype=np.int64), np.array([len(score)])
    return estimate_review(
        ReviewedLabels(column, score, decided, value, random, order, unknown, np.array([score.sum()]))
    )


def test_an_early_random_answer_says_little_of_what_is_left_once_the_labels_like_it_are_decided() -> None:
    score = np.concatenate([np.full(200, 0.6), np.linspace(0.01, 0.05, 400)])
    ranked, drawn = ([(row, ABSENT, False) for row in range(12, 200)], [(row, ABSENT, True) for row in range(12)])
    early, late = total_of(one_class(score, drawn + ranked)), total_of(one_class(score, ranked + drawn))
    assert (
        early.still_missing == pytest.approx(score[200:].sum(), rel=0.3)
        and late.still_missing < early.still_missing / 2
    )
    alike = total_of(one_class(score, [(row, ABSENT, True) for row in range(400, 520)]))
    assert alike.still_missing < 0.8 * (score[:400].sum() + score[520:].sum())


def test_a_random_answer_is_about_the_labels_that_were_open_when_it_was_drawn() -> None:
    """Half of what the scores promise is there; ranked answers find it, before or after the random ones."""
    score = np.full(600, 0.2) + np.linspace(0, 1e-3, 600)
    finds, random = [(row, PRESENT, False) for row in range(60)], [(row, ABSENT, True) for row in range(100, 160)]
    drawn = [(*each[:1], PRESENT if number % 10 == 0 else ABSENT, True) for number, each in enumerate(random)]
    before, after = total_of(one_class(score, drawn + finds)), total_of(one_class(score, finds + drawn))
    assert before.still_missing < 0.5 * after.still_missing, (
        "those that were drawn before the finds could have been them"
    )


def test_where_counting_is_narrower_its_interval_is_used() -> None:
    score = np.linspace(0.2, 0.6, 200)
    made = one_class(score, [(row, ABSENT, True) for row in range(0, 200, 4)]).by_class[0]
    assert made is not None and made.counted and made.low <= made.still_missing <= made.high
    assert "counted from 50 random" in describe_estimate(made, "dog")
