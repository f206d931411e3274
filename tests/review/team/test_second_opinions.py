"""Which labels are asked of two people, and the pairs that follow the store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review.store import SECOND, Decision, DecisionStore, LabelKey, Undo
from labelgap.review.team import SecondOpinions, count_people, is_doubled

IDS = np.random.default_rng(1).integers(0, 2**64, 50_000, dtype=np.uint64)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionStore]:
    with closing(DecisionStore(tmp_path / "review.sqlite")) as made:
        yield made


def label(number: int) -> LabelKey:
    return LabelKey("train", f"{number}.jpg", "dog")


def answer(store: DecisionStore, number: int, value: int, by: str, kind: str = "missing", seen: int = 0) -> str:
    request = uuid.uuid4().hex
    outcome = store.append([Decision(label(number), value, request, seen, kind)], reviewer=by, client=by)[0]
    assert outcome.status == "accepted"
    return request


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_the_share_is_that_which_was_asked_for(share: float) -> None:
    deviation = 4 * np.sqrt(share * (1 - share) / len(IDS))
    assert abs(is_doubled(IDS, "store", share).mean() - share) <= deviation


def test_the_labels_are_the_same_everywhere_and_others_in_another_store() -> None:
    chosen = is_doubled(IDS, "store", 0.05)
    assert np.array_equal(is_doubled(IDS[::-1], "store", 0.05)[::-1], chosen)
    assert np.flatnonzero(chosen)[:3].tolist() == [16, 20, 31], "the same in every version and on every machine"
    other = is_doubled(IDS, "another", 0.05)
    assert 0.03 < (chosen & other).sum() / chosen.sum() < 0.07, "independent"
    assert not (chosen & ~is_doubled(IDS, "store", 0.1)).any(), "a larger share contains a smaller one"


def test_pairs_follow_the_store_and_are_the_same_after_a_restart(store: DecisionStore) -> None:
    opinions = SecondOpinions(store)
    assert opinions.pairs() == [] and opinions.answered() == set()
    answer(store, 1, PRESENT, "anna")
    answer(store, 2, ABSENT, "anna")
    request = answer(store, 1, ABSENT, "ben", SECOND)
    answer(store, 2, ABSENT, "carl", SECOND)
    assert [pair.people for pair in opinions.pairs()] == [("anna", "ben"), ("anna", "carl")]
    assert [pair.first.key for pair in opinions.pairs() if pair.is_open] == [label(1)]
    assert SecondOpinions(store).pairs() == opinions.pairs() and opinions.answered() == {label(1), label(2)}
    store.append([Undo(request, uuid.uuid4().hex)], reviewer="ben", client="ben")
    assert opinions.answered() == {label(2)} == SecondOpinions(store).answered()
    assert not any(pair.is_open for pair in opinions.pairs())


def test_a_second_opinion_is_never_in_force_and_a_decision_settles(store: DecisionStore) -> None:
    opinions = SecondOpinions(store)
    answer(store, 1, PRESENT, "anna")
    answer(store, 1, ABSENT, "ben", SECOND)
    first = store.current_for(label(1))
    assert first is not None and first.reviewer == "anna" and [pair.is_open for pair in opinions.pairs()] == [True]
    answer(store, 1, ABSENT, "carl", seen=first.id)
    assert not any(pair.is_open for pair in opinions.pairs()) and not opinions.pairs()[0].agrees
    in_force = store.current_for(label(1))
    assert in_force is not None and in_force.reviewer == "carl" and in_force.value == ABSENT


def test_people_are_counted_by_what_they_decided_and_answered(store: DecisionStore) -> None:
    for number in range(6):
        answer(store, number, PRESENT, "anna")
    request = answer(store, 6, PRESENT, "anna")
    store.append([Undo(request, uuid.uuid4().hex)], reviewer="anna", client="anna")
    answer(store, 0, ABSENT, "ben", SECOND)
    answer(store, 7, ABSENT, "ben")
    anna, ben = count_people(store.events(), store.current())
    assert (anna.name, anna.decided, anna.answers, anna.second) == ("anna", 6, 7, 0)
    assert (ben.name, ben.decided, ben.answers, ben.second) == ("ben", 1, 2, 1)
    assert anna.per_minute is None, "milliseconds of work are too little for a speed"
