"""The feature cache: what finds an entry, what it survives, and what it never does."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.training.features.forkserver import FORKS
from tests.training.features.tiny_backbone import BATCH, WIDTH, Tiny, expected, features, pictures, slowly
from torch import Tensor

from labelgap.core.cache_entries import list_entries
from labelgap.data.images import ArrayImages
from labelgap.training.features import cache as feature_file
from labelgap.training.features.extract import extract_features

ROWS = 24
WAITING = "another process computes the same features: waiting for it"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(feature_file, "_SAID", set())
    monkeypatch.setattr("labelgap.core.cache_entries._HELD", set())
    return tmp_path / "cache" / "features"


class Slow:
    """A process that computes features slowly. It is forked from one that has imported everything already."""

    def __init__(self, cache: Path, seconds: float = 0.1, mark_every: float = 30.0) -> None:
        self.told, theirs = FORKS.Pipe(duplex=False)
        arguments = (theirs, str(cache.parent), ROWS, seconds, mark_every)
        self.process = FORKS.Process(target=slowly, args=arguments)
        self.process.start()
        theirs.close()

    def until(self, word: object, count: int = 1) -> None:
        """Wait until it has told something so often."""
        while count:
            assert self.told.poll(60), "it says nothing"
            count -= self.told.recv() == word

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        assert self.process.exitcode == -signal.SIGKILL
        self.told.close()

    def done(self) -> tuple[int, int]:
        """How many batches it computed, and the checksum of its features."""
        while not isinstance(told := self.told.recv(), tuple):
            pass
        self.process.join()
        self.told.close()
        assert self.process.exitcode == 0
        return told


def kept(cache: Path) -> list[str]:
    return sorted(path.suffix for path in cache.iterdir())


def test_features_are_computed_once_and_are_what_the_formula_says(cache: Path) -> None:
    images, network = pictures(10), Tiny()
    told: list[int] = []
    first = features(images, network, advance=told.append)
    assert first == pytest.approx(expected(images), rel=1e-5, abs=1e-6)
    assert told == [0, 4, 4, 2] and network.batches == 3 and not network.training
    again = features(images, network, advance=told.append)
    assert np.array_equal(first, again) and again.flags.writeable and network.batches == 3
    assert sum(told) == 20
    assert kept(cache) == [".json", ".npy"]
    (entry,) = list_entries(cache)
    about = {"data": "ArrayImages", "images": 10, "rows": 10, "backbone": "Tiny", "size": 4, "precision": "float32"}
    assert about.items() <= entry.about.items() and entry.whole
    assert np.array_equal(np.load(entry.path), first)


def test_an_entry_is_found_by_images_transform_network_weights_and_precision(cache: Path) -> None:
    class Other(Tiny):
        pass

    images = pictures(8)
    features(images, Tiny())
    changed: list[tuple[ArrayImages, Tiny, dict[str, str]]] = [
        (pictures(8, seed=1), Tiny(), {}),
        (images.select(np.arange(7, -1, -1)), Tiny(), {}),
        (images, Tiny(weight=1.0001), {}),
        (images, Other(), {}),
        (images, Tiny(size=5), {}),
        (images, Tiny(), {"transform": "crop"}),
        (images, Tiny(), {"precision": "bf16"}),
    ]
    for number, (source, network, options) in enumerate(changed, start=2):
        features(source, network, **options)
        assert network.batches == 2 and len(list(cache.glob("*.npy"))) == number
    for source, network, options in changed:
        features(source, network, **options)
        assert network.batches == 2
    network = Tiny()
    features(ArrayImages(images.array, names="abcdefgh"), network)
    assert network.batches == 0, "names decide nothing"


def test_inputs_of_ones_own_are_used(cache: Path) -> None:
    class Ones:
        def __len__(self) -> int:
            return 6

        def batches(
            self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
        ) -> Iterator[tuple[Tensor, Tensor]]:
            assert rows is not None and epoch is None
            for part in torch.split(torch.from_numpy(rows), batch_size):
                yield part, torch.ones(len(part), 1, 4, 4)

    found = features(pictures(6), Tiny(), inputs=Ones(), transform="ones")
    assert found == pytest.approx(np.tile(np.linspace(0.5, 1.5, WIDTH), (6, 1)))


def test_no_images_have_no_features_and_no_entry(cache: Path) -> None:
    assert features(pictures(1).select([]), Tiny()).shape == (0, WIDTH) and not cache.exists()


def test_a_killed_computation_goes_on_where_it_was(cache: Path) -> None:
    slow = Slow(cache, mark_every=0.0)
    slow.until("batch", 5)
    slow.kill()
    assert kept(cache) == [".json", ".partial"]
    (entry,) = list_entries(cache)
    assert not entry.whole and entry.about["rows"] == 4 * BATCH and entry.about["images"] == ROWS
    batches, checksum = Slow(cache, seconds=0.0).done()
    assert batches == 2, "the rows before the kill were computed again"
    assert kept(cache) == [".json", ".npy"]
    assert checksum == zlib.crc32(features(pictures(ROWS), Tiny()).tobytes())
    assert np.load(next(cache.glob("*.npy"))) == pytest.approx(expected(pictures(ROWS)), rel=1e-5, abs=1e-6)


def test_a_computation_that_fails_goes_on_where_it_was(cache: Path) -> None:
    class Failing(Tiny):
        fails = True

        def feature_maps(self, images: Tensor) -> Tensor:
            if self.fails and self.batches == 3:
                raise KeyboardInterrupt
            return super().feature_maps(images)

    network = Failing()
    with pytest.raises(KeyboardInterrupt):
        features(pictures(ROWS), network)
    network.fails = False
    assert features(pictures(ROWS), network) == pytest.approx(expected(pictures(ROWS)), rel=1e-5, abs=1e-6)
    assert network.batches == ROWS // BATCH


@pytest.mark.parametrize("damage", ["data", "rows", "short", "described"])
def test_a_damaged_beginning_is_not_gone_on_from(cache: Path, damage: str) -> None:
    class Failing(Tiny):
        fails = True

        def feature_maps(self, images: Tensor) -> Tensor:
            if self.fails and self.batches == 3:
                raise RuntimeError
            return super().feature_maps(images)

    network = Failing()
    with pytest.raises(RuntimeError):
        features(pictures(ROWS), network)
    (entry,) = list_entries(cache)
    data, about = bytearray(entry.path.read_bytes()), dict(entry.about)
    if damage == "data":
        data[-5] ^= 1
    elif damage == "short":
        del data[-5:]
    elif damage == "rows":
        about["rows"] = 9_999
    else:
        about = {"rows": "many"}
    entry.path.write_bytes(data)
    entry.path.with_suffix(".json").write_text(json.dumps(about))
    network.fails, network.batches = False, 0
    assert features(pictures(ROWS), network) == pytest.approx(expected(pictures(ROWS)), rel=1e-5, abs=1e-6)
    assert network.batches == ROWS // BATCH


def test_two_processes_that_want_the_same_features_compute_them_once(cache: Path) -> None:
    first = Slow(cache)
    first.until("batch")
    second = Slow(cache)
    second.until(WAITING)
    one, other = first.done(), second.done()
    assert one[0] == ROWS // BATCH and other[0] == 0 and one[1] == other[1]
    assert kept(cache) == [".json", ".npy"]


def test_a_process_takes_over_from_one_that_is_killed_while_it_waits(cache: Path) -> None:
    first = Slow(cache, seconds=30.0, mark_every=0.0)
    first.until("batch")
    second = Slow(cache)
    second.until(WAITING)
    first.kill()
    batches, checksum = second.done()
    assert batches == ROWS // BATCH
    assert checksum == zlib.crc32(features(pictures(ROWS), Tiny()).tobytes())


def test_a_process_that_does_not_get_on_is_not_waited_for_for_ever(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_file, "STALL_TIMEOUT", 0.3)
    stuck = Slow(cache, seconds=30.0)
    stuck.until("batch")
    said: list[str] = []
    found = features(pictures(ROWS), Tiny(), say=said.append)
    assert found == pytest.approx(expected(pictures(ROWS)), rel=1e-5, abs=1e-6)
    assert said == [WAITING, "another process computes the same features and does not get on: not waiting for it"]
    assert kept(cache) == [".partial"], "it still belongs to the other"
    stuck.kill()


def test_without_locks_the_last_to_finish_wins_and_nothing_is_left_over(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_file, "try_lock", lambda file: None)
    network = Tiny()
    features(pictures(ROWS), network)
    features(pictures(ROWS), network)
    assert network.batches == ROWS // BATCH
    left = [path.name for path in cache.iterdir() if path.suffix not in (".json", ".npy") and path.stat().st_size]
    assert not left


@pytest.mark.parametrize("place", [0, 100, 200, -1])
def test_an_entry_with_a_wrong_byte_is_computed_again(cache: Path, place: int) -> None:
    said: list[str] = []
    first = features(pictures(ROWS), Tiny(), say=said.append)
    (entry,) = list_entries(cache)
    data = bytearray(entry.path.read_bytes())
    data[place] ^= 64
    entry.path.write_bytes(data)
    network = Tiny()
    assert np.array_equal(features(pictures(ROWS), network, say=said.append), first)
    assert network.batches == ROWS // BATCH
    assert len(said) == 1 and "damaged" in said[0]
    features(pictures(ROWS), network)
    assert network.batches == ROWS // BATCH


@pytest.mark.parametrize("length", [0, 10, 128, 500])
def test_an_entry_cut_short_is_computed_again(cache: Path, length: int) -> None:
    first = features(pictures(ROWS), Tiny())
    (entry,) = list_entries(cache)
    os.truncate(entry.path, length)
    network = Tiny()
    assert np.array_equal(features(pictures(ROWS), network, say=lambda text: None), first)
    assert network.batches == ROWS // BATCH


def test_large_features_stay_in_the_file_and_can_be_given_to_torch(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = features(pictures(ROWS), Tiny())
    monkeypatch.setattr(feature_file, "MEMORY_MAP_BYTES", 1)
    mapped = features(pictures(ROWS), Tiny())
    torch.from_numpy(mapped)[0] = 7
    assert np.array_equal(mapped[1:], first[1:]) and (mapped[0] == 7).all()
    assert np.array_equal(features(pictures(ROWS), Tiny()), first), "the file was written to"


def test_a_cache_that_cannot_be_written_is_said_once_and_done_without(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.write_text("this is no folder")
    said: list[str] = []
    for seed in range(3):
        found = features(pictures(8, seed), Tiny(), say=said.append)
        assert found == pytest.approx(expected(pictures(8, seed)), rel=1e-5, abs=1e-6)
    assert len(said) == 1 and "cannot be written" in said[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on another user's rights")
def test_a_cache_that_may_only_be_read_is_read(cache: Path, tmp_path: Path) -> None:
    first = features(pictures(8), Tiny())
    for folder in (cache, cache.parent, *[place for place in tmp_path.parents if "pytest-" in str(place)], tmp_path):
        folder.chmod(0o755)
    said: list[str] = []
    os.seteuid(65534)
    try:
        network = Tiny()
        assert np.array_equal(features(pictures(8), network, say=said.append), first)
        assert network.batches == 0 and not said
        features(pictures(8, seed=1), network, say=said.append)
    finally:
        os.seteuid(0)
    assert network.batches == 2 and len(said) == 1 and "permission denied" in said[0].lower()


def test_a_full_disk_is_said_once_and_nothing_is_left_of_the_attempt(cache: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    said: list[str] = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))
    try:
        found = {rows: features(pictures(rows), Tiny(), say=said.append) for rows in (100, 200)}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    for rows, values in found.items():
        assert values == pytest.approx(expected(pictures(rows)), rel=1e-5, abs=1e-6)
    assert len(said) == 1 and "File too large" in said[0]
    assert not list(cache.iterdir())


def test_the_limit_removes_what_was_not_used_for_longest_and_never_what_is_in_use(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: set[Path] = set()
    monkeypatch.setattr("labelgap.core.cache_entries._HELD", held)
    names: dict[int, str] = {}
    for seed in range(3):
        features(pictures(ROWS, seed), Tiny())
        (names[seed],) = {entry.path.stem for entry in list_entries(cache)} - set(names.values())
        time.sleep(0.002)
    features(pictures(ROWS, 0), Tiny())
    size = sum(path.stat().st_size for path in cache.iterdir())
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", str(size + 100))
    held.clear()
    held.add((cache / f"{names[1]}.npy").absolute())
    features(pictures(ROWS, 3), Tiny())
    assert {names[0], names[1]} < {entry.path.stem for entry in list_entries(cache)}
    assert names[2] not in {entry.path.stem for entry in list_entries(cache)}
    assert sum(path.stat().st_size for path in cache.iterdir()) <= size + 100
    held.clear()
    features(pictures(ROWS, 4), Tiny())
    assert names[1] not in {entry.path.stem for entry in list_entries(cache)}, "used before names[0] was used again"
    assert names[0] in {entry.path.stem for entry in list_entries(cache)}


def test_features_larger_than_the_limit_are_not_kept_and_the_way_out_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features(pictures(8), Tiny())
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "500")
    said: list[str] = []
    features(pictures(ROWS), Tiny(), say=said.append)
    assert len(list_entries(cache)) == 1, "and nothing else had to go for it"
    assert len(said) == 1 and "labelgap cache --limit 1.2kB" in said[0]


def test_features_larger_than_the_disk_are_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_file, "free_disk_space", lambda path: 500)
    said: list[str] = []
    features(pictures(ROWS), Tiny(), say=said.append)
    assert not list(cache.iterdir()) and "the disk has 500 bytes left" in said[0]


def test_what_killed_writers_left_is_cleaned_up(cache: Path) -> None:
    features(pictures(8), Tiny())
    (cache / "abc.partial").write_bytes(b"a beginning that nobody described")
    (cache / "def.json").write_text("{}")
    left = cache / ".abc-0123456789abcdef.partial.json"
    left.write_text("{")
    os.utime(left, (1e9, 1e9))
    features(pictures(8, seed=1), Tiny())
    assert kept(cache) == [".json", ".json", ".npy", ".npy"]


def test_the_message_goes_to_standard_error_unless_told_otherwise(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "10")
    extract_features(pictures(8), Tiny(), device=torch.device("cpu"))
    said = capsys.readouterr()
    assert "they are not kept" in said.err and not said.out
