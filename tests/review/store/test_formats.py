"""What format 2 adds to a store, and stores of format 1."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from labelgap.core.errors import RunError
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review.database import FILE, recover_events
from labelgap.review.store import SECOND, Decision, DecisionStore, LabelKey, Undo, decisions

DOG = LabelKey("train", "a.jpg", "dog")
FORMAT_1 = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time TEXT NOT NULL,
    reviewer TEXT NOT NULL,
    image TEXT NOT NULL,
    split TEXT NOT NULL,
    class TEXT NOT NULL,
    value INTEGER CHECK (value IN (1, 0, -1)),
    kind TEXT NOT NULL,
    score REAL,
    undoes INTEGER REFERENCES events (id),
    accepted INTEGER NOT NULL CHECK (accepted IN (0, 1)),
    base_version INTEGER NOT NULL,
    client TEXT NOT NULL,
    request_id TEXT NOT NULL UNIQUE,
    CHECK ((value IS NULL) = (undoes IS NOT NULL))
);
CREATE INDEX events_by_label ON events (image, class, split);
CREATE INDEX events_by_undoes ON events (undoes);
CREATE TRIGGER no_update BEFORE UPDATE ON events BEGIN SELECT RAISE (ABORT, 'events are never changed'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON events BEGIN SELECT RAISE (ABORT, 'events are never deleted'); END;
PRAGMA user_version = 1;
INSERT INTO about VALUES ('id', '0123456789abcdef0123456789abcdef');
INSERT INTO events (time, reviewer, image, split, class, value, kind, accepted, base_version, client, request_id) VALUES
('2026-01-01T00:00:00.000000+00:00', 'anna', 'a.jpg', 'train', 'dog', 1, 'missing', 1, 0, 'window-1', 'request-1');
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store that was written before there were rankings and added classes."""
    path = tmp_path / FILE
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FORMAT_1)
    return path


def test_a_store_of_format_1_is_read_as_it_is_and_upgraded_when_it_is_opened_to_decide(old: Path) -> None:
    before = old.read_bytes()
    assert [revision.value for revision in decisions(old)] == [PRESENT]
    with closing(DecisionStore(old, read_only=True)) as snapshot:
        assert not snapshot.rankings() and not snapshot.classes() and snapshot.events()[0].ranking == 0
    assert old.read_bytes() == before
    for _ in range(2):
        with closing(DecisionStore(old)) as store:
            assert store.id == "0123456789abcdef0123456789abcdef"
            assert [(event.id, event.value, event.ranking) for event in store.events()] == [(1, PRESENT, 0)]
    before = old.with_name("recovered.sqlite")
    assert recover_events(old, before).kept == 1 and len(decisions(before)) == 1


def test_rankings_are_numbered_kept_equal_and_recovered_one_by_one(tmp_path: Path) -> None:
    with closing(DecisionStore(tmp_path / FILE)) as store:
        numbers = [
            store.add_ranking("missing", "aa", 10, 12),
            store.add_ranking("classifier", "aa", 10, 12),
            store.add_ranking("missing", "aa", 10, 12),
            store.add_ranking("missing", "bb", 20, 25),
        ]
        assert numbers == [1, 2, 1, 3]
        assert store.rankings() == [
            (1, "missing", "aa", 10, 12),
            (2, "classifier", "aa", 10, 12),
            (3, "missing", "bb", 20, 25),
        ]
        made = Decision(DOG, PRESENT, "request-1", 0, "random", 0.1, ranking=3, place=6)
        store.append([made, Undo("request-1", "request-2")], reviewer="anna", client="w")
        assert [(event.kind, event.ranking, event.shown) for event in store.events()] == [("random", 3, 6)] * 2
        for name in ("heron", "wren"):
            store.add_class(name, "anna")
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute("DROP TRIGGER no_ranking_update")
        connection.execute("UPDATE rankings SET aim = 'fame' WHERE number = 2")
        trigger = "CREATE TRIGGER no_ranking_update BEFORE UPDATE ON rankings"
        connection.execute(f"{trigger} BEGIN SELECT RAISE (ABORT, 'never changed'); END")
        connection.commit()
    with pytest.raises(RunError, match="row 2 of its rankings"):
        DecisionStore(tmp_path / FILE)
    assert recover_events(tmp_path / FILE, tmp_path / "again.sqlite").kept == 2
    with closing(DecisionStore(tmp_path / "again.sqlite", read_only=True)) as again:
        assert [number for number, *_ in again.rankings()] == [1, 3] and len(again.classes()) == 2
        assert (again.events()[0].ranking, again.events()[0].place) == (3, 6)


def test_a_second_opinion_is_stored_and_never_in_force(tmp_path: Path) -> None:
    with closing(DecisionStore(tmp_path / FILE)) as store:
        store.append([Decision(DOG, PRESENT, "request-1")], reviewer="anna", client="w-1")
        second = Decision(DOG, ABSENT, "request-2", 0, SECOND)
        outcomes = [store.append([second], reviewer="ben", client="w-2")[0] for _ in range(2)]
        assert [outcome.status for outcome in outcomes] == ["accepted", "accepted"]
        assert [(event.reviewer, event.value) for event in store.current()] == [("anna", PRESENT)]
        assert [(event.kind, event.accepted) for event in store.events()] == [("other", True), (SECOND, False)]
    with closing(DecisionStore(tmp_path / FILE)) as store:  # it passes the checks of a store that is opened
        assert len(store.events()) == 2


def test_classes_are_added_once_and_there_are_not_too_many(tmp_path: Path) -> None:
    with closing(DecisionStore(tmp_path / FILE)) as store:
        for name, who in (("heron", "anna"), ("wren", "ben"), ("heron", "ben")):
            store.add_class(name, who)
        assert [(each.name, each.reviewer) for each in store.classes()] == [("heron", "anna"), ("wren", "ben")]
        with pytest.raises(RunError, match="its class is empty or too long"):
            store.add_class("", "anna")
        for number in range(98):
            store.add_class(f"class {number}", "anna")
        with pytest.raises(RunError, match="100 added classes"):
            store.add_class("one more", "anna")
    assert len(decisions(tmp_path / FILE)) == 0
