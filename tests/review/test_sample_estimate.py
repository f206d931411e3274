"""How many labels are missing: Wilson's interval, the weights of classes, and nothing counted before its turn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.review.sample_run import likely_rows, write_candidates

import labelgap as lg
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, open_review_folder
from labelgap.review.sample_estimate import (
    MIN_SAMPLE,
    ClassTally,
    SampleEstimate,
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


def sampled(
    classes: list[int] | NDArray[np.int64], values: list[int] | NDArray[np.int64], unknown: list[int]
) -> SampleEstimate | None:
    """The estimate when only random labels were decided."""
    group, value = np.asarray(classes, dtype=np.int64), np.asarray(values)
    decided = np.bincount(group, minlength=len(unknown))
    found = np.bincount(group[value == PRESENT], minlength=len(unknown))
    unsure = np.bincount(group[value == UNKNOWN], minlength=len(unknown))
    return estimate_from_sample(group, value, ClassTally(np.array(unknown), decided, found, unsure))


def simulate(random: np.random.Generator, depth: float) -> tuple[SampleEstimate, int, int]:
    """A review of four classes to some depth: the estimate, the truth, and how many were found.

    A model ranks the labels; a tenth of what is shown is random. The truth of the undecided is never looked at.
    """
    unknown, shares = np.array([900, 500, 200, 60]), random.uniform(0.02, 0.3, 4)
    group, value, decided, found, truth = [], [], [], [], 0
    for number, (count, share) in enumerate(zip(unknown, shares, strict=True)):
        present = random.random(count) < share
        order = np.argsort(-(random.normal(size=count) + 2.0 * present))  # the ranking
        ranked = order[: int(depth * count)]
        sample = random.permutation(count)[: max(int(depth * count / 9), 15)]
        outside = np.setdiff1d(sample, ranked)
        seen = np.union1d(sample, ranked)
        group += [number] * len(outside)
        value += present[outside].astype(int).tolist()
        decided.append(len(seen))
        found.append(int(present[seen].sum()))
        truth += int(present.sum())
    estimate = estimate_from_sample(
        group, value, ClassTally(unknown, np.array(decided), np.array(found), np.zeros_like(unknown))
    )
    assert estimate is not None
    return estimate, truth, sum(found)


@pytest.mark.parametrize("depth", [0.0, 0.1, 0.3, 0.6])
def test_the_interval_holds_the_truth_as_often_as_it_says(depth: float) -> None:
    random = np.random.default_rng(0)
    hits = trials = 0
    for _ in range(300):
        estimate, truth, found = simulate(random, depth)
        if estimate.classes < 4:
            continue
        middle, low, high = estimate.missing
        assert found == estimate.found <= low <= middle <= high
        trials, hits = trials + 1, hits + (low <= truth <= high)
    assert trials > 100
    assert hits / trials > 0.93


def test_what_was_found_is_never_more_than_what_is_said_to_be_missing() -> None:
    """150 found beside "about 47 are missing" was seen: the ranked finds were not counted."""
    tally = ClassTally(np.array([2000]), np.array([400]), np.array([150]), np.array([0]))
    made = estimate_from_sample([0] * 40, [PRESENT] + [ABSENT] * 39, tally)
    assert made is not None and made.missing[1] >= 150
    assert "150 missing labels of dog were found; about 40 are still missing among 1,600" in describe_estimate(
        made, "dog"
    )


def test_when_everything_is_decided_the_number_is_exact() -> None:
    made = estimate_from_sample(
        [0] * 5, [ABSENT] * 5, ClassTally(np.array([592]), np.array([592]), np.array([31]), np.array([0]))
    )
    assert made is not None and made.missing == (31, 31, 31) and made.remaining == (0, 0, 0)
    expected = "31 missing labels of dog were found: every unknown label is decided, so this is exact."
    assert describe_estimate(made, "dog") == expected


def test_a_number_is_not_called_exact_while_labels_could_not_be_told() -> None:
    tally = ClassTally(np.array([100]), np.array([100]), np.array([31]), np.array([10]))
    told = describe_estimate(estimate_from_sample([], [], tally), "dog")
    assert told == "31 missing labels of dog were found: every unknown label is decided. 10 labels could not be told."


def test_a_finished_class_lends_its_sample_to_no_other() -> None:
    tally = ClassTally(np.array([12, 1000]), np.array([12, 1]), np.array([2, 1]), np.array([0, 0]))
    made = estimate_from_sample([0] * 12 + [1], [PRESENT] * 2 + [ABSENT] * 10 + [PRESENT], tally)
    assert made is not None and made.reviewed == 1 and "needs 10 reviewed" in describe_estimate(made)


def test_sampled_in_proportion_it_is_the_plain_interval() -> None:
    made = sampled([0] * 30 + [1] * 10, [PRESENT] * 6 + [ABSENT] * 34, [3_000_030, 1_000_010])
    assert made is not None and (made.low, made.high) == pytest.approx(wilson_interval(6, 40), rel=1e-3)
    assert made.share == pytest.approx(6 / 40) and made.remaining[0] == 600_000


def test_classes_weigh_by_their_undecided_labels_not_by_how_many_were_looked_at() -> None:
    made = sampled([0] * 30 + [1] * 70, [PRESENT] * 30 + [ABSENT] * 70, [1030, 1070])
    assert made is not None and made.share == pytest.approx(0.5)
    plain = wilson_interval(50, 100)
    assert made.low < plain[0] and made.high > plain[1], "an uneven sample knows less"


def test_a_class_that_was_hardly_looked_at_does_not_spoil_the_rest() -> None:
    classes, values = [0] * 40 + [1], [PRESENT] * 4 + [ABSENT] * 36 + [PRESENT]
    made = sampled(classes, values, [1000, 1000])
    assert made is not None and (made.classes, made.reviewed) == (1, 40) and made.share == pytest.approx(0.1)
    both = sampled([0] * 40 + [1] * 20, [ABSENT] * 60, [1000, 1000])
    many = sampled(np.arange(50), [ABSENT] * 50, [1000] * 50)
    assert both is not None and many is not None and (both.classes, many.classes) == (2, 50)


def test_a_class_that_nobody_looked_at_is_not_spoken_of_and_doubt_is_left_out() -> None:
    made = sampled([0, 0, 0, 0], [PRESENT, ABSENT, UNKNOWN, ABSENT], [100, 9000])
    assert made is not None
    assert (made.classes, made.undecided, made.reviewed, made.present, made.unsure) == (1, 96, 3, 1, 1)
    assert sampled([], [], [100]) is None and sampled([0], [UNKNOWN], [100]) is None


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
    shown, in_sample, ranked = review.candidates.positions
    listed = review.candidates.listed(3)
    assert (np.diff(shown[listed]) >= 0).all()
    decide(review, listed[:20].tolist(), truth)
    made = review.estimate(3)
    end = shown[listed[20]]
    expected = (in_sample[listed] < end) & (ranked[listed] >= end)
    assert made is not None and made.reviewed == expected.sum() >= 1
    early = (in_sample[listed[:20]] < np.iinfo(np.int64).max) & ~expected[:20]
    assert early.any(), "this seed has random labels that the ranking brought before their turn"
    dense = truth.to_dense()[:, 3]
    keys = [review.candidates.key(int(number)).image for number in listed[:20]]
    assert made.found == sum(dense[truth.images.index(name)] == PRESENT for name in keys)
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
    assert made is not None and made.classes >= 5
    assert made.missing[1] <= missing <= made.missing[2]
    assert f"{made.found:,} missing labels of {made.classes} classes were found" in describe_estimate(made)
    review.close()


def test_too_few_random_labels_give_no_number() -> None:
    made = sampled([0] * (MIN_SAMPLE - 1), [PRESENT] * (MIN_SAMPLE - 1), [1000])
    for few in (None, made):
        assert "missing (95 %" not in describe_estimate(few) and f"needs {MIN_SAMPLE} reviewed" in describe_estimate(
            few
        )
