"""How many labels are missing: Wilson's interval, the weights of classes, and nothing counted before its turn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.review.sample_run import likely_rows, write_candidates

import labelgap as lg
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, open_review_folder
from labelgap.review.sample_estimate import (
    MIN_SAMPLE,
    describe_estimate,
    estimate_from_sample,
    first_undecided,
    wilson_interval,
)
from labelgap.review.store.events import Decision

Z = 1.959963984540054


def reference(present: int, looked: int) -> tuple[float, float]:
    """The shares that a score test at 5 % does not reject, by bisection."""

    def rejects(share: float) -> bool:
        return abs(present / looked - share) > Z * math.sqrt(share * (1 - share) / looked)

    ends = []
    for outside in (0.0, 1.0):
        inside = present / looked
        for _ in range(200):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if rejects(middle) else (middle, outside)
        ends.append(inside)
    return ends[0], ends[1]


@pytest.mark.parametrize(("present", "looked"), [(0, 10), (1, 10), (5, 10), (10, 10), (2, 300), (150, 300)])
def test_wilsons_interval_is_what_the_score_test_does_not_reject(present: int, looked: int) -> None:
    assert wilson_interval(present, looked) == pytest.approx(reference(present, looked), abs=1e-6)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    unknown = np.array([4000, 1000, 200])
    shares = np.array([0.05, 0.3, 0.6])
    truth = float((unknown * shares).sum())
    hits = 0
    for _ in range(400):
        classes = random.choice(3, size=120, p=unknown / unknown.sum())
        values = (random.random(120) < shares[classes]).astype(int)
        made = estimate_from_sample(classes, values, unknown)
        assert made is not None
        _, low, high = made.missing
        covered = unknown[np.unique(classes)] @ shares[np.unique(classes)]
        hits += low <= (truth if made.classes == 3 else covered) <= high
    assert hits / 400 > 0.93


def test_sampled_in_proportion_it_is_the_plain_interval() -> None:
    made = estimate_from_sample([0] * 30 + [1] * 10, [PRESENT] * 6 + [ABSENT] * 34, [3000, 1000])
    assert made is not None and (made.low, made.high) == pytest.approx(wilson_interval(6, 40))
    assert made.share == pytest.approx(6 / 40) and made.missing[0] == 600


def test_classes_weigh_by_their_unknown_labels_not_by_how_many_were_looked_at() -> None:
    made = estimate_from_sample([0] * 30 + [1] * 70, [PRESENT] * 30 + [ABSENT] * 70, [1000, 1000])
    assert made is not None and made.share == pytest.approx(0.5)
    plain = wilson_interval(50, 100)
    assert made.low < plain[0] and made.high > plain[1], "an uneven sample knows less"


def test_a_class_that_was_hardly_looked_at_does_not_spoil_the_rest() -> None:
    classes, values = [0] * 40 + [1], [PRESENT] * 4 + [ABSENT] * 36 + [PRESENT]
    made = estimate_from_sample(classes, values, [1000, 1000])
    assert made is not None and (made.classes, made.reviewed) == (1, 40) and made.share == pytest.approx(0.1)
    both = estimate_from_sample([0] * 40 + [1] * 20, [ABSENT] * 60, [1000, 1000])
    many = estimate_from_sample(np.arange(50), [ABSENT] * 50, [1000] * 50)
    assert both is not None and many is not None and (both.classes, many.classes) == (2, 50)


def test_a_class_that_nobody_looked_at_is_not_spoken_of_and_doubt_is_left_out() -> None:
    made = estimate_from_sample([0, 0, 0, 0], [PRESENT, ABSENT, UNKNOWN, ABSENT], [100, 9000])
    assert made is not None
    assert (made.classes, made.unknown, made.reviewed, made.present, made.unsure) == (1, 100, 3, 1, 1)
    assert estimate_from_sample([], [], [100]) is None and estimate_from_sample([0], [UNKNOWN], [100]) is None


def test_a_list_is_decided_as_far_as_its_first_gap() -> None:
    gaps = first_undecided([0, 0, 1, 1], [5, 2, 1, 3], [False, True, True, True], 3)
    assert gaps.tolist() == [5, np.iinfo(np.int64).max, np.iinfo(np.int64).max]


def decide(review: Review, numbers: list[int], truth: lg.LabelTable) -> None:
    table = truth.to_dense()
    rows = {name: row for row, name in enumerate(truth.images)}
    made = []
    for number in numbers:
        entry = review.candidates.key(number)
        value = int(table[rows[entry.image], truth.classes.index(entry.class_name)])
        made.append(Decision(entry, value, f"request-{number:06d}"))
    review.store.append(made, reviewer="anna", client="window-1")


def test_a_random_label_that_is_ranked_too_counts_only_when_its_turn_has_come(tmp_path: Path, folder: Path) -> None:
    data = lg.load("digits", train=96, val=40, test=40)
    write_candidates(folder / "candidates.parquet", likely_rows(data, share=0.9, sample=0.3), data)
    review = Review(open_review_folder(folder))
    truth = data.train.truth
    assert truth is not None
    shown, sampled = review.candidates.positions
    listed = review.candidates.listed(3)
    assert (np.diff(shown[listed]) >= 0).all()
    decide(review, listed[:20].tolist(), truth)
    made = review.estimate(3)
    expected = sampled[listed] < shown[listed[20]]
    assert made is not None and made.reviewed == expected.sum() >= 2
    early = (sampled[listed[:20]] < np.iinfo(np.int64).max) & (sampled[listed[:20]] >= shown[listed[20]])
    assert early.any(), "this seed has random labels that were decided before their turn"
    review.close()


def test_a_whole_review_finds_about_as_many_as_there_are(folder: Path) -> None:
    data = lg.load("digits", train=96, val=40, test=40)
    write_candidates(folder / "candidates.parquet", likely_rows(data, share=0.8, sample=0.5), data)
    review = Review(open_review_folder(folder))
    truth = data.train.truth
    assert truth is not None
    for number in range(10):
        decide(review, review.candidates.listed(number).tolist(), truth)
    made = review.estimate()
    missing = int((truth.to_dense() == PRESENT).sum() - (data.train.labels.values == PRESENT).sum())
    assert made is not None and made.classes == 10 and made.reviewed > 200
    assert made.missing[1] <= missing <= made.missing[2]
    assert f"About {made.missing[0]:,} labels of 10 classes are missing" in describe_estimate(made)
    review.close()


def test_too_few_random_labels_give_no_number() -> None:
    made = estimate_from_sample([0] * (MIN_SAMPLE - 1), [PRESENT] * (MIN_SAMPLE - 1), [1000])
    for few in (None, made):
        assert "missing (95 %" not in describe_estimate(few) and f"needs {MIN_SAMPLE} reviewed" in describe_estimate(
            few
        )
