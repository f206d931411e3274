"""Decisions on disk: only appended, on the disk at once, and never overwritten by somebody who had not seen them."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import uuid
from pathlib import Path

import pytest
from tests.killing import run_forked

from labelgap.core.errors import RunError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review.database import FILE
from labelgap.review.store import Decision, DecisionOutcome, DecisionStore, LabelKey, Undo, decisions

DOG = LabelKey("train", "a.jpg", "dog")
CAT = LabelKey("train", "a.jpg", "cat")
OWL = LabelKey("val", "b.jpg", "owl")


def said(entry: LabelKey, value: int, base_version: int = 0, request_id: str = "") -> Decision:
    return Decision(entry, value, request_id or uuid.uuid4().hex, base_version, "missing", 0.5)


def tell(store: DecisionStore, *actions: Decision | Undo, by: str = "anna") -> list[DecisionOutcome]:
    return store.append(actions, reviewer=by, client=f"{by}-window")


@pytest.fixture
def store(tmp_path: Path) -> DecisionStore:
    return DecisionStore(tmp_path / FILE)


def values(store: DecisionStore) -> dict[LabelKey, int | None]:
    return {event.key: event.value for event in store.current()}


def test_the_last_decision_stands_and_all_are_kept(store: DecisionStore) -> None:
    tell(store, said(DOG, PRESENT), said(CAT, ABSENT), said(OWL, UNKNOWN))
    tell(store, said(DOG, ABSENT))
    assert values(store) == {DOG: ABSENT, CAT: ABSENT, OWL: UNKNOWN}
    assert [event.value for event in store.events()] == [PRESENT, ABSENT, UNKNOWN, ABSENT]
    store.close()


def test_an_undo_is_an_event_and_brings_back_what_stood_before(store: DecisionStore) -> None:
    first, second = said(DOG, PRESENT), said(DOG, ABSENT)
    tell(store, first, second)
    (outcome,) = tell(store, Undo(second.request_id, "undo-0001"))
    assert outcome.current is not None and outcome.current.value == PRESENT
    assert values(store) == {DOG: PRESENT}
    tell(store, Undo(first.request_id, "undo-0002"))
    assert values(store) == {} and len(store.events()) == 4
    (again,) = tell(store, Undo(first.request_id, "undo-0003"))
    assert again.status == "accepted" and len(store.events()) == 4
    (nothing,) = tell(store, Undo("nobody-said", "undo-0004"))
    (undo_of_undo,) = tell(store, Undo(3, "undo-0005"))
    assert nothing.status == undo_of_undo.status == "nothing_to_undo" and len(store.events()) == 4
    store.close()


def test_who_had_not_seen_another_decision_is_told_and_both_are_kept(store: DecisionStore) -> None:
    tell(store, said(DOG, PRESENT))
    (outcome,) = tell(store, said(DOG, ABSENT, base_version=0), by="ben")
    assert outcome.status == "conflict"
    assert outcome.current is not None and (outcome.current.reviewer, outcome.current.value) == ("anna", PRESENT)
    assert values(store) == {DOG: PRESENT} and [event.accepted for event in store.events()] == [True, False]

    (meant,) = tell(store, said(DOG, ABSENT, base_version=outcome.current.id), by="ben")
    assert meant.status == "accepted" and values(store) == {DOG: ABSENT} and len(store.events()) == 3
    (stale,) = tell(store, said(DOG, UNKNOWN, base_version=1))
    assert stale.status == "conflict" and values(store) == {DOG: ABSENT}
    store.close()


def test_agreeing_unseen_is_no_conflict_nor_is_changing_ones_own_mind(store: DecisionStore) -> None:
    tell(store, said(DOG, PRESENT))
    (agrees,) = tell(store, said(DOG, PRESENT), by="ben")
    (changes,) = tell(store, said(CAT, PRESENT), by="ben")
    (mind,) = tell(store, said(CAT, ABSENT, base_version=0), by="ben")
    assert agrees.status == changes.status == mind.status == "accepted"
    store.close()


def test_a_batch_is_written_whole_or_not_at_all(store: DecisionStore) -> None:
    with pytest.raises(RunError, match="cannot be used"):
        tell(store, said(DOG, PRESENT), said(CAT, 7))
    assert store.events() == [] and store.last_id() == 0
    store.close()


def test_a_process_that_is_killed_loses_nothing_it_had_confirmed(tmp_path: Path) -> None:
    def decide_until_killed() -> None:
        store = DecisionStore(tmp_path / FILE)
        for number in range(20):
            tell(store, said(LabelKey("train", f"{number}.jpg", "dog"), PRESENT))
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_forked(decide_until_killed) == -signal.SIGKILL
    assert len(decisions(tmp_path)) == 20
    store = DecisionStore(tmp_path / FILE)
    assert store.last_id() == 20
    store.close()


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    stores = [DecisionStore(tmp_path / FILE) for _ in range(3)]

    def write(store: DecisionStore, name: str) -> None:
        for number in range(20):
            tell(store, said(LabelKey("train", f"{name}-{number}.jpg", "dog"), PRESENT), by=name)

    threads = [threading.Thread(target=write, args=(store, f"w{at}")) for at, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decisions(tmp_path)) == 60
    assert [event.id for event in stores[0].events()] == list(range(1, 61))
    for store in stores:
        store.close()


def test_decisions_are_revisions_of_a_person(store: DecisionStore) -> None:
    wrong = said(CAT, PRESENT)
    tell(store, said(DOG, PRESENT), wrong, said(OWL, UNKNOWN))
    tell(store, said(DOG, ABSENT, base_version=0), by="ben")
    tell(store, Undo(wrong.request_id, "undo-0001"))
    made = decisions(store.path.parent)
    assert [(r.image, r.class_name, r.value, r.source, r.author) for r in made] == [
        ("a.jpg", "dog", PRESENT, "review", "anna"),
        ("b.jpg", "owl", UNKNOWN, "review", "anna"),
    ]
    assert made[0].time is not None and made[0].time.tzinfo is not None
    assert len(decisions(store.path, "val")) == 1 and len(decisions(store.path.parent / "nowhere")) == 0
    store.close()


def test_a_file_of_another_kind_or_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_bytes(b"this is no database, it is a text" * 40)
    with pytest.raises(RunError, match=r"a\.sqlite"):
        DecisionStore(tmp_path / "a.sqlite")
    with pytest.raises(RunError, match=r"a\.sqlite"):
        decisions(tmp_path / "a.sqlite")
    connection = sqlite3.connect(tmp_path / "b.sqlite")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(RunError, match="format 9"):
        DecisionStore(tmp_path / "b.sqlite")
    with pytest.raises(RunError, match="format 9"):
        decisions(tmp_path / "b.sqlite")
