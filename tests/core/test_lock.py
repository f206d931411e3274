from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from labelgap.core.errors import RunError
from labelgap.core.lock import LOCK_FILE, lock_folder

HOLD = """
import sys, os
from pathlib import Path
from labelgap.core.lock import lock_folder
with lock_folder(Path(sys.argv[1]), "training"):
    if sys.argv[2] == "fork":
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, b"started")
            sys.stdin.read()  # a worker that outlives its parent
            os._exit(0)
        os.read(reader, 7)
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(folder: Path, mode: str = "plain") -> subprocess.Popen[str]:
    """Start a process that holds the lock of a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    with hold(tmp_path) as holder:
        message = rf"in use by another process \(training, process {holder.pid}, since "
        with pytest.raises(RunError, match=message), lock_folder(tmp_path, "auditing"):
            pass
        holder.communicate("")
    with lock_folder(tmp_path, "auditing"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["plain", "fork"])
def test_the_lock_of_a_killed_process_is_free_at_once_though_its_workers_live(tmp_path: Path, mode: str) -> None:
    with hold(tmp_path, mode) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
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


RACE = """
import sys
from pathlib import Path
from labelgap.core.lock import lock_folder
folder = Path(sys.argv[1])
for _ in range(50):
    with lock_folder(folder / "shared", "counting", wait=600):
        count = int((folder / "count").read_text())
        (folder / "count").write_text(str(count + 1))
"""


def test_no_update_is_lost_while_three_processes_take_and_remove_the_lock(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    workers = [subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path)]) for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "150"
    assert not (tmp_path / "shared" / LOCK_FILE).exists()
