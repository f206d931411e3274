"""``review.sqlite`` from anybody, damaged, on a disk that is read-only or full: read or refused, never made worse."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.mutations import mutations
from tests.review.store.hostile_stores import HOSTILE, make_hostile_store, make_store

from labelgap.core.errors import LabelGapError, RunError
from labelgap.core.files import DiskError
from labelgap.labels.codes import PRESENT
from labelgap.review.database import FILE, recover_events
from labelgap.review.store import Decision, DecisionStore, LabelKey, read_decisions


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
    for name, message in {"empty": "is empty", "pipe": "ordinary", "folder": "ordinary", "gone": "not exist"}.items():
        with pytest.raises(RunError, match=message):
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
        with pytest.raises(RunError, match="-journal was not made by labelgap"):
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
        with pytest.raises(RunError, match=f"{suffix} was not made by labelgap"):
            DecisionStore(path, read_only=read_only)
    assert victim.read_text() == "precious"


def test_a_store_elsewhere_is_not_written_to_through_a_link(tmp_path: Path) -> None:
    mine = make_store(tmp_path / "mine.sqlite")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / FILE).symlink_to(mine)
    with pytest.raises(RunError, match=r"is a link to .+mine\.sqlite"):
        DecisionStore(tmp_path / "foreign" / FILE)


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
                with pytest.raises(RunError, match="removed or replaced"):
                    decide(store, 2)


def test_a_snapshot_does_not_change_while_others_decide(tmp_path: Path) -> None:
    path = make_store(tmp_path / FILE)
    with closing(DecisionStore(path)) as writer, closing(DecisionStore(path, read_only=True)) as snapshot:
        before = snapshot.current()
        decide(writer)
        assert snapshot.current() == before and snapshot.last_id() == writer.last_id() - 1
        assert len(read_decisions(path)) == len(before) + 1
        with pytest.raises(RunError, match="read only"):
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
    with pytest.raises(DiskError, match="review the copy"):
        DecisionStore(small_disk / FILE)
    with pytest.raises(DiskError, match="review the copy"):
        DecisionStore(small_disk / "new.sqlite")
    assert sorted(each.name for each in small_disk.iterdir()) == sorted(f"{FILE}{suffix}" for suffix in ("", *beside))


def test_a_store_cannot_be_created_on_a_full_disk_and_nothing_is_left(small_disk: Path) -> None:
    with suppress(OSError):
        (small_disk / "ballast").write_bytes(bytes(1_000_000))
    with pytest.raises(DiskError, match="the disk is full"):
        DecisionStore(small_disk / FILE)
    assert [each.name for each in small_disk.iterdir()] == ["ballast"]


def test_what_can_still_be_read_is_recovered(tmp_path: Path) -> None:
    path = make_store(tmp_path / FILE, decided=300)
    whole = {revision.image for _, revision in read_decisions(path)}
    content = bytearray(path.read_bytes())
    page = next(
        at for at in range(4096 * 4, len(content), 4096) if content[at] == 13 and b"0.jpg" in content[at:][:4096]
    )
    content[page : page + 4096] = random.Random(0).randbytes(4096)
    path.write_bytes(content)
    with pytest.raises(RunError, match=f"labelgap revisions {tmp_path} recover"):
        read_decisions(path)
    result = recover_events(path, tmp_path / "new.sqlite")
    found = {revision.image for _, revision in read_decisions(tmp_path / "new.sqlite")}
    assert result.kept + result.lost == 301 and result.lost > 0 and len(found) > 150
    assert found <= whole | {"2.jpg"}, "the undo of 2.jpg may be lost"
    assert path.read_bytes() == content
    with pytest.raises(LabelGapError, match="already exists"):
        recover_events(path, tmp_path / "new.sqlite")


def test_from_a_hostile_store_only_valid_events_are_recovered(tmp_path: Path) -> None:
    for name in ("the thirtieth of February", "an undo of nothing", "with the last number used up"):
        path = make_hostile_store(tmp_path / f"{name}.sqlite", name)
        recover_events(path, tmp_path / f"new {name}.sqlite")
        assert len(read_decisions(tmp_path / f"new {name}.sqlite")) == 29
    path = make_hostile_store(tmp_path / FILE, "a view in the place of the events")
    with pytest.raises(LabelGapError, match="not those of a review"):
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
    monkeypatch.setattr("labelgap.review.database._TIMEOUT", 0.05)
    with closing(DecisionStore(path)) as store, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RunError, match="another process"):
            decide(store)
