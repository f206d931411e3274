"""What is asked next and what stands: feeds with random slots, the plan of the next minutes, progress and speed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.review.http_client import ReviewClient, ids, run_server
from tests.review.samples import decide, event, suggest_wrong

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, open_review_folder
from labelgap.review.candidates import MISSING, RANDOM, WRONG
from labelgap.review.live import Ranking
from labelgap.review.queues import (
    PRIOR_ANSWERS,
    STEP,
    USUAL_SECONDS,
    aim_feed,
    aims_context,
    answer_speed,
    class_feed,
    class_rates,
    finds_per_minute,
    next_minutes,
    plan_context,
)
from labelgap.review.store import copy_request
from labelgap.review.team import PAUSE
from labelgap.review.views import grid_context, image_context, overview_context
from labelgap.review.wrong_labels import wrong_queue

CLASSES = {"cat": 0, "dog": 1, "owl": 2}


def test_speed_leaves_pauses_and_other_people_out_and_classes_lean_on_their_person() -> None:
    times = [0, 1, 2, 3, 3 + PAUSE + 1, 3 + PAUSE + 11]
    names = ["cat", "cat", "cat", "cat", "dog", "dog"]
    events = [event(1, class_name=name, seconds=time) for time, name in zip(times, names, strict=True)]
    noise = [event(1, seconds=1.5, by="ben"), event(1, seconds=2.5, request=copy_request("x", 1))]
    noise += [event(1, None, seconds=2.6, undoes=3)]
    speed = answer_speed(sorted([*events, *noise], key=lambda each: each.time), "anna", CLASSES)
    mean = (3 + 10 + PRIOR_ANSWERS * USUAL_SECONDS) / (4 + PRIOR_ANSWERS)
    assert speed.answers == 4 and speed.seconds == pytest.approx(mean)
    expected = [(3 + PRIOR_ANSWERS * mean) / (3 + PRIOR_ANSWERS), (10 + PRIOR_ANSWERS * mean) / (1 + PRIOR_ANSWERS)]
    assert speed.by_class.tolist() == pytest.approx([*expected, mean])
    assert answer_speed([], "anna", CLASSES).seconds == USUAL_SECONDS


def test_finds_per_minute_sums_what_fits_into_the_time() -> None:
    random = np.random.default_rng(0)
    column, chance, seconds = random.integers(0, 3, 50), random.random(50), np.array([7.0, 11.0, 400.0])
    found = finds_per_minute(column, chance, seconds, 2.0)
    for number in range(3):
        left, total = 120.0, 0.0
        for value in chance[column == number].tolist():
            part = min(1.0, left / seconds[number])
            total += part * value
            left -= part * float(seconds[number])
        assert found[number] == pytest.approx(total / 2)
    assert finds_per_minute(column[:0], chance[:0], seconds).tolist() == [0, 0, 0]


def test_the_plan_finds_as_much_as_the_best_of_all_plans() -> None:
    random = np.random.default_rng(3)
    column = np.repeat([0, 1, 2], 6)
    chance = -np.sort(-random.random((3, 6)), axis=1).ravel()
    steps = next_minutes(1, column, chance, np.full(3, 6.0), step=1)
    assert sum(step.answers for step in steps) == 10 and sum(step.minutes for step in steps) == pytest.approx(1)
    best = np.sort(chance)[::-1][:10].sum()  # lists fall, so the best ten are a plan
    assert sum(step.finds for step in steps) == pytest.approx(best)
    rates = [step.finds / step.minutes for step in steps]
    assert rates == sorted(rates, reverse=True)


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


def test_the_plan_is_that_of_the_person_who_asks(review: Review, client: ReviewClient) -> None:
    text = client.request("/plan?reviewer=anna").text
    plan = plan_context(review, "anna")
    assert "a usual speed, 30 a minute" in text and f"About {plan['finds']} found with {plan['answers']}" in text
    assert 0 < plan["finds"] <= plan["answers"] <= 10 * 30
    decide(review, range(30), ABSENT, "missing", by="ben")
    own = plan_context(review, "ben")
    assert own["is_own"] and own["per_minute"] > 60 > plan["per_minute"], "thirty answers in a moment"
    assert "your speed" in client.request("/plan?reviewer=ben").text


def test_classes_come_in_the_order_of_finds_per_minute(review: Review, client: ReviewClient) -> None:
    def order() -> list[int]:
        return [int(number) for number in re.findall(r'scope="row"><a class="go" href="/class/(\d+)"', overview)]

    overview = client.request("/").text
    rates = class_rates(review, "reviewer")
    assert order() == np.argsort(-rates, kind="stable").tolist()
    first = order()[0]
    assert plan_context(review, "reviewer")["steps"][0]["number"] == first, "the plan starts with the same class"
    decide(review, np.flatnonzero(review.candidates.columns.class_number == first)[:40], ABSENT, "missing")
    overview = client.request("/").text
    assert order()[0] != first and f'href="/class/{order()[0]}">Start with' in overview
    planned = [step["number"] for step in plan_context(review, "reviewer")["steps"]]
    assert planned == [number for number in order() if number in planned], "the plan has the order of the list"


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
    columns, rates = review.candidates.columns, dict[int, float]()
    missing = {row.name: round(columns.score[columns.class_number == row.number].sum()) for row in review.classes()}
    stored = {"missing": sum(missing.values()), "range": None, "known": 100, "missing_per_class": missing}
    monkeypatch.setitem(review.candidates.metadata, "estimate", stored)

    def rate(number: int) -> float:
        return float(class_rates(review, "ben")[number])  # of somebody who has not answered: at the usual speed

    def better() -> Any:
        return grid_context(review, first, "ben", wrong=False, decided=False, skip=0, size=60)["better"]

    listed = review.candidates.listed
    first, *_, last = [row.number for row in overview_context(review, "ben")["classes"]]
    following = columns.score[listed(first)[columns.kind[listed(first)] == MISSING]][:STEP]
    before = rate(first)
    assert before == pytest.approx(float(following.sum()) / (STEP * USUAL_SECONDS / 60), rel=1e-5), "the scores alone"
    decide(review, listed(first)[:8], ABSENT)
    assert rate(first) < before / 2
    for value in (ABSENT, PRESENT):  # of the same candidates, so that the next page is the same
        decide(review, listed(last)[:8], value)
        rates[value] = rate(last)
    assert rates[PRESENT] > 1.3 * rates[ABSENT]
    decide(review, listed(first)[8:9], UNKNOWN)
    assert better() is None, "nine answers are too few to give a class up"
    decide(review, listed(first)[9:10], ABSENT)
    assert better()["rate"] >= 2 * better()["here"]


def test_one_image_at_a_time_continues_with_the_first_that_is_open(review: Review) -> None:
    first, second, third, *_ = review.image_order.tolist()
    addresses = [f"{int(review.candidates.columns.image_ids[image]):016x}" for image in (first, second, third)]
    assert overview_context(review, "anna")["first_image"] == addresses[0]
    decide(review, [*review.of_image(first)[:-1], *review.of_image(second)], ABSENT)
    assert overview_context(review, "anna")["first_image"] == addresses[0], "a label of it is open"
    assert image_context(review, first)["next"] == addresses[2], "the second is done"
    held = review.of_image(third)
    assert image_context(review, first, held)["next"] not in addresses, "somebody else looks at the third"
    decide(review, review.of_image(first)[-1:], ABSENT)
    assert overview_context(review, "anna")["first_image"] == addresses[2]
    last = image_context(review, int(review.image_order[-1]))
    assert last["next"] == "" and image_context(review, first)["previous"] == ""
