"""The estimates of a review that is open: which decisions count as random ones, and what the page says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from tests.review.sample_run import likely_rows, write_candidates

import labelgap as lg
from labelgap.audit.candidates import MissingEstimate
from labelgap.core.manifest import replacing
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import PRESENT
from labelgap.review import Review, open_review_folder
from labelgap.review.estimates import describe_estimate
from labelgap.review.progress import order_decisions
from labelgap.review.queues import class_feed, expected_next, plan_context
from labelgap.review.store import ASKED, PAGE_PLACES, Decision


@contextmanager
def opened(folder: Path, missing: NDArray[np.float64] | None = None, **options: float) -> Iterator[Review]:
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


def decide(review: Review, numbers: list[int]) -> NDArray[np.int8]:
    """Answer with the truth, and return it."""
    truth = digits().train.truth
    assert truth is not None
    table = truth.to_dense()
    rows = {name: row for row, name in enumerate(truth.images)}
    made = []
    for number in numbers:
        entry = review.candidates.key(number)
        value = int(table[rows[entry.image], truth.classes.index(entry.class_name)])
        made.append(Decision(entry, value, f"request-{number:06d}"))
    review.store.append(made, reviewer="anna", client="window-1")
    return table


def test_a_random_label_that_is_ranked_too_counts_only_when_its_turn_has_come(folder: Path) -> None:
    with opened(folder, share=0.9, sample=0.3) as review:
        shown, (in_sample, ranked) = review.candidates.positions.shown, review.candidates.positions
        listed = review.candidates.listed(3)
        assert (np.diff(shown[listed]) >= 0).all()
        truth = decide(review, listed[:20].tolist())
        made, end = review.estimate(3), shown[listed[20]]
        expected = (in_sample[listed] < end) & (in_sample[listed] < ranked[listed])
        assert made is not None and made.reviewed == expected.sum() >= 1
        early = (in_sample[listed[:20]] < np.iinfo(np.int64).max) & ~expected[:20]
        assert early.any(), "this seed has random labels that the ranking brought before their turn"
        images = digits().train.labels.images
        keys = [review.candidates.key(int(number)).image for number in listed[:20]]
        assert made.found == sum(truth[images.index(name), 3] == PRESENT for name in keys)


def test_a_whole_review_finds_about_as_many_as_there_are(folder: Path) -> None:
    with opened(folder, share=0.8, sample=0.5) as review:
        for number in range(10):
            truth = decide(review, review.candidates.listed(number).tolist())
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
            made = [
                review.decision(number, PRESENT, f"{asked}-{number:06d}", 0, asked, feed.ranking) for number in numbers
            ]
            review.store.append(made, reviewer="anna", client="window-1")
            review.current.refresh()
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


def test_what_comes_next_is_in_the_order_of_the_feed(folder: Path) -> None:
    with opened(folder) as review:
        assert expected_next(review, 3)[1] is None, "without an estimate of the audit there are no probabilities"
    with opened(folder, np.full(10, 20.0)) as review:
        (count, expected), numbers = expected_next(review, 3, 5), class_feed(review, 3).numbers
        assert count == 5 and expected == pytest.approx(review.candidates.columns.score[numbers[:5]].sum(), rel=0.02)


def test_no_class_promises_more_finds_than_are_still_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder, np.arange(10.0)) as review:
        place, sure = np.arange(len(review.candidates)), np.full(len(review.candidates), 0.9)
        ranking = SimpleNamespace(number=1, position=place, probability=sure)  # it learned from finds alone
        monkeypatch.setattr(Review, "ranking", lambda self, aim="missing": ranking)
        plan, total = plan_context(review, "anna"), review.estimate()
        assert total is not None and plan["finds"] <= total.still_missing + 1
        for step in [*plan["steps"], *plan["more"]]:
            own, (_, following) = review.estimate(step["number"]), expected_next(review, step["number"])
            assert own is not None and following is not None
            assert step["finds"] <= max(own.still_missing, 1)
            assert following <= max(own.still_missing, 0.5) + 1e-9


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
