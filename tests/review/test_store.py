"""Decisions on disk: only appended, at once, never overwritten unknowingly; files from anybody are read or refused."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.killing import run_forked
from tests.mutations import mutations
from tests.review.hostile_stores import HOSTILE, make_hostile_store, make_store

from labelgap.core.errors import LabelGapError, RunError
from labelgap.core.files import DiskError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import database
from labelgap.review.database import FILE, recover_events
from labelgap.review.store import Decision, DecisionOutcome, DecisionStore, LabelKey, Undo, decisions, read_decisions

DOG = LabelKey("train", "a.jpg", "dog")
CAT = LabelKey("train", "a.jpg", "cat")


def said(entry: LabelKey, value: int, base_version: int = 0, request_id: str = "") -> Decision:
    return Decision(entry, value, request_id or uuid.uuid4().hex, base_version, "missing", 0.5)


def tell(store: DecisionStore, *actions: Decision | Undo, by: str = "anna") -> list[DecisionOutcome]:
    return store.append(actions, reviewer=by, client=f"{by}-window")


def values(store: DecisionStore) -> dict[LabelKey, int | None]:
    return {event.key: event.value for event in store.current()}


def test_an_undo_is_an_event_and_brings_back_what_stood_before(store: DecisionStore) -> None:
    first, second = said(DOG, PRESENT), said(DOG, ABSENT)
    tell(store, first, second)
    (outcome,) = tell(store, Undo(second.request_id, "undo-0001"))
    assert outcome.current is not None and outcome.current.value == PRESENT
    assert values(store) == {DOG: PRESENT}
    tell(store, Undo(first.request_id, "undo-0002"))
    (again,) = tell(store, Undo(first.request_id, "undo-0003"))
    assert again.status == "accepted" and values(store) == {} and len(store.events()) == 4
    (nothing,) = tell(store, Undo("nobody-said", "undo-0004"))
    (undo_of_undo,) = tell(store, Undo(3, "undo-0005"))
    assert nothing.status == undo_of_undo.status == "nothing_to_undo" and len(store.events()) == 4


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
    (agrees,) = tell(store, said(DOG, ABSENT))
    first, mind = (tell(store, said(CAT, value), by="ben")[0] for value in (PRESENT, ABSENT))
    assert agrees.status == first.status == mind.status == "accepted", "nor is changing one's own mind a conflict"


def test_a_batch_is_written_whole_or_not_at_all(store: DecisionStore) -> None:
    with pytest.raises(RunError):
        tell(store, said(DOG, PRESENT), said(CAT, 7))
    assert store.events() == [] and store.last_id() == 0


def test_a_process_that_is_killed_loses_nothing_it_had_confirmed(tmp_path: Path) -> None:
    def decide_until_killed() -> None:
        store = DecisionStore(tmp_path / FILE)
        for number in range(20):
            tell(store, said(LabelKey("train", f"{number}.jpg", "dog"), PRESENT))
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_forked(decide_until_killed) == -signal.SIGKILL
    with closing(DecisionStore(tmp_path / FILE)) as store:
        assert store.last_id() == len(decisions(tmp_path)) == 20


FORMAT_1 = "b73e9781d15d6234"
"""Of the text of the tables of format 1, which is in files of long ago: it never changes."""
EVENT = """
INSERT INTO about VALUES ('id', '0123456789abcdef0123456789abcdef');
INSERT INTO events (time, reviewer, image, split, class, value, kind, accepted, base_version, client, request_id) VALUES
('2026-01-01T00:00:00.000000+00:00', 'anna', 'a.jpg', 'train', 'dog', 1, 'missing', 1, 0, 'window-1', 'request-1');
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store that was written before there were rankings and added classes."""
    path = tmp_path / FILE
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(database._SCHEMA + EVENT)
    return path


def test_a_store_of_format_1_is_read_as_it_is_and_upgraded_when_it_is_opened_to_decide(old: Path) -> None:
    assert hashlib.sha256(database._SCHEMA.encode()).hexdigest()[:16] == FORMAT_1
    before = old.read_bytes()
    assert [revision.value for revision in decisions(old)] == [PRESENT]
    with closing(DecisionStore(old, read_only=True)) as snapshot:
        assert not snapshot.rankings() and not snapshot.classes() and snapshot.events()[0].ranking == 0
    assert old.read_bytes() == before
    for _ in range(2):
        with closing(DecisionStore(old)) as store:
            assert store.id == "0123456789abcdef0123456789abcdef"
            assert [(event.id, event.value, event.ranking) for event in store.events()] == [(1, PRESENT, 0)]
    recovered = old.with_name("recovered.sqlite")
    assert recover_events(old, recovered).kept == 1 and len(decisions(recovered)) == 1


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
    assert recover_events(tmp_path / FILE, tmp_path / "again.sqlite").kept == 2
    with closing(DecisionStore(tmp_path / "again.sqlite", read_only=True)) as again:
        assert [number for number, *_ in again.rankings()] == [1, 2, 3] and len(again.classes()) == 2
        assert (again.events()[0].ranking, again.events()[0].place) == (3, 6)


def test_classes_are_added_once_and_there_are_not_too_many(tmp_path: Path) -> None:
    with closing(DecisionStore(tmp_path / FILE)) as store:
        for name, who in (("heron", "anna"), ("wren", "ben"), ("heron", "ben")):
            store.add_class(name, who)
        assert store.classes() == ["heron", "wren"]
        with pytest.raises(RunError, match="class"):
            store.add_class("", "anna")
        for number in range(98):
            store.add_class(f"class {number}", "anna")
        with pytest.raises(RunError, match="100"):
            store.add_class("one more", "anna")
    assert len(decisions(tmp_path / FILE)) == 0


def decide(store: DecisionStore, number: int = 0, image: str = "new.jpg") -> None:
    made = Decision(LabelKey("train", f"{number}-{image}", "dog"), PRESENT, f"request-{number:06d}")
    store.append([made], reviewer="anna", client="window-1")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_store_is_refused_and_never_written_to(tmp_path: Path, name: str) -> None:
    path = make_hostile_store(tmp_path / FILE, name)
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(RunError, match=r"review\.sqlite (is damaged \(.+recover|has format 3)"):
            DecisionStore(path, read_only=read_only)
    assert path.read_bytes() == before


def test_damage_is_refused_or_harmless_and_a_damaged_file_stays_as_it_is(tmp_path: Path) -> None:
    whole = make_store(tmp_path / "whole").read_bytes()
    refused = 0
    for number, content in enumerate(mutations(whole, 80)):
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(content)
        try:
            with closing(DecisionStore(path)) as store:
                assert store.events() and store.last_events() and store.accepted()
                decide(store)
        except LabelGapError as error:
            refused += 1
            assert str(path) in str(error) and path.read_bytes() == content
    assert refused >= 40


def test_what_is_not_an_ordinary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder" / "link").symlink_to(make_store(tmp_path / "mine.sqlite"))
    for name in ("empty", "pipe", "folder", "gone", "folder/link"):
        with pytest.raises(RunError, match=name):
            DecisionStore(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


def test_a_rollback_journal_is_not_played_since_it_can_name_files_to_delete(tmp_path: Path) -> None:
    path, victim = make_store(tmp_path / FILE), tmp_path / "victim.txt"
    victim.write_text("precious")
    name = os.fsencode(victim)
    magic = bytes.fromhex("d9d505f920a163d7")
    header = magic + bytes(4) + b"abcd" + bytes(4) + (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    trailer = len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + magic
    journal = header.ljust(512, b"\0") + bytes.fromhex("40000001") + name + trailer
    (tmp_path / f"{FILE}-journal").write_bytes(journal)
    for read_only in (True, False):
        with pytest.raises(RunError, match="-journal"):
            DecisionStore(path, read_only=read_only)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(("suffix", "link"), [("-wal", os.symlink), ("-shm", os.link)])
def test_nothing_is_written_through_a_link_beside_the_store(
    tmp_path: Path, suffix: str, link: Callable[[Path, Path], None]
) -> None:
    path, victim = make_store(tmp_path / FILE), tmp_path / "victim.txt"
    victim.write_text("precious")
    link(victim, tmp_path / f"{FILE}{suffix}")
    for read_only in (True, False):
        with pytest.raises(RunError, match=suffix):
            DecisionStore(path, read_only=read_only)
    assert victim.read_text() == "precious"


def test_a_store_that_is_removed_or_replaced_takes_no_more_decisions(tmp_path: Path) -> None:
    for change in ("removed", "replaced", "without its log"):
        folder = tmp_path / change
        folder.mkdir()
        with closing(DecisionStore(folder / FILE)) as store:
            decide(store, 1)
            log = folder / f"{FILE}-wal"
            (log if change == "without its log" else folder / FILE).unlink()
            if change == "replaced":
                make_store(tmp_path / "other").rename(folder / FILE)
            for _ in range(2):
                with pytest.raises(RunError):
                    decide(store, 2)


def test_a_snapshot_does_not_change_while_others_decide(tmp_path: Path) -> None:
    path = make_store(tmp_path / FILE)
    with closing(DecisionStore(path)) as writer, closing(DecisionStore(path, read_only=True)) as snapshot:
        before = snapshot.current()
        decide(writer)
        assert snapshot.current() == before and snapshot.last_id() == writer.last_id() - 1
        assert len(read_decisions(path)) == len(before) + 1
        with pytest.raises(RunError):
            decide(snapshot)


def test_a_store_that_is_not_there_is_empty_to_a_reader_and_not_created(tmp_path: Path) -> None:
    with closing(DecisionStore(tmp_path / FILE, read_only=True)) as store:
        assert store.current() == [] and store.last_id() == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("beside", [(), ("-wal",), ("-wal", "-shm")])
def test_a_disk_that_is_read_only_can_be_read(small_disk: Path, tmp_path: Path, beside: tuple[str, ...]) -> None:
    whole = make_store(tmp_path / FILE)
    with closing(DecisionStore(whole)) as store:
        decide(store)
        for suffix in ("", *beside):  # as a killed server leaves them
            shutil.copyfile(f"{whole}{suffix}", f"{small_disk / FILE}{suffix}")
        expected = len(store.current()) - (not beside)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert len(read_decisions(small_disk)) == expected
    with pytest.raises(DiskError):
        DecisionStore(small_disk / FILE)
    with pytest.raises(DiskError):
        DecisionStore(small_disk / "new.sqlite")
    assert sorted(each.name for each in small_disk.iterdir()) == sorted(f"{FILE}{suffix}" for suffix in ("", *beside))


def test_a_store_cannot_be_created_on_a_full_disk_and_nothing_is_left(small_disk: Path) -> None:
    with suppress(OSError):
        (small_disk / "ballast").write_bytes(bytes(1_000_000))
    with pytest.raises(DiskError):
        DecisionStore(small_disk / FILE)
    assert [each.name for each in small_disk.iterdir()] == ["ballast"]


def test_from_a_hostile_store_only_valid_events_are_recovered(tmp_path: Path) -> None:
    damages = ("the thirtieth of February", "an undo of nothing", "with the last number used up")
    for name in (*damages, "a ranking for an unknown aim"):
        path = make_hostile_store(tmp_path / f"{name}.sqlite", name)
        recover_events(path, tmp_path / f"new {name}.sqlite")
        assert len(read_decisions(tmp_path / f"new {name}.sqlite")) == 29
    path = make_hostile_store(tmp_path / FILE, "a view in the place of the events")
    with pytest.raises(LabelGapError):
        recover_events(path, tmp_path / "new.sqlite")
    assert not (tmp_path / "new.sqlite").exists()


def test_text_that_would_be_refused_later_is_not_stored(tmp_path: Path) -> None:
    with closing(DecisionStore(tmp_path / FILE)) as store:
        for image in ("x" * 40_000, "\ud800"):
            with pytest.raises(LabelGapError, match=r"its image|the name"):
                decide(store, image=image)
        assert store.last_id() == 0
    assert read_decisions(tmp_path) == []


def test_two_processes_that_create_a_store_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link
    others: list[DecisionStore] = []

    def link(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", real)
        others.append(DecisionStore(target))  # the other process is first
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with closing(DecisionStore(tmp_path / FILE)) as store, closing(others[0]) as other:
        assert store.id == other.id


def test_a_busy_store_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_store(tmp_path / FILE)
    monkeypatch.setattr("labelgap.core.sqlite.TIMEOUT", 0.05)
    with closing(DecisionStore(path)) as store, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RunError):
            decide(store)
