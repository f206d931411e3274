from __future__ import annotations

import os
import pickle
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from labelgap.core import files
from labelgap.core.errors import InputError, RunError
from labelgap.core.files import DiskError, atomic_path, make_folder, remove_partials, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_file_takes_the_place_of_the_old_one_with_the_rights_of_any_new_file(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 120 + ".npz")
    before = os.umask(0o027)
    try:
        for values in (np.arange(3), np.arange(4)):
            with atomic_path(target) as temporary:
                assert temporary.parent == target.parent and temporary.name.startswith(".éé")
                np.savez(temporary, loss=values)
    finally:
        assert os.umask(before) == 0o027
    with np.load(target) as stored:
        assert stored["loss"].tolist() == [0, 1, 2, 3]
    assert names(tmp_path) == [target.name] and stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize("failure", [RuntimeError, OSError, InputError, KeyboardInterrupt, SystemExit])
def test_a_failing_writer_leaves_the_old_file_and_its_own_error(tmp_path: Path, failure: type[BaseException]) -> None:
    target, error = tmp_path / "a.txt", failure("no")
    target.write_text("old")
    with pytest.raises(failure) as caught, atomic_path(target) as temporary:
        temporary.write_text("ne")
        raise error
    assert caught.value is error and target.read_text() == "old" and names(tmp_path) == ["a.txt"]


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


def test_what_is_not_an_ordinary_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    kinds = ("folder", "link", "loop", "pipe")
    for name in kinds:
        with pytest.raises(InputError, match=name):
            write_text(tmp_path / name, "x")
    with pytest.raises(InputError, match="nowhere"):
        write_text(tmp_path / "nowhere" / "a.txt", "")
    assert names(tmp_path) == sorted(kinds) and (tmp_path / "pipe").is_fifo()
    with pytest.raises(RunError, match="folder"):
        files.remove_file(tmp_path / "folder")
    files.remove_file(tmp_path / "never-there")


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """A limit that the system keeps: a longer file is refused as by a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


NUMBERS = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.txt": lambda path: path.write_text("x" * 200_000),
    "a.npy": lambda path: np.save(path, NUMBERS),
    "a.npz": lambda path: np.savez(path, a=NUMBERS),
    "a.pt": lambda path: torch.save({"a": torch.from_numpy(NUMBERS)}, path),
    "a.safetensors": lambda path: safetensors.torch.save_file({"a": torch.from_numpy(NUMBERS)}, path),
    "a.parquet": lambda path: pq.write_table(pa.table({"a": NUMBERS}), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_error_whoever_writes_and_the_old_file_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("old")
    with pytest.raises(DiskError) as caught, no_file_larger_than(100_000), atomic_path(tmp_path / name) as temporary:
        WRITERS[name](temporary)
    error = caught.value
    assert isinstance(error, RunError) and isinstance(error, OSError) and error.exit_code == 2 and error.full
    assert str(tmp_path / name) in str(error) and "(file too large)" in str(error)
    assert (tmp_path / name).read_text() == "old" and names(tmp_path) == [name]
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.problem == error.problem


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can take on another user's rights")
def test_a_folder_that_may_not_be_written_to_is_a_disk_error(tmp_path: Path) -> None:
    for folder in (tmp_path, *[place for place in tmp_path.parents if "pytest-" in str(place)]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(DiskError, match=r"a\.txt: permission denied"):
            write_text(tmp_path / "a.txt", "")
        with pytest.raises(DiskError, match="permission denied") as caught:
            make_folder(tmp_path / "deep" / "er")
    finally:
        os.seteuid(0)
    assert not caught.value.full and names(tmp_path) == []


def test_there_is_a_whole_file_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last, before = tmp_path / "a", tmp_path / "b"
    last.write_text("one")
    replace, seen = Path.replace, []

    def watched(self: Path, target: Path) -> Path:
        seen.append([path.read_text() for path in (last, before) if path.exists()])
        moved = replace(self, target)
        seen.append([path.read_text() for path in (last, before) if path.exists()])
        return moved

    with monkeypatch.context() as patch, atomic_path(last, previous=before) as temporary:
        patch.setattr(Path, "replace", watched)
        temporary.write_text("two")
    assert seen == [["one"], ["one"], ["one"], ["two", "one"]]
    with pytest.raises(ValueError), atomic_path(last, previous=before):
        raise ValueError
    assert last.read_text() == "two" and before.read_text() == "one" and names(tmp_path) == ["a", "b"]


def test_only_what_killed_writers_left_is_removed_and_only_when_it_is_old(tmp_path: Path) -> None:
    left = tmp_path / ".last-0123456789abcdef.partial.pt"
    mine = [".last.partial.pt", "last-0123456789abcdef.partial.pt", ".last-0123.partial.pt", "a.partial"]
    for name in [left.name, *mine]:
        (tmp_path / name).write_text("")
    remove_partials(tmp_path, older_than=60)
    assert left.exists()
    os.utime(left, (1e9, 1e9))
    remove_partials(tmp_path, older_than=60)
    assert names(tmp_path) == sorted(mine)
    remove_partials(tmp_path / "nowhere")
