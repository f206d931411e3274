from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labelgap.core.errors import InputError
from labelgap.core.files import atomic_path, write_bytes, write_json, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failing_writer_leaves_the_old_file_and_no_litter(tmp_path: Path, failure: type[BaseException]) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(failure), atomic_path(target) as temporary:
        temporary.write_text("ne")
        raise failure
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_failing_writer_leaves_nothing_where_nothing_was(tmp_path: Path) -> None:
    with pytest.raises(ValueError), atomic_path(tmp_path / "a.txt"):
        raise ValueError
    assert names(tmp_path) == []


HALF = """
import sys, time
from labelgap.core.files import atomic_path
with atomic_path(sys.argv[1]) as temporary, temporary.open("w") as file:
    file.write("half of what is n")
    file.flush()
    print("half", flush=True)
    time.sleep(60)
    file.write("ew")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_a_process_killed_in_the_middle_leaves_the_old_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with subprocess.Popen([sys.executable, "-c", HALF, str(target)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    (left,) = [path for path in tmp_path.iterdir() if path != target]
    assert left.name.startswith(".a-")
    assert left.name.endswith(".partial.txt")
    write_text(target, "new")
    assert target.read_text() == "new"


def test_the_temporary_name_is_hidden_beside_the_target_and_keeps_the_suffix(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "traces.npz") as temporary:
        assert temporary.parent == tmp_path.resolve()
        assert temporary.name.startswith(".traces-")
        assert ".partial" in temporary.name
        np.savez(temporary, loss=np.arange(3))
    with np.load(tmp_path / "traces.npz") as stored:
        assert stored["loss"].tolist() == [0, 1, 2]
    assert names(tmp_path) == ["traces.npz"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as first, atomic_path(tmp_path / "a") as second:
        first.write_text("first")
        second.write_text("second")
        assert first != second
    assert (tmp_path / "a").read_text() == "first"
    assert names(tmp_path) == ["a"]


def test_a_long_name_still_has_room_for_a_temporary_one(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 120 + ".txt")
    write_text(target, "whole")
    assert target.read_text() == "whole"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_a_new_file_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "whole")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_link_stays_a_link_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert names(real.parent) == ["real.txt"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.txt cannot be written: the folder .*nowhere does not exist"):
        write_text(tmp_path / "nowhere" / "a.txt", "")


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError):
        write_text(tmp_path / "a", "")
    assert names(tmp_path) == ["a"]


def test_text_is_written_as_utf_8_and_bytes_as_they_are(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "élan\n漢\r\n")
    assert (tmp_path / "a").read_bytes() == "élan\n漢\r\n".encode()
    write_bytes(tmp_path / "a", b"\x00\xff")
    assert (tmp_path / "a").read_bytes() == b"\x00\xff"


def test_json_is_indented_readable_and_ends_with_a_line(tmp_path: Path) -> None:
    write_json(str(tmp_path / "a.json"), {"name": "élan", "values": [1, None]})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert text == '{\n  "name": "élan",\n  "values": [\n    1,\n    null\n  ]\n}\n'
    assert json.loads(text) == {"name": "élan", "values": [1, None]}


def test_what_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert (tmp_path / "a.json").read_text() == "1\n"
    assert names(tmp_path) == ["a.json"]
