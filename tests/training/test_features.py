"""The feature cache: one image more costs one image more; several processes, kills, damage, limits."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.training.tiny_backbone import (
    BATCH,
    WIDTH,
    Recorder,
    Tiny,
    expected,
    extract_slowly,
    features,
    random_images,
    several,
)
from tests.waiting import PATIENCE

from labelgap.core import cache as cache_module
from labelgap.core.cache import list_rows
from labelgap.core.files import file_digest
from labelgap.data.images import ArrayImages, FileImages
from labelgap.models import create_backbone, inference
from labelgap.training import features as feature_cache
from labelgap.training.features import CachedFeatures, network_key

ROWS = 24
CPU = torch.device("cpu")
FORKSERVER = multiprocessing.get_context("forkserver")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LABELGAP_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(cache_module, "_STARTED", time.time() + 100)
    return tmp_path / "cache" / "features"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileImages:
    """Ten files, old enough for their states to be trusted."""
    monkeypatch.setattr(feature_cache, "_SETTLED", -1_000_000_000)
    (tmp_path / "photos").mkdir()
    names = [f"{number}.png" for number in range(10)]
    for name, image in zip(names, random_images(10).array, strict=True):
        Image.fromarray(image[..., 0]).save(tmp_path / "photos" / name)
    return FileImages(tmp_path / "photos", names)


class SlowProcess:
    """A process that extracts features slowly, forked from one that has imported everything."""

    def __init__(
        self, cache: Path, first: int = 0, stop: int = ROWS, seconds: float = 0.0, hangs_at: int | None = None
    ) -> None:
        self.pipe, theirs = FORKSERVER.Pipe(duplex=False)
        arguments = (theirs, str(cache.parent), first, stop, seconds, hangs_at)
        self.process = FORKSERVER.Process(target=extract_slowly, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def until(self, word: object, count: int = 1) -> None:
        """Wait until it has sent ``word`` ``count`` times."""
        while count:
            assert self.pipe.poll(PATIENCE), "it sends nothing"
            count -= self.pipe.recv() == word

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        assert self.process.exitcode == -signal.SIGKILL
        self.pipe.close()

    def done(self) -> tuple[int, int]:
        """Return the number of images it computed, and the checksum of its features."""
        while not isinstance(result := self.pipe.recv(), tuple):
            pass
        self.process.join()
        self.pipe.close()
        assert self.process.exitcode == 0
        return result


def computed(images: ArrayImages | FileImages, **options: Any) -> int:
    """How many images are computed when features are asked for."""
    network = Tiny()
    features(images, network, **options)
    return network.computed


def test_features_follow_the_formula_and_are_computed_once(cache: Path) -> None:
    images, network, reporter = random_images(10), Tiny(), Recorder()
    first = features(images, network, reporter)
    assert first == pytest.approx(expected(images), rel=1e-5, abs=1e-6)
    assert network.computed == 10 and not network.training and reporter.steps == 10
    again = features(images, network, reporter)
    assert np.array_equal(first, again) and again.flags.writeable and network.computed == 10 and reporter.steps == 10
    assert reporter.messages == [
        "features of 10 of 10 images computed",
        "features of 0 of 10 images computed, 10 from the cache",
    ]
    (entry,) = list_rows()
    assert entry.count == 10 and entry.metadata == {
        "backbone": "Tiny",
        "size": 4,
        "width": WIDTH,
        "transform": "resize",
        "precision": "float32",
    }


def test_one_image_more_costs_one_image_more_in_any_split_and_order() -> None:
    images, reporter = random_images(ROWS), Recorder()
    assert computed(images.select(np.arange(ROWS - 1))) == ROWS - 1
    assert computed(images, reporter=reporter) == 1 and reporter.steps == 1
    assert reporter.messages == [f"features of 1 of {ROWS} images computed, {ROWS - 1} from the cache"]
    order = np.random.default_rng(1).permutation(ROWS)
    network = Tiny()
    train, val = several([images.select(order[:15]), images.select(order[15:])], network)
    assert network.computed == 0
    assert np.concatenate([train, val]) == pytest.approx(expected(images)[order], rel=1e-5, abs=1e-6)
    assert computed(ArrayImages(images.array[:3], names="abc")) == 0, "names decide nothing"


class LeftColumn(Tiny):
    """Sees the left column alone."""

    def pool(self, feature_maps: torch.Tensor) -> torch.Tensor:
        return feature_maps[..., 0].mean(-1)


def test_mirror_images_are_computed_and_stored_apart(cache: Path) -> None:
    images, network, reporter = random_images(10), LeftColumn(), Recorder()
    features(images.select(np.arange(8)), network)
    assert CachedFeatures(network, CPU, average_flips=True).count_missing([images]) == [2 + 10]
    averaged = features(images, network, reporter, average_flips=True)
    sides = ArrayImages(np.stack([images.array[:, :, 0], images.array[:, :, -1]], axis=2))
    assert averaged == pytest.approx(expected(sides), rel=1e-5, abs=1e-6)
    assert network.computed == 8 + 2 + 10 and reporter.messages == [
        "features of 2 of 10 images computed, 8 from the cache",
        "features of 10 of 10 mirror images computed",
    ]
    found, cached = CachedFeatures(network, CPU, average_flips=True).read(images)
    assert found.all() and np.array_equal(cached, averaged)
    plain = ArrayImages(images.array[:, :, :1])
    assert features(images, network) == pytest.approx(expected(plain), rel=1e-5, abs=1e-6)
    assert network.computed == 20 and len(list_rows()) == 2


def test_copies_are_computed_once_over_all_splits() -> None:
    images, network, reporter = random_images(6), Tiny(), Recorder()
    first, second = several([images.select([0, 1, 2, 0]), images.select([2, 3, 3])], network, reporter)
    assert network.computed == 4 and reporter.messages == ["features of 4 of 7 images computed, 3 copies"]
    together = np.concatenate([first, second])
    assert together == pytest.approx(expected(images)[[0, 1, 2, 0, 2, 3, 3]], rel=1e-5, abs=1e-6)


def test_the_key_covers_content_transform_network_weights_and_input(cache: Path) -> None:
    class Other(Tiny):
        pass

    images = random_images(8)
    features(images, Tiny())
    for network in (Tiny(weight=1.0001), Other(), Tiny(size=5)):
        features(images, network)
        assert network.computed == 8
    assert computed(random_images(8, seed=1)) == 8
    assert computed(ArrayImages(images.array.reshape(8, 2, 8, 1))) == 8
    assert computed(images, transform="crop") == 8 and computed(images, transform="crop") == 0
    assert len(list_rows()) == 5 and sum(entry.count for entry in list_rows()) == 56


def test_features_of_each_precision_are_cached_apart(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, reporter = create_backbone("efficientnet-lite0", size=32), Recorder()
    images = ArrayImages(np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8))
    monkeypatch.setattr(inference, "cpu_precision", lambda: "float32")
    exact = features(images, network, reporter)
    monkeypatch.setattr(inference, "cpu_precision", lambda: "bfloat16")
    rounded = features(images, network, reporter)
    assert np.array_equal(features(images, network, reporter, precision="float32"), exact)
    assert 0 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < 0.1
    assert CachedFeatures(network, CPU).count_missing([images]) == [0]
    assert reporter.messages == [
        "features of 2 of 2 images computed",
        "features of 2 of 2 images computed in bfloat16",
        "features of 0 of 2 images computed, 2 from the cache",
    ]
    assert {entry.metadata["precision"] for entry in list_rows()} == {"float32", "bfloat16"}
    assert network_key(network, "resize") in {entry.name for entry in list_rows()}, (
        "the key of float32 is that of before"
    )


def test_a_changed_file_is_computed_again_and_a_renamed_one_is_not(photos: FileImages, tmp_path: Path) -> None:
    assert computed(photos) == 10 and computed(photos) == 0
    changed = photos.path(3)
    times = changed.stat().st_mtime_ns
    content = changed.read_bytes()
    Image.fromarray(random_images(1, seed=5).array[0, ..., 0]).save(changed)
    changed.write_bytes(changed.read_bytes().ljust(len(content), b"\0"))
    os.utime(changed, ns=(times, times))
    assert computed(photos) == 1, "neither its size nor its time tells"
    changed.write_bytes(content)
    assert computed(photos) == 0, "the old content is known"
    photos.path(0).rename(tmp_path / "photos" / "moved.png")
    moved = FileImages(tmp_path, [f"photos/{name}" for name in ("moved.png", *photos.names[1:])])
    assert computed(moved) == 0


def test_files_are_read_once_unless_they_changed_a_moment_ago(
    photos: FileImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def recorded(path: Path) -> bytes:
        read.append(path)
        return file_digest(path)

    monkeypatch.setattr(feature_cache, "file_digest", recorded)
    monkeypatch.setattr(feature_cache, "_SETTLED", 3_600_000_000_000)
    assert computed(photos) == 10 and computed(photos) == 0 and len(read) == 20
    monkeypatch.setattr(feature_cache, "_SETTLED", -1_000_000_000)
    assert computed(photos) == 0 and computed(photos) == 0 and len(read) == 30


def test_a_file_that_changes_while_features_are_computed_is_not_cached(photos: FileImages) -> None:
    class Replacing(Tiny):
        def feature_maps(self, images: object) -> object:  # type: ignore[override]
            Image.fromarray(random_images(1, seed=5).array[0, ..., 0]).save(photos.path(3))
            return super().feature_maps(images)  # type: ignore[arg-type]

    Replacing.__qualname__ = Tiny.__qualname__
    network = Replacing()
    network.name = "Tiny"
    features(photos, network)
    assert network.computed == 10 and computed(photos) == 1


def test_files_that_cannot_be_read_are_the_loaders_error(photos: FileImages) -> None:
    photos.path(2).write_bytes(b"no image")
    photos.path(7).unlink()
    with pytest.raises(Exception, match=r"2\.png is not an image|7\.png does not exist"):
        computed(photos)


def test_no_images_give_no_features_and_no_entry(cache: Path) -> None:
    assert features(random_images(1).select([]), Tiny()).shape == (0, WIDTH) and not cache.exists()


def test_a_killed_computation_loses_a_block(cache: Path) -> None:
    slow = SlowProcess(cache, hangs_at=4 * BATCH)
    slow.until("batch", 4)
    slow.kill()
    stored = sum(entry.count for entry in list_rows())
    assert stored == 3 * BATCH
    images, checksum = SlowProcess(cache).done()
    assert images == ROWS - stored
    assert checksum == zlib.crc32(features(random_images(ROWS), Tiny()).tobytes())
    assert features(random_images(ROWS), Tiny()) == pytest.approx(expected(random_images(ROWS)), rel=1e-5, abs=1e-6)


def test_an_interrupted_block_is_stored_too() -> None:
    network = Tiny()
    network.fails_after = 3 * BATCH
    with pytest.raises(KeyboardInterrupt):
        features(random_images(ROWS), network)
    assert computed(random_images(ROWS)) == ROWS - 3 * BATCH


def test_two_processes_with_overlapping_sets_share_the_work(cache: Path) -> None:
    first, second = (SlowProcess(cache, *part, seconds=0.02) for part in ((0, 80), (40, 120)))
    (one, found), (other, _) = first.done(), second.done()
    assert 120 <= one + other < 160 and max(one, other) <= 80
    assert found == zlib.crc32(features(random_images(120).select(np.arange(80)), Tiny()).tobytes())
    assert computed(random_images(120)) == 0


def test_an_unwritable_cache_is_logged_and_not_used(cache: Path) -> None:
    cache.parent.write_text("not a folder")
    reporter = Recorder()
    found = features(random_images(8), Tiny(), reporter)
    assert found == pytest.approx(expected(random_images(8)), rel=1e-5, abs=1e-6)
    assert len(reporter.messages) == 2 and str(cache) in reporter.messages[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on another user's rights")
def test_a_read_only_cache_is_read(cache: Path, tmp_path: Path) -> None:
    first = features(random_images(8), Tiny())
    above = [place for place in tmp_path.parents if "pytest-" in str(place)]
    for folder in (cache, cache.parent, *above, tmp_path):
        folder.chmod(0o755)
    reporter, network = Recorder(), Tiny()
    os.seteuid(65534)
    try:
        assert np.array_equal(features(random_images(8), network, reporter), first)
        assert network.computed == 0 and len(reporter.messages) == 1
        features(random_images(8, seed=1), network, reporter)
    finally:
        os.seteuid(0)
    assert network.computed == 8 and "not cached" in reporter.messages[1]


def test_a_full_disk_is_logged_once_and_what_was_stored_is_intact(cache: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    reporter = Recorder()
    features(random_images(BATCH), Tiny())
    resource.setrlimit(resource.RLIMIT_FSIZE, ((cache / "rows.sqlite").stat().st_size, before[1]))
    try:
        found = features(random_images(10_000), Tiny(), reporter)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found == pytest.approx(expected(random_images(10_000)), rel=1e-5, abs=1e-6)
    assert len(reporter.messages) == 2 and "rows.sqlite" in reporter.messages[0]
    assert computed(random_images(100)) < 100


def test_what_is_not_cached_is_counted_and_read_without_reading_files(photos: FileImages) -> None:
    network = Tiny()
    features(photos.select([0, 1, 2]), network)
    assert CachedFeatures(network, CPU).count_missing([photos]) == [7]
    cached = CachedFeatures(network, CPU)
    found, values = cached.read(photos)
    assert found.tolist() == [True] * 3 + [False] * 7
    assert np.array_equal(values[:3], features(photos.select([0, 1, 2]), Tiny()))
    photos.path(1).unlink()
    assert cached.read(photos)[0].tolist() == [True, False, True] + [False] * 7
