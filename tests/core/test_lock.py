from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.killing import start_forked, wait_forked
from tests.waiting import PATIENCE

from labelgap.core.errors import RunError
from labelgap.core.lock import LOCK_FILE, lock_folder


@pytest.mark.parametrize("with_worker", [False, True])
def test_a_holder_is_named_and_its_lock_is_free_once_it_is_killed(tmp_path: Path, with_worker: bool) -> None:
    reading, writing = os.pipe()

    def hold() -> None:
        with lock_folder(tmp_path, "training"):
            if with_worker and os.fork() == 0:
                time.sleep(PATIENCE)  # it outlives its parent
            os.write(writing, b"held")
            time.sleep(PATIENCE)

    holder = start_forked(hold)
    assert os.read(reading, 4) == b"held"
    with pytest.raises(RunError, match=rf"\(training, process {holder}, since "), lock_folder(tmp_path, "auditing"):
        pass
    os.kill(holder, signal.SIGKILL)
    wait_forked(holder)
    assert (tmp_path / LOCK_FILE).exists()
    with lock_folder(tmp_path, "training"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_thread_waits_for_another_one_of_the_same_process(tmp_path: Path) -> None:
    entered, release, order = threading.Event(), threading.Event(), []

    def first() -> None:
        with lock_folder(tmp_path, "training"):
            entered.set()
            release.wait()
            order.append("first")

    thread = threading.Thread(target=first, daemon=True)
    thread.start()
    entered.wait()
    with pytest.raises(RunError, match="in use"), lock_folder(tmp_path, "training"):
        pass
    threading.Timer(0.05, release.set).start()
    with lock_folder(tmp_path, "training", wait=600):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_folder_that_was_made_for_the_lock_and_stayed_empty_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ValueError), lock_folder(tmp_path / "new" / "run", "training"):
        raise ValueError
    assert not (tmp_path / "new").exists()
    with lock_folder(tmp_path / "new" / "run", "training"):
        (tmp_path / "new" / "run" / "config.json").write_text("{}")
    assert [path.name for path in (tmp_path / "new" / "run").iterdir()] == ["config.json"]


def test_a_file_in_place_of_the_folder_and_a_link_in_place_of_the_lock_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    for folder in (tmp_path / "run", tmp_path / "run" / "inner"):
        with pytest.raises(RunError, match="cannot be created"), lock_folder(folder, "training"):
            pass
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "run")
    with pytest.raises(RunError, match="cannot be locked"), lock_folder(tmp_path, "training"):
        pass
    assert (tmp_path / "run").read_text() == "a file"


def test_no_update_is_lost_while_three_processes_take_and_remove_the_lock(tmp_path: Path) -> None:
    def add() -> None:
        for _ in range(50):
            with lock_folder(tmp_path / "shared", "counting", wait=PATIENCE):
                count = int((tmp_path / "count").read_text())
                (tmp_path / "count").write_text(str(count + 1))

    (tmp_path / "count").write_text("0")
    workers = [start_forked(add) for _ in range(3)]
    assert [wait_forked(worker) for worker in workers] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "150"
    assert not (tmp_path / "shared" / LOCK_FILE).exists()
