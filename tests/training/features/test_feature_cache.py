"""The feature cache: its keys, resuming, locking, eviction, and damaged files."""

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
from filelock import SoftFileLock
from numpy.typing import NDArray
from tests.training.features.forkserver import FORKSERVER
from tests.training.features.tiny_backbone import BATCH, WIDTH, Tiny, expected, extract_slowly, features, random_images
from torch import Tensor

from labelgap.core.cache import list_entries
from labelgap.data.images import ArrayImages
from labelgap.training.features import cache as cache_module
from labelgap.training.features.extract import extract_features

ROWS = 24
WAITING = "another process computes the same features: waiting for it"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(cache_module, "_LOGGED", set())
    monkeypatch.setattr("labelgap.core.cache._PINNED", set())
    return tmp_path / "cache" / "features"


class SlowProcess:
    """A process that extracts features slowly, forked from one that has imported everything."""

    def __init__(self, cache: Path, seconds: float = 0.1, sync_interval: float = 30.0) -> None:
        self.pipe, theirs = FORKSERVER.Pipe(duplex=False)
        arguments = (theirs, str(cache.parent), ROWS, seconds, sync_interval)
        self.process = FORKSERVER.Process(target=extract_slowly, args=arguments)
        self.process.start()
        theirs.close()

    def until(self, word: object, count: int = 1) -> None:
        """Wait until it has sent ``word`` ``count`` times."""
        while count:
            assert self.pipe.poll(60), "it sends nothing"
            count -= self.pipe.recv() == word

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        assert self.process.exitcode == -signal.SIGKILL
        self.pipe.close()

    def done(self) -> tuple[int, int]:
        """Return the number of batches it computed, and the checksum of its features."""
        while not isinstance(result := self.pipe.recv(), tuple):
            pass
        self.process.join()
        self.pipe.close()
        assert self.process.exitcode == 0
        return result


def suffixes(cache: Path) -> list[str]:
    return sorted(path.suffix for path in cache.iterdir())


def test_features_are_computed_once_and_follow_the_formula(cache: Path) -> None:
    images, network = random_images(10), Tiny()
    counts: list[int] = []
    first = features(images, network, advance=counts.append)
    assert first == pytest.approx(expected(images), rel=1e-5, abs=1e-6)
    assert counts == [0, 4, 4, 2] and network.batches == 3 and not network.training
    again = features(images, network, advance=counts.append)
    assert np.array_equal(first, again) and again.flags.writeable and network.batches == 3
    assert sum(counts) == 20
    assert suffixes(cache) == [".json", ".npy"]
    (entry,) = list_entries(cache)
    metadata = {"data": "ArrayImages", "images": 10, "rows": 10, "backbone": "Tiny", "size": 4, "precision": "float32"}
    assert metadata.items() <= entry.metadata.items() and entry.complete
    assert np.array_equal(np.load(entry.path), first)


def test_the_key_covers_images_transform_network_weights_and_precision(cache: Path) -> None:
    class Other(Tiny):
        pass

    images = random_images(8)
    features(images, Tiny())
    changed: list[tuple[ArrayImages, Tiny, dict[str, str]]] = [
        (random_images(8, seed=1), Tiny(), {}),
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


def test_custom_inputs_are_used(cache: Path) -> None:
    class Ones:
        def __len__(self) -> int:
            return 6

        def batches(
            self, rows: NDArray[np.int64] | None = None, *, batch_size: int, epoch: int | None = None
        ) -> Iterator[tuple[Tensor, Tensor]]:
            assert rows is not None and epoch is None
            for part in torch.split(torch.from_numpy(rows), batch_size):
                yield part, torch.ones(len(part), 1, 4, 4)

    found = features(random_images(6), Tiny(), inputs=Ones(), transform="ones")
    assert found == pytest.approx(np.tile(np.linspace(0.5, 1.5, WIDTH), (6, 1)))


def test_no_images_give_no_features_and_no_entry(cache: Path) -> None:
    assert features(random_images(1).select([]), Tiny()).shape == (0, WIDTH) and not cache.exists()


def test_a_killed_computation_resumes(cache: Path) -> None:
    slow = SlowProcess(cache, sync_interval=0.0)
    slow.until("batch", 5)
    slow.kill()
    assert suffixes(cache) == [".json", ".lock", ".partial"]
    (entry,) = list_entries(cache)
    assert not entry.complete and entry.metadata["rows"] == 4 * BATCH and entry.metadata["images"] == ROWS
    batches, checksum = SlowProcess(cache, seconds=0.0).done()
    assert batches == 2, "the rows before the kill were computed again"
    assert suffixes(cache) == [".json", ".npy"]
    assert checksum == zlib.crc32(features(random_images(ROWS), Tiny()).tobytes())
    assert np.load(next(cache.glob("*.npy"))) == pytest.approx(expected(random_images(ROWS)), rel=1e-5, abs=1e-6)


def test_a_failed_computation_resumes(cache: Path) -> None:
    class Failing(Tiny):
        fails = True

        def feature_maps(self, images: Tensor) -> Tensor:
            if self.fails and self.batches == 3:
                raise KeyboardInterrupt
            return super().feature_maps(images)

    network = Failing()
    with pytest.raises(KeyboardInterrupt):
        features(random_images(ROWS), network)
    network.fails = False
    assert features(random_images(ROWS), network) == pytest.approx(expected(random_images(ROWS)), rel=1e-5, abs=1e-6)
    assert network.batches == ROWS // BATCH


@pytest.mark.parametrize("damage", ["data", "rows", "short", "described"])
def test_a_damaged_partial_file_is_not_resumed(cache: Path, damage: str) -> None:
    class Failing(Tiny):
        fails = True

        def feature_maps(self, images: Tensor) -> Tensor:
            if self.fails and self.batches == 3:
                raise RuntimeError
            return super().feature_maps(images)

    network = Failing()
    with pytest.raises(RuntimeError):
        features(random_images(ROWS), network)
    (entry,) = list_entries(cache)
    data, metadata = bytearray(entry.path.read_bytes()), dict(entry.metadata)
    if damage == "data":
        data[-5] ^= 1
    elif damage == "short":
        del data[-5:]
    elif damage == "rows":
        metadata["rows"] = 9_999
    else:
        metadata = {"rows": "many"}
    entry.path.write_bytes(data)
    entry.path.with_suffix(".json").write_text(json.dumps(metadata))
    network.fails, network.batches = False, 0
    assert features(random_images(ROWS), network) == pytest.approx(expected(random_images(ROWS)), rel=1e-5, abs=1e-6)
    assert network.batches == ROWS // BATCH


def test_two_processes_that_want_the_same_features_compute_them_once(cache: Path) -> None:
    first = SlowProcess(cache)
    first.until("batch")
    os.kill(first.process.pid or 0, signal.SIGSTOP)  # so that it cannot end before the second one asks
    second = SlowProcess(cache)
    second.until(WAITING)
    os.kill(first.process.pid or 0, signal.SIGCONT)
    one, other = first.done(), second.done()
    assert one[0] == ROWS // BATCH and other[0] == 0 and one[1] == other[1]
    assert suffixes(cache) == [".json", ".npy"]


def test_a_process_takes_over_from_one_that_is_killed_while_it_waits(cache: Path) -> None:
    first = SlowProcess(cache, seconds=30.0, sync_interval=0.0)
    first.until("batch")
    second = SlowProcess(cache)
    second.until(WAITING)
    first.kill()
    batches, checksum = second.done()
    assert batches == ROWS // BATCH
    assert checksum == zlib.crc32(features(random_images(ROWS), Tiny()).tobytes())


def test_a_stalled_process_is_not_waited_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "STALL_TIMEOUT", 0.3)
    stuck = SlowProcess(cache, seconds=30.0)
    stuck.until("batch")
    messages: list[str] = []
    found = features(random_images(ROWS), Tiny(), log=messages.append)
    assert found == pytest.approx(expected(random_images(ROWS)), rel=1e-5, abs=1e-6)
    assert messages == [WAITING, "another process computes the same features and has stalled: not waiting for it"]
    assert suffixes(cache) == [".lock", ".partial"], "they belong to the other process"
    stuck.kill()


def test_a_file_system_without_locks_caches_features_too(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelgap.core.cache.FileLock", SoftFileLock)
    network = Tiny()
    features(random_images(ROWS), network)
    features(random_images(ROWS), network)
    assert network.batches == ROWS // BATCH and suffixes(cache) == [".json", ".npy"]


@pytest.mark.parametrize("place", [0, -1])
def test_an_entry_with_a_wrong_byte_is_recomputed(cache: Path, place: int) -> None:
    messages: list[str] = []
    first = features(random_images(ROWS), Tiny(), log=messages.append)
    (entry,) = list_entries(cache)
    data = bytearray(entry.path.read_bytes())
    data[place] ^= 64
    entry.path.write_bytes(data)
    network = Tiny()
    assert np.array_equal(features(random_images(ROWS), network, log=messages.append), first)
    assert network.batches == ROWS // BATCH
    assert len(messages) == 1 and "damaged" in messages[0]
    features(random_images(ROWS), network)
    assert network.batches == ROWS // BATCH


@pytest.mark.parametrize("damage", ["metadata", "shape", "pipe", "nested"])
def test_a_hostile_entry_is_recomputed_with_a_note(cache: Path, damage: str) -> None:
    messages: list[str] = []
    first = features(random_images(ROWS), Tiny(), log=messages.append)
    (entry,) = list_entries(cache)
    metadata = entry.path.with_suffix(".json")
    if damage == "metadata":
        metadata.write_text("no JSON")
    elif damage == "nested":
        metadata.write_text("[" * 100_000)
    elif damage == "shape":
        header = entry.path.read_bytes()[:128].replace(b"(24, ", b"(9" + b"9" * 14 + b", ")[:128]
        entry.path.write_bytes(header + entry.path.read_bytes()[128:])
    else:
        entry.path.unlink()
        os.mkfifo(entry.path)
    network = Tiny()
    assert np.array_equal(features(random_images(ROWS), network, log=messages.append), first)
    assert network.batches == ROWS // BATCH and suffixes(cache) == [".json", ".npy"]
    assert len(messages) == 1 and "damaged" in messages[0]
    assert np.array_equal(features(random_images(ROWS), network), first) and network.batches == ROWS // BATCH


def test_a_symbolic_link_in_the_place_of_a_partial_file_is_not_followed(cache: Path, tmp_path: Path) -> None:
    first = features(random_images(ROWS), Tiny())
    (entry,) = list_entries(cache)
    entry.path.unlink()
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    entry.path.with_suffix(".partial").symlink_to(precious)
    messages: list[str] = []
    assert np.array_equal(features(random_images(ROWS), Tiny(), log=messages.append), first)
    assert precious.read_text() == "mine" and len(messages) == 1 and "not cached" in messages[0]


@pytest.mark.parametrize("length", [0, 500])
def test_a_truncated_entry_is_recomputed(cache: Path, length: int) -> None:
    first = features(random_images(ROWS), Tiny())
    (entry,) = list_entries(cache)
    os.truncate(entry.path, length)
    network = Tiny()
    assert np.array_equal(features(random_images(ROWS), network, log=lambda text: None), first)
    assert network.batches == ROWS // BATCH


def test_large_features_are_memory_mapped_copy_on_write(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = features(random_images(ROWS), Tiny())
    monkeypatch.setattr(cache_module, "MEMORY_MAP_BYTES", 1)
    mapped = features(random_images(ROWS), Tiny())
    torch.from_numpy(mapped)[0] = 7
    assert np.array_equal(mapped[1:], first[1:]) and (mapped[0] == 7).all()
    assert np.array_equal(features(random_images(ROWS), Tiny()), first), "the file was written to"


def test_an_unwritable_cache_is_logged_once_and_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.write_text("not a folder")
    messages: list[str] = []
    for seed in range(3):
        found = features(random_images(8, seed), Tiny(), log=messages.append)
        assert found == pytest.approx(expected(random_images(8, seed)), rel=1e-5, abs=1e-6)
    assert len(messages) == 1 and "cannot be written" in messages[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on another user's rights")
def test_a_read_only_cache_is_read(cache: Path, tmp_path: Path) -> None:
    first = features(random_images(8), Tiny())
    for folder in (cache, cache.parent, *[place for place in tmp_path.parents if "pytest-" in str(place)], tmp_path):
        folder.chmod(0o755)
    messages: list[str] = []
    os.seteuid(65534)
    try:
        network = Tiny()
        assert np.array_equal(features(random_images(8), network, log=messages.append), first)
        assert network.batches == 0 and not messages
        features(random_images(8, seed=1), network, log=messages.append)
    finally:
        os.seteuid(0)
    assert network.batches == 2 and len(messages) == 1 and "permission denied" in messages[0].lower()


def test_a_full_disk_is_logged_once_and_leaves_nothing(cache: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    messages: list[str] = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))
    try:
        found = {rows: features(random_images(rows), Tiny(), log=messages.append) for rows in (100, 200)}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    for rows, values in found.items():
        assert values == pytest.approx(expected(random_images(rows)), rel=1e-5, abs=1e-6)
    assert len(messages) == 1 and "File too large" in messages[0]
    assert not list(cache.iterdir())


def test_the_limit_evicts_the_least_recently_used_and_never_what_is_in_use(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: set[Path] = set()
    monkeypatch.setattr("labelgap.core.cache._PINNED", pinned)
    names: dict[int, str] = {}
    for seed in range(3):
        features(random_images(ROWS, seed), Tiny())
        (names[seed],) = {entry.path.stem for entry in list_entries(cache)} - set(names.values())
        time.sleep(0.002)
    features(random_images(ROWS, 0), Tiny())
    size = sum(path.stat().st_size for path in cache.iterdir())
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", str(size + 100))
    pinned.clear()
    pinned.add((cache / f"{names[1]}.npy").absolute())
    features(random_images(ROWS, 3), Tiny())
    assert {names[0], names[1]} < {entry.path.stem for entry in list_entries(cache)}
    assert names[2] not in {entry.path.stem for entry in list_entries(cache)}
    assert sum(path.stat().st_size for path in cache.iterdir()) <= size + 100
    pinned.clear()
    features(random_images(ROWS, 4), Tiny())
    assert names[1] not in {entry.path.stem for entry in list_entries(cache)}, "used before names[0] was used again"
    assert names[0] in {entry.path.stem for entry in list_entries(cache)}


def test_features_above_the_limit_are_not_cached_and_the_remedy_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features(random_images(8), Tiny())
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "500")
    messages: list[str] = []
    features(random_images(ROWS), Tiny(), log=messages.append)
    assert len(list_entries(cache)) == 1, "and nothing else had to go for it"
    assert len(messages) == 1 and "labelgap cache --limit 1.2kB" in messages[0]


def test_features_larger_than_the_disk_are_not_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "free_disk_space", lambda path: 500)
    messages: list[str] = []
    features(random_images(ROWS), Tiny(), log=messages.append)
    assert not list(cache.iterdir()) and "the disk has 500 bytes left" in messages[0]


def test_what_killed_processes_left_is_removed(cache: Path) -> None:
    features(random_images(8), Tiny())
    (cache / "abc.partial").write_bytes(b"a beginning that nobody described")
    (cache / "def.json").write_text("{}")
    left = cache / ".abc-0123456789abcdef.partial.json"
    left.write_text("{")
    os.utime(left, (1e9, 1e9))
    features(random_images(8, seed=1), Tiny())
    assert suffixes(cache) == [".json", ".json", ".npy", ".npy"]


def test_messages_go_to_standard_error_by_default(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "10")
    extract_features(random_images(8), Tiny(), device=torch.device("cpu"))
    messages = capsys.readouterr()
    assert "they are not cached" in messages.err and not messages.out
