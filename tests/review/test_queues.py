"""What is asked next and what stands: feeds with random slots, likely finds, and progress."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.review.http_client import ReviewClient, ids, run_server
from tests.review.samples import decide, suggest_wrong

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, open_review_folder
from labelgap.review.candidates import MISSING, RANDOM, WRONG
from labelgap.review.live import Ranking
from labelgap.review.queues import STEP, aim_feed, aims_context, class_feed, likely_finds
from labelgap.review.views import grid_context, image_context, overview_context
from labelgap.review.wrong_labels import wrong_queue


def test_a_new_ranking_never_moves_the_draw(review: Review, monkeypatch: pytest.MonkeyPatch) -> None:
    before, columns = class_feed(review, 3), review.candidates.columns
    decide(review, before.numbers[:1])
    before = class_feed(review, 3)
    position = np.full(len(columns.ids), np.iinfo(np.int32).max, np.int32)
    worst_first = before.numbers[::-1]
    position[worst_first] = np.arange(len(worst_first))
    made = Ranking(9, "missing", 1, position, np.zeros(len(position), np.float32))
    monkeypatch.setattr(review, "ranking", lambda aim="missing": made)
    after = class_feed(review, 3)
    assert after.ranking == 9 and set(after.numbers) == set(before.numbers)

    is_drawn = (columns.kind == RANDOM) & (columns.random_rank > 0)
    is_ranked = (columns.kind == MISSING) & (columns.random_rank == 0)
    drawn, ranked = (
        [each.numbers[kind[each.numbers]].tolist() for each in (before, after)] for kind in (is_drawn, is_ranked)
    )
    assert drawn[1] == drawn[0] and ranked[1] == ranked[0][::-1]


def test_a_decision_keeps_what_it_was_asked_as_and_a_page_cannot_claim_more(review: Review) -> None:
    columns = review.candidates.columns
    plain = int(np.flatnonzero((columns.kind == MISSING) & (columns.random_rank == 0))[0])
    drawn = int(np.flatnonzero(columns.kind == RANDOM)[0])
    kinds = [review.decision(plain, PRESENT, "r", 0, asked).kind for asked in (None, "random", "classifier", "wrong")]
    assert kinds == ["missing", "other", "classifier", "other"]
    kinds = [review.decision(drawn, 1, "r", 0, asked).kind for asked in (None, "random", "missing", "second", "other")]
    assert kinds == ["random", "random", "other", "other", "other"], "random only in a random slot"
    decide(review, [drawn], PRESENT, "random")
    assert review.decision(drawn, ABSENT, "again", 1, "other").kind == "random"


def test_answers_on_the_page_of_an_image_are_not_those_of_a_list_that_never_changed(review: Review) -> None:
    decide(review, class_feed(review, 3).numbers[:30], ABSENT, "other")  # of the audit's list, random ones among them
    assert {each.ranking for each in review.store.events()} == {review.audit_ranking} != {0}
    assert review.progress().decided == 30 and review.estimate(3) is None, "there is no random answer"


@pytest.fixture
def suggested(folder: Path) -> Iterator[Review]:
    suggest_wrong(folder, 40)
    with closing(Review(open_review_folder(folder))) as opened:
        yield opened


def rows(review: Review, page: str) -> list[int]:
    found = [review.candidates.index(identity) for identity in ids(page)]
    return [number for number in found if number is not None]


def test_right_labels_put_the_queue_away_until_somebody_asks_for_it(suggested: Review) -> None:
    columns = suggested.candidates.columns
    with run_server(suggested) as client:
        queue = wrong_queue(suggested)
        assert queue is not None
        for number in queue.asked[:24].tolist():
            decide(suggested, [number], int(columns.observed[number]), "wrong")
        queue = wrong_queue(suggested)
        assert queue is not None and queue.total.put_away and queue.total.answered == 24
        sentence = f"0 of {queue.total.answered} were wrong: the other {queue.total.left} are probably right."
        overview, page = client.request("/").text, client.request("/wrong").text
        assert sentence in overview and "Confirm or correct" not in overview
        assert sentence in page and not rows(suggested, page) and "/wrong?size=60&amp;show=away&amp;skip=0" in page
        away = rows(suggested, client.request("/wrong?show=away").text)
        assert len(away) == queue.total.left and not suggested.current.decided[away].any()
        for number in away[:8]:  # it was wrong after all
            decide(suggested, [number], ABSENT if columns.observed[number] == PRESENT else PRESENT, "wrong")
        assert "Confirm or correct" in client.request("/").text


def test_the_feed_for_the_classifier_asks_uncertain_ones_of_every_class(review: Review, client: ReviewClient) -> None:
    columns = review.candidates.columns
    page = client.request("/ask/classifier?size=10").text
    shown = rows(review, page)
    assert sorted(columns.class_number[shown].tolist()) == list(range(10)), "one of every class in turn"
    for number in shown:
        members = np.flatnonzero((columns.class_number == columns.class_number[number]) & (columns.kind == MISSING))
        value = columns.score[members] * np.sqrt(1 - columns.score[members])
        own = columns.score[number] * np.sqrt(1 - columns.score[number])
        assert own == pytest.approx(value.max())
    assert re.findall(r'class="caption"><b>(\d)</b>\?', page) == [str(columns.class_number[n]) for n in shown]
    decide(review, [shown[0]], PRESENT, "classifier")
    assert review.store.current()[-1].kind == "classifier"
    assert shown[0] not in rows(review, client.request("/ask/classifier?size=240").text)
    assert "similar images" not in page and "similar images" in client.request("/class/3").text
    brought = {each["aim"]: each["brought"] for each in aims_context(review, "missing")}
    assert brought["classifier"] == "1 answer for the classifier, 1 found" and brought["missing"] == "no answers yet"
    assert "1 answer for the classifier, 1 found" in client.request("/?aim=classifier").text


@pytest.mark.parametrize(("tagged", "aim"), [(None, "missing"), (39, "classifier"), (40, "missing")])
def test_a_review_of_few_tags_starts_with_the_classifier(
    review: Review, client: ReviewClient, tagged: int | None, aim: str
) -> None:
    review.candidates.metadata |= {"tagged_images": tagged, "images": 100}
    page = client.request("/").text
    assert re.findall(r'data-aim="(\w+)"[^>]* aria-current="true"', page) == [aim]
    assert ("Only 39 % of the images" in page) == (aim == "classifier")
    assert "Only 39 %" not in client.request("/?aim=missing").text


def test_measuring_follows_the_draw_of_every_class(review: Review, client: ReviewClient) -> None:
    columns = review.candidates.columns
    shown = rows(review, client.request("/ask/random?size=2000").text)
    assert sorted(shown) == np.flatnonzero(columns.random_rank > 0).tolist()
    for number in range(10):
        ranks = [int(columns.random_rank[row]) for row in shown if columns.class_number[row] == number]
        assert ranks == list(range(1, len(ranks) + 1))
        own = rows(review, client.request(f"/ask/random?class={number}").text)
        assert own == [row for row in shown if columns.class_number[row] == number]
    size = np.bincount(columns.class_number[shown])
    half = np.bincount(columns.class_number[shown[: len(shown) // 2]], minlength=10)
    assert np.abs(half - size / 2).max() <= 1, "all classes are equally far at any time"
    decide(review, [shown[0]], ABSENT, "random")
    assert review.store.current()[-1].kind == "random"
    assert aim_feed(review, "random").numbers.tolist() == shown[1:]


def test_classes_come_in_the_order_of_likely_finds(review: Review, client: ReviewClient) -> None:
    def order() -> list[int]:
        return [int(number) for number in re.findall(r'scope="row"><a class="go" href="/class/(\d+)"', overview)]

    overview = client.request("/").text
    assert order() == np.argsort(-likely_finds(review), kind="stable").tolist()
    first = order()[0]
    decide(review, np.flatnonzero(review.candidates.columns.class_number == first)[:40], ABSENT, "missing")
    overview = client.request("/").text
    assert order()[0] != first and f'href="/class/{order()[0]}">Start with' in overview


def test_found_is_a_missing_label_that_is_there_or_a_wrong_one_that_was_corrected(review: Review) -> None:
    kinds, observed = review.candidates.columns.kind, review.candidates.columns.observed
    missing, other = np.flatnonzero(kinds != WRONG)[:2].tolist()
    wrong, right, difficult = np.flatnonzero(kinds == WRONG)[:3].tolist()
    decide(review, [missing], PRESENT)
    decide(review, [other], ABSENT)
    decide(review, [wrong], ABSENT if observed[wrong] == PRESENT else PRESENT)
    decide(review, [right], int(observed[right]))
    decide(review, [difficult], UNKNOWN)
    progress = review.progress()
    assert (progress.decided, progress.found, progress.wrong_decided, progress.corrected) == (2, 1, 3, 1)
    assert progress.total + progress.wrong == len(review.candidates)
    assert review.current.found_curve().tolist() == [1, 1]


def test_a_class_that_disappoints_moves_down_and_one_that_surprises_moves_up(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, finds = review.candidates.columns, dict[int, float]()
    missing = {row.name: round(columns.score[columns.class_number == row.number].sum()) for row in review.classes()}
    stored = {"missing": sum(missing.values()), "range": None, "known": 100, "missing_per_class": missing}
    monkeypatch.setitem(review.candidates.metadata, "estimate", stored)

    def likely(number: int) -> float:
        return float(likely_finds(review)[number])

    def better() -> Any:
        return grid_context(review, first, wrong=False, decided=False, skip=0, size=60)["better"]

    listed = review.candidates.listed
    first, *_, last = [row.number for row in overview_context(review)["classes"]]
    following = columns.score[listed(first)[columns.kind[listed(first)] == MISSING]][:STEP]
    before = likely(first)
    assert before == pytest.approx(float(following.sum()), rel=1e-5), "the scores alone"
    decide(review, listed(first)[:8], ABSENT)
    assert likely(first) < before / 2
    for value in (ABSENT, PRESENT):  # of the same candidates, so that the next page is the same
        decide(review, listed(last)[:8], value)
        finds[value] = likely(last)
    assert finds[PRESENT] > 1.3 * finds[ABSENT]
    decide(review, listed(first)[8:9], UNKNOWN)
    assert better() is None, "nine answers are too few to give a class up"
    decide(review, listed(first)[9:10], ABSENT)
    assert better()["likely"] >= 2 * better()["here"]


def test_one_image_at_a_time_continues_with_the_first_that_is_open(review: Review) -> None:
    first, second, third, *_ = review.image_order.tolist()
    addresses = [f"{int(review.candidates.columns.image_ids[image]):016x}" for image in (first, second, third)]
    assert overview_context(review)["first_image"] == addresses[0]
    decide(review, [*review.of_image(first)[:-1], *review.of_image(second)], ABSENT)
    assert overview_context(review)["first_image"] == addresses[0], "a label of it is open"
    assert image_context(review, first)["next"] == addresses[2], "the second is done"
    held = review.of_image(third)
    assert image_context(review, first, held)["next"] not in addresses, "somebody else looks at the third"
    decide(review, review.of_image(first)[-1:], ABSENT)
    assert overview_context(review)["first_image"] == addresses[2]
    last = image_context(review, int(review.image_order[-1]))
    assert last["next"] == "" and image_context(review, first)["previous"] == ""
