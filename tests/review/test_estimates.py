"""How many labels are missing, or wrong: counted, or estimated with scores, in intervals that hold the truth."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy.stats import hypergeom
from tests.review.samples import decide, likely_rows, write_candidates

import labelgap as lg
from labelgap.audit.candidates import MissingEstimate
from labelgap.core.manifest import replacing
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics.label_model import CLASS_SPREAD
from labelgap.review import Review, open_review_folder
from labelgap.review.estimates import (
    EXACT,
    AuditCounts,
    CountedLabels,
    ReviewedLabels,
    ReviewEstimate,
    SampleEstimate,
    count_random,
    describe_estimate,
    estimate_review,
)
from labelgap.review.progress import order_decisions
from labelgap.review.queues import Feed, class_feed
from labelgap.review.store import ASKED, PAGE_PLACES
from labelgap.review.wrong_labels import (
    COMMON_SPREAD,
    MIN_PRECISION,
    Precision,
    WrongLabels,
    estimate_wrong_labels,
)


def sampled(
    classes: list[int] | NDArray[np.int64], values: list[int] | NDArray[np.int64], unknown: list[int]
) -> ReviewEstimate:
    """The estimate without a model when only random labels were decided."""
    group, value = np.asarray(classes, dtype=np.int64), np.asarray(values, dtype=np.int8)
    every = np.ones(len(group), dtype=np.bool_)
    order, scores = np.arange(len(group)), np.full(len(group), np.nan)
    return estimate_review(ReviewedLabels(group, scores, every, value, every, order, AuditCounts(np.array(unknown))))


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
        labels = ReviewedLabels(self.column, score, decided, value, asked, order, AuditCounts(self.unknown, expected))
        return estimate_review(labels), labels


@pytest.mark.parametrize(
    ("order", "depths"), [("fixed", [45, 45, 45, 45]), ("learns", [150, 90, 30, 0]), ("no model", [150, 90, 30, 0])]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(depths: list[int], order: str) -> None:
    random, model = np.random.default_rng(0), order != "no model"
    hits, widths = [], []
    for _ in range(40):
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
    assert f" {made.halving:,} " in describe_estimate(made)
    answers = 20 + made.halving
    more = total_of(sampled([0] * answers, [PRESENT] * (answers // 10) + [ABSENT] * (answers - answers // 10), [5000]))
    assert 0.35 < (more.high - more.low) / (made.high - made.low) < 0.65


Answer = tuple[int, int, bool]


def labels_of(score: NDArray[np.float64], answers: list[Answer], model: bool = True) -> ReviewedLabels:
    """Labels of one class: which were answered, in order, with what, and whether as random ones."""
    decided, random = np.zeros((2, len(score)), dtype=np.bool_)
    value, order = np.full(len(score), UNKNOWN, dtype=np.int8), np.zeros(len(score), dtype=np.int64)
    for turn, (row, answer, is_random) in enumerate(answers):
        decided[row], value[row], random[row], order[row] = True, answer, is_random, turn
    column, unknown = np.zeros(len(score), dtype=np.int64), np.array([len(score)])
    expected = np.array([score.sum()]) if model else None
    return ReviewedLabels(column, score, decided, value, random, order, AuditCounts(unknown, expected))


def counted(total: int, present: int, rows: Iterable[int]) -> CountedLabels:
    """Count labels of which the first ones are present, by random answers."""
    asked = [(row, int(row < present), True) for row in rows]
    return count_random(labels_of(np.full(total, np.nan), asked, model=False), 0)


def test_where_counting_is_narrower_its_interval_is_used() -> None:
    score = np.linspace(0.2, 0.6, 200)
    made = estimate_review(labels_of(score, [(row, ABSENT, True) for row in range(0, 200, 4)])).by_class[0]
    assert made is not None and made.counted and made.low <= made.still_missing <= made.high
    assert "counted from 50 random" in describe_estimate(made, "dog")


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
    made = counted(total, present, np.random.default_rng(0).permutation(drawn).tolist())
    assert (made.low, made.high) == reference(total, drawn, present)
    assert made.low <= made.estimate <= made.high
    assert made.estimate == pytest.approx((total - drawn) * present / drawn, abs=1e-5)


def test_many_answers_give_nearly_the_exact_interval() -> None:
    drawn, present, total = 6 * EXACT, 30, 3000
    made = counted(total, present, range(drawn))
    low, high = reference(total, drawn, present)
    assert made.low == pytest.approx(low, rel=0.05) and made.high == pytest.approx(high, rel=0.05)


def test_without_random_answers_everything_is_possible() -> None:
    made = count_random(labels_of(np.full(10, np.nan), [(0, PRESENT, False)], model=False), 0)
    assert (made.low, made.high) == (0, 9)


@contextmanager
def opened(folder: Path, missing: NDArray[np.float64] | None = None, **options: Any) -> Iterator[Review]:
    """A review of candidates, ranked as options say, with what an audit estimates to be missing of each class."""
    data, path = digits(), folder / "candidates.parquet"
    write_candidates(path, likely_rows(data, **options), data)
    if missing is not None:
        about: dict[str, Any] = json.loads(pq.read_schema(path).metadata[b"labelgap"])
        about["estimate"] = MissingEstimate(missing, np.ones(10, np.int64), (9, 99), (0.5, 0.5)).to_json(data.classes)
        with replacing(folder, [path.name]):
            pq.write_table(pq.read_table(path).replace_schema_metadata({b"labelgap": json.dumps(about)}), path)
    with closing(Review(open_review_folder(folder))) as review:
        yield review


def digits() -> Dataset:
    return lg.load("digits", train=96, val=40, test=40)


def decide_truly(review: Review, feed: Feed) -> NDArray[np.int8]:
    """Answer what a page asks with the truth, and return it."""
    truth = digits().train.truth
    assert truth is not None
    table = truth.to_dense()
    rows = {name: row for row, name in enumerate(truth.images)}
    made = []
    for number, asked in zip(feed.numbers.tolist(), feed.asked.tolist(), strict=True):
        entry = review.candidates.key(number)
        value = int(table[rows[entry.image], truth.classes.index(entry.class_name)])
        made.append(review.decision(number, value, f"request-{number:06d}", 0, ASKED[asked], feed.ranking))
    review.store.append(made, reviewer="anna", client="window-1")
    return table


def test_a_whole_review_finds_about_as_many_as_there_are(folder: Path) -> None:
    with opened(folder, share=0.8, sample=0.5) as review:
        for number in range(10):
            truth = decide_truly(review, class_feed(review, number))
        made = review.estimate()
        missing = int((truth == PRESENT).sum() - (digits().train.labels.values == PRESENT).sum())
        assert made is not None and made.classes >= 5
        assert made.missing[1] <= missing <= made.missing[2]
        assert made.still_missing == 0 < made.high and "Less than 1 of the" in describe_estimate(made)
        assert sum(each.still_missing for each in review.estimates().by_class if each) == made.still_missing


def test_a_page_of_an_audit_says_what_the_audit_says(folder: Path) -> None:
    rows = [row for row in likely_rows(digits(), share=1.0) if row[4] == "missing"]
    sums = np.array([sum(row[3] for row in rows if row[2] == name) for name in digits().classes])
    with opened(folder, sums, share=1.0) as review:
        made, own = review.estimate(), [review.estimate(number) for number in range(10)]
        told = review.candidates.metadata["estimate"]
        assert made is not None and made.missing[0] == told["missing"] == round(sums.sum())
        assert [*made.missing[1:]] == told["range"]
        by_class = {name: each.missing[0] for name, each in zip(digits().classes, own, strict=True) if each}
        assert by_class == told["missing_per_class"]


def test_a_random_slot_counts_once_all_earlier_labels_of_the_draw_are_decided(folder: Path) -> None:
    with opened(folder, share=0.5, sample=0.9) as review:
        feed, rank = class_feed(review, 3), review.candidates.columns.random_rank
        drawn = feed.numbers[rank[feed.numbers] > 0]

        def answer(numbers: list[int], asked: str) -> list[int]:
            decide(review, numbers, PRESENT, asked, ranking=feed.ranking)
            random = order_decisions(review.current, review.copies.shown)[2]
            return np.flatnonzero(random).tolist()

        first, second, third, fourth = drawn[np.argsort(rank[drawn])][:4].tolist()
        slots = feed.numbers[feed.asked == ASKED.index("random")]
        assert np.isin(slots, drawn).all() and first in slots
        assert answer([first], "random") == [first]
        assert answer([third], "random") == [first], "one before it in the draw is open"
        assert answer([fourth], "other") == [first], "it was not asked in a random slot"
        assert answer([second], "random") == sorted([first, second, third])
        assert answer([third], "other") == sorted([first, second, third]), "a corrected answer is still a random one"
        made = review.estimate(3)
        assert made is not None and (made.reviewed, made.present, made.found) == (3, 3, 4)


def test_answers_count_in_the_order_in_which_they_were_shown_not_in_that_of_the_clicks(review: Review) -> None:
    feed, last_id = class_feed(review, 3)[:20], review.store.last_id()
    asked = [ASKED[each] for each in feed.asked.tolist()]
    clicked = [*range(1, 20, 2), *range(0, 20, 2)]  # every second one is present, and is clicked first
    made = [
        review.decision(number, index % 2, f"request-{index:02d}", 0, asked[index], feed.ranking, place)
        for index in clicked
        for number, place in [(int(feed.numbers[index]), last_id * PAGE_PLACES + index + 1)]
    ]
    review.store.append(made, reviewer="anna", client="window-1")
    review.current.refresh()
    order = order_decisions(review.current, review.copies.shown).order[feed.numbers]
    assert (np.diff(order) == 1).all()
    following = class_feed(review, 3).numbers[0]
    without = review.decision(int(following), PRESENT, "request-of-another-version", 0, "missing", feed.ranking)
    review.store.append([without], reviewer="ben", client="window-2")
    review.current.refresh()
    assert review.current.shown[following] > order.max()


def suggest(classes: list[int], scores: list[float], answers: str) -> WrongLabels:
    """Make labels from answers: w wrong, r right, ? cannot tell, . open."""
    letters = np.array(list(answers))
    return WrongLabels(
        max(classes) + 1, np.array(classes), np.array(scores), letters != ".", letters == "w", letters == "r"
    )


def drawn(labels: WrongLabels, draws: int = 400_000) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw shifts from the prior; return the precision of each class and of all, (draws, K + 1), and the weights."""
    random = np.random.default_rng(0)
    common = COMMON_SPREAD * random.standard_t(2, draws)
    shift = common[:, None] + CLASS_SPREAD * random.standard_t(4, (draws, labels.classes))
    weight = np.ones(draws)
    wrong_left = np.zeros((draws, labels.classes))
    counts = np.zeros(labels.classes)
    for k, score, decided, wrong, right in zip(
        labels.class_number, labels.implausibility, labels.decided, labels.wrong, labels.right, strict=True
    ):
        odds = np.clip(np.log(score / (1 - score)) + shift[:, k], -50, 50)
        chance = 1 / (1 + np.exp(-odds))
        weight *= chance if wrong else 1 - chance if right else 1
        if not decided:
            wrong_left[:, k] += chance
            counts[k] += 1
    shares = np.concatenate([wrong_left / np.maximum(counts, 1), wrong_left.sum(1, keepdims=True) / counts.sum()], 1)
    return shares, weight / weight.sum()


def quantile(values: NDArray[np.float64], weight: NDArray[np.float64], level: float) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weight[order]), level)])


@pytest.mark.parametrize("answers", ["................", "wrr?w.rr........", "rrrrrrrr....rr.."])
def test_precision_and_interval_are_those_of_draws_from_the_model(answers: str) -> None:
    scores = np.linspace(0.97, 0.3, 16).tolist()
    labels = suggest([0, 0, 1, 0, 1, 2, 0, 1, 0, 2, 1, 1, 0, 2, 2, 0], scores, answers)
    shares, weight = drawn(labels)
    made = estimate_wrong_labels(labels)
    for number, found in enumerate([*made.by_class, made.total]):
        assert found is not None
        values = shares[:, number]
        assert found.share == pytest.approx(float(weight @ values), abs=0.01)
        assert found.low == pytest.approx(quantile(values, weight, 0.025), abs=0.04)
        assert found.high == pytest.approx(quantile(values, weight, 0.975), abs=0.04)


def test_a_class_that_is_mostly_wrong_is_kept_while_others_are_put_away() -> None:
    answers = "".join("w" if n % 3 == 0 and n < 60 else "r" if n < 120 else "." for n in range(150))
    made = estimate_wrong_labels(suggest([0, 1, 2] * 50, [0.8] * 150, answers))
    assert [each.put_away for each in made.by_class if each] == [False, True, True] and not made.total.put_away
    for each in made.by_class:
        assert each is not None and (each.put_away is False or each.share < MIN_PRECISION)


def test_nothing_left_is_not_put_away_and_classes_without_labels_have_no_precision() -> None:
    made = estimate_wrong_labels(suggest([0] * 6 + [2] * 3, [0.6] * 9, "r" * 9))
    assert made.by_class[1] is None and not made.total.put_away
    assert made.total == Precision(9, 0, 0, 0.0, 0.0, 0.0, False)
    sure = suggest([0, 1] * 20, [0.0, 1.0, 0.5, 0.5] * 10, "wr?." * 10)
    assert 0 <= estimate_wrong_labels(sure).total.share <= 1
    empty = WrongLabels(3, np.zeros(0, int), np.zeros(0), *(np.zeros(0, bool),) * 3)
    assert estimate_wrong_labels(empty).total.left == 0
