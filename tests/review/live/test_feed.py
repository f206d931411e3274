"""The feed of a class: random slots, decided candidates, and the order of a ranking."""

from __future__ import annotations

import numpy as np
import pytest

from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review
from labelgap.review.candidates import MISSING, RANDOM
from labelgap.review.live import Ranking
from labelgap.review.queues import class_feed, decided_rows, mix
from labelgap.review.store import ASKED


def answer(review: Review, number: int, value: int, asked: str | None = None) -> None:
    decision = review.decision(
        number, value, f"request-{number}-{value}", int(review.current.version[number]), asked, 7
    )
    review.store.append([decision], reviewer="anna", client="window-1")
    review.current.refresh()


def test_one_slot_in_ten_is_random_and_what_is_both_comes_once() -> None:
    ids = np.arange(1000, dtype=np.uint64) * np.uint64(7)
    ranked, drawn = np.arange(90), np.array([200, 5, 201, 202])
    feed = mix(ranked, drawn, ids, "missing", 3)
    assert sorted(feed.numbers.tolist()) == [*range(90), 200, 201, 202] and feed.ranking == 3
    random = feed.asked == ASKED.index("random")
    assert feed.numbers[random].tolist() in ([200, 201, 202], [200, 5, 201, 202])
    places = np.flatnonzero(random)
    assert all(np.diff(places) <= 20) and places[0] <= 9
    assert [number for number in feed.numbers.tolist() if number not in (200, 201, 202, 5)] == [
        number for number in range(90) if number != 5
    ]
    assert len(mix(np.empty(0, np.int64), drawn, ids, "missing", 0)) == 4


def test_the_feed_holds_what_is_open_and_the_first_open_label_of_the_draw(review: Review) -> None:
    feed, columns = class_feed(review, 3), review.candidates.columns
    random = feed.numbers[feed.asked == ASKED.index("random")]
    assert (np.diff(columns.random_rank[random]) > 0).all() and set(feed.numbers) == set(review.listed(3))
    first, ranked = int(random[0]), int(feed.numbers[feed.asked == ASKED.index("missing")][0])
    answer(review, first, ABSENT, "random")
    answer(review, ranked, PRESENT, "missing")
    after = class_feed(review, 3)
    assert not {first, ranked} & set(after.numbers.tolist()) and len(after) == len(feed) - 2
    assert decided_rows(review, 3).tolist() == [ranked, first]
    assert ASKED[review.current.asked[first]] == "random" and review.current.ranking[first] == 7


def test_a_new_ranking_moves_open_candidates_only_and_never_the_draw(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, columns = class_feed(review, 3), review.candidates.columns
    answer(review, int(before.numbers[0]), PRESENT)
    before = class_feed(review, 3)
    position = np.full(len(columns.ids), np.iinfo(np.int32).max, np.int32)
    worst_first = before.numbers[::-1]
    position[worst_first] = np.arange(len(worst_first))
    made = Ranking(9, "missing", 1, position, np.zeros(len(position), np.float32))
    monkeypatch.setattr(review, "ranking", lambda aim="missing": made)
    after = class_feed(review, 3)
    assert after.ranking == 9 and set(after.numbers) == set(before.numbers)

    def drawn(numbers: np.ndarray) -> list[int]:
        return [number for number in numbers.tolist() if columns.random_rank[number] and columns.kind[number] == RANDOM]

    def ranked(numbers: np.ndarray) -> list[int]:
        return [
            number for number in numbers.tolist() if columns.kind[number] == MISSING and not columns.random_rank[number]
        ]

    assert drawn(after.numbers) == drawn(before.numbers) and ranked(after.numbers) == ranked(before.numbers)[::-1]


def test_a_decision_keeps_what_it_was_asked_as_and_a_page_cannot_claim_more(review: Review) -> None:
    columns = review.candidates.columns
    plain = int(np.flatnonzero((columns.kind == MISSING) & (columns.random_rank == 0))[0])
    drawn = int(np.flatnonzero(columns.kind == RANDOM)[0])
    kinds = [review.decision(plain, PRESENT, "r", 0, asked).kind for asked in (None, "random", "classifier", "wrong")]
    assert kinds == ["missing", "other", "classifier", "other"]
    kinds = [review.decision(drawn, 1, "r", 0, asked).kind for asked in (None, "random", "missing", "second", "other")]
    assert kinds == ["random", "random", "other", "other", "other"], "random only in a random slot"
    answer(review, drawn, PRESENT, "random")
    assert review.decision(drawn, ABSENT, "again", 1, "other").kind == "random"


def test_answers_on_the_page_of_an_image_are_not_those_of_a_list_that_never_changed(review: Review) -> None:
    for number in class_feed(review, 3).numbers[:30].tolist():  # the first of the audit's list, random ones among them
        decision = review.decision(number, ABSENT, f"request-{number}", 0, "other")
        assert decision.ranking == review.audit_ranking > 0
        review.store.append([decision], reviewer="anna", client="window-1")
    assert review.progress().decided == 30 and review.estimate(3) is None, "there is no random answer"
