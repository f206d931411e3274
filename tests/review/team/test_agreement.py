"""Cohen's κ from the formula, and which two answers to a label are compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review.store import SECOND, DecisionEvent, LabelKey
from labelgap.review.team import (
    OpinionPair,
    describe_agreement,
    kappa_interval,
    measure_agreement,
    opinion_pairs,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
KEY = LabelKey("train", "a.jpg", "dog")


def event(
    number: int,
    value: int | None,
    by: str = "anna",
    kind: str = "missing",
    *,
    undoes: int | None = None,
    accepted: bool | None = None,
    key: LabelKey = KEY,
) -> DecisionEvent:
    accepted = (kind != SECOND) if accepted is None else accepted
    time = START + timedelta(seconds=number)
    return DecisionEvent(number, time, by, key, value, kind, 0.5, undoes, accepted, by, f"request-{number}", 0, 0)


def pair(first: int, second: int, people: str = "ab", class_name: str = "dog") -> OpinionPair:
    key = LabelKey("train", "a.jpg", class_name)
    return OpinionPair(event(1, first, people[0], key=key), event(2, second, people[1], SECOND, key=key), None)


def reference(first: list[int], second: list[int]) -> float:
    """κ of two lists of answers, from the formula, with Python's own floats."""
    count = len(first)
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / count
    chance = sum((first.count(value) / count) * (second.count(value) / count) for value in (PRESENT, ABSENT))
    return (observed - chance) / (1 - chance)


@pytest.mark.parametrize("seed", range(5))
def test_kappa_is_that_of_the_formula(seed: int) -> None:
    random = np.random.default_rng(seed)
    first = random.integers(0, 2, 40).tolist()
    second = np.where(random.random(40) < 0.2, random.integers(0, 2, 40), first).tolist()
    total = measure_agreement(pair(a, b) for a, b in zip(first, second, strict=True)).total
    assert total.kappa is not None and total.interval is not None and total.pairs == 40
    assert total.kappa == pytest.approx(reference(first, second))
    assert total.agreed == sum(a == b for a, b in zip(first, second, strict=True))
    assert total.interval[0] < total.kappa < total.interval[1]


def test_kappa_is_undefined_without_answers_and_where_all_are_the_same() -> None:
    assert measure_agreement([]).total.kappa is None
    same = measure_agreement([pair(ABSENT, ABSENT)] * 30).total
    assert same.kappa is None and same.interval is None and same.agreed == same.pairs == 30
    assert "undefined" in describe_agreement(same)
    assert measure_agreement([pair(ABSENT, PRESENT)] * 30).total.kappa == 0, "never the same answer, as by chance"


def test_cannot_tell_is_counted_apart() -> None:
    found = measure_agreement([pair(PRESENT, PRESENT), pair(ABSENT, ABSENT), pair(UNKNOWN, ABSENT)]).total
    assert (found.pairs, found.agreed, found.unsure, found.kappa) == (2, 2, 1, 1.0)
    assert describe_agreement(found) == '2 of 2 the same, κ 1.00 (too few for an interval); 1 more with "can\'t tell"'


@pytest.mark.parametrize("yes", [0.2, 0.5])
def test_the_interval_of_kappa_holds_about_as_often_as_it_says(yes: float) -> None:
    error, random = 0.05, np.random.default_rng(0)
    shares = np.array(
        [
            [yes * error**2 + (1 - yes) * (1 - error) ** 2, error * (1 - error)],
            [error * (1 - error), yes * (1 - error) ** 2 + (1 - yes) * error**2],
        ]
    )
    true = reference_of_shares(shares)
    held = 0
    for _ in range(200):
        low, high = kappa_interval(random.multinomial(50, shares.ravel()).reshape(2, 2))
        held += low <= true <= high
    assert held >= 0.9 * 200


def reference_of_shares(shares: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    chance = float(shares.sum(0) @ shares.sum(1))
    return (float(np.trace(shares)) - chance) / (1 - chance)


def test_a_later_decision_settles_and_leaves_the_pair_as_it_was() -> None:
    events = [event(1, PRESENT), event(2, ABSENT, "ben", SECOND), event(3, ABSENT, "carl")]
    (found,) = opinion_pairs(events)
    assert not found.agrees and not found.is_open and found.settled == events[2]
    (again,) = opinion_pairs([*events, event(4, None, "carl", undoes=3)])
    assert again.is_open, "the settling decision was undone"


@pytest.mark.parametrize(
    "events",
    [
        [event(1, PRESENT, "ben", SECOND)],
        [event(1, PRESENT), event(2, ABSENT, "anna", SECOND)],
        [event(1, PRESENT), event(2, ABSENT, "ben", SECOND), event(3, None, "ben", SECOND, undoes=2, accepted=True)],
        [event(1, PRESENT), event(2, ABSENT, "ben", SECOND), event(3, None, undoes=1)],
        [event(1, PRESENT, accepted=False), event(2, ABSENT, "ben", SECOND)],
    ],
    ids=["no first", "the same person", "the second undone", "the first undone", "the first lost a conflict"],
)
def test_without_two_valid_answers_of_two_people_there_is_no_pair(events: list[DecisionEvent]) -> None:
    assert opinion_pairs(events) == []
