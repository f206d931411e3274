"""Aims and the plan of the next minutes: what was brought, how fast somebody is, where more is to be found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import numpy as np
import pytest

from labelgap.labels.codes import PRESENT
from labelgap.review.queues import (
    PRIOR_ANSWERS,
    USUAL_SECONDS,
    answer_speed,
    finds_per_minute,
    next_minutes,
)
from labelgap.review.store import DecisionEvent, LabelKey, copy_request
from labelgap.review.team import PAUSE

START = datetime(2026, 1, 1, tzinfo=UTC)
CLASSES = {"cat": 0, "dog": 1, "owl": 2}


def answer(
    seconds: float,
    name: str = "cat",
    by: str = "anna",
    *,
    value: int | None = PRESENT,
    request: str = "request-1",
    undoes: int | None = None,
) -> DecisionEvent:
    made = {
        "id": 1,
        "time": START + timedelta(seconds=seconds),
        "reviewer": by,
        "key": LabelKey("train", "a.jpg", name),
        "value": value,
        "kind": "missing",
        "score": None,
        "undoes": undoes,
        "accepted": True,
        "client": "window-1",
        "request_id": request,
        "place": 0,
        "ranking": 0,
    }
    return DecisionEvent(**{name: made[name] for name in DecisionEvent.__dataclass_fields__})  # type: ignore[arg-type]


def test_speed_leaves_pauses_and_other_people_out_and_classes_lean_on_their_person() -> None:
    times = [0, 1, 2, 3, 3 + PAUSE + 1, 3 + PAUSE + 11]
    names = ["cat", "cat", "cat", "cat", "dog", "dog"]
    events = [answer(time, name) for time, name in zip(times, names, strict=True)]
    noise = [answer(1.5, by="ben"), answer(2.5, request=copy_request("x", 1)), answer(2.6, value=None, undoes=3)]
    speed = answer_speed(sorted([*events, *noise], key=lambda event: event.time), "anna", CLASSES)
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


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_plan_keeps_the_order_of_each_list_and_never_exceeds_the_time(order: tuple[int, ...]) -> None:
    lists = {0: [0.1, 0.9, 0.9], 1: [0.5, 0.5, 0.0], 2: [0.0, 0.0, 0.0]}
    column = np.repeat(order, 3)
    chance = np.array([value for number in order for value in lists[number]])
    steps = next_minutes(0.5, column, chance, np.full(3, 7.0), step=2)
    assert sum(step.answers for step in steps) == 4 and all(step.class_number != 2 for step in steps)
    for step in steps:
        assert step.finds == pytest.approx(sum(lists[step.class_number][: step.answers]))
    assert next_minutes(10, column[:0], chance[:0], np.full(3, 7.0)) == []
