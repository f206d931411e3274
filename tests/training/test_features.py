"""The feature cache: one image more costs one image more; several processes, kills, damage, limits."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.killing import run_forked
from torch import Tensor

from labelgap.core import cache as cache_module
from labelgap.core.cache import list_rows
from labelgap.core.files import file_digest
from labelgap.data.images import ArrayImages, FileImages, ImageSource
from labelgap.models import Backbone, InputSpec, create_backbone, inference
from labelgap.training import features as feature_cache
from labelgap.training.features import CachedFeatures, extract_features, network_key
from labelgap.training.progress import Reporter

ROWS = 24
CPU = torch.device("cpu")
WIDTH = 6
BATCH = 4


class Tiny(Backbone):
    """The mean of a gray image times a weight; counts its images, and can fail and be killed."""

    def __init__(self, weight: float = 1.0, size: int = 4) -> None:
        super().__init__(num_features=WIDTH, input_spec=InputSpec(size=size, mean=(0.5,), std=(0.5,), channels=1))
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, WIDTH) * weight)
        self.computed, self.fails_after, self.killed_after = 0, -1, -1

    def feature_maps(self, images: Tensor) -> Tensor:
        if self.computed == self.fails_after:
            raise KeyboardInterrupt
        if self.computed == self.killed_after:
            os.kill(os.getpid(), signal.SIGKILL)
        self.computed += len(images)
        return images * self.weight[:, None, None]


class Recorder(Reporter):
    """Records messages and the steps of every bar."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.messages, self.steps = list[str](), 0

    def log(self, text: str) -> None:
        self.messages.append(text)

    def advance(self, steps: int = 1, note: Any = None) -> None:
        self.steps += steps


def random_images(rows: int, seed: int = 0) -> ArrayImages:
    return ArrayImages(np.random.default_rng(seed).integers(0, 256, (rows, 4, 4), dtype=np.uint8))


def expected(images: ArrayImages) -> NDArray[np.float64]:
    """The formula in double precision."""
    mean = ((images.array[..., 0] / 255.0 - 0.5) / 0.5).mean(axis=(1, 2))
    result: NDArray[np.float64] = mean[:, None] * np.linspace(0.5, 1.5, WIDTH)
    return result


def features(images: ImageSource, backbone: Backbone, *more: Reporter, **options: Any) -> NDArray[np.float32]:
    return several([images], backbone, *more, **options)[0]


def several(
    sources: Sequence[ImageSource], backbone: Backbone, reporter: Reporter | None = None, **options: Any
) -> list[NDArray[np.float32]]:
    given: dict[str, Any] = {"device": CPU, "batch_size": BATCH, "reporter": reporter or Reporter(quiet=True)}
    return extract_features(sources, backbone, **given | options)


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


def computed(images: ArrayImages | FileImages, **options: Any) -> int:
    """How many images are computed when features are asked for."""
    network = Tiny()
    features(images, network, **options)
    return network.computed


def test_features_follow_the_formula_and_are_computed_once(cache: Path) -> None:
    images, network, reporter = random_images(10), Tiny(), Recorder()
    assert features(images.select([]), network).shape == (0, WIDTH) and not cache.exists()
    first = features(images, network, reporter)
    assert first == pytest.approx(expected(images), rel=1e-5, abs=1e-6)
    assert network.computed == 10 and not network.training and reporter.steps == 10
    again = features(images, network, reporter)
    assert np.array_equal(first, again) and again.flags.writeable and network.computed == 10 and reporter.steps == 10
    assert [each.split()[2] for each in reporter.messages] == ["10", "0"], "computed"
    (entry,) = list_rows()
    about = {"backbone": "Tiny", "size": 4, "width": WIDTH, "transform": "resize", "precision": "float32"}
    assert entry.count == 10 and entry.metadata == about


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
    copies, network = random_images(6, seed=2), Tiny()
    together = np.concatenate(several([copies.select([0, 1, 2, 0]), copies.select([2, 3, 3])], network))
    assert network.computed == 4, "copies are computed once over all splits"
    assert together == pytest.approx(expected(copies)[[0, 1, 2, 0, 2, 3, 3]], rel=1e-5, abs=1e-6)


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
    assert network.computed == 8 + 2 + 10 and len(reporter.messages) == 2
    found, cached = CachedFeatures(network, CPU, average_flips=True).read(images)
    assert found.all() and np.array_equal(cached, averaged)
    plain = ArrayImages(images.array[:, :, :1])
    assert features(images, network) == pytest.approx(expected(plain), rel=1e-5, abs=1e-6)
    assert network.computed == 20 and len(list_rows()) == 2


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
    assert ["bfloat16" in each for each in reporter.messages] == [False, True, False]
    assert {entry.metadata["precision"] for entry in list_rows()} == {"float32", "bfloat16"}
    assert network_key(network, "resize") in {entry.name for entry in list_rows()}, "that of before, for float32"


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


def test_files_are_read_once_unless_they_just_changed(photos: FileImages, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.fixture
def batchwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block is a batch."""
    for name in ("BLOCK_SECONDS", "SHARED_BLOCK_SECONDS", "START_UPS"):
        monkeypatch.setattr(feature_cache, name, 0.0)


@pytest.mark.usefixtures("batchwise")
def test_a_computation_that_is_killed_or_interrupted_loses_a_block_at_most() -> None:
    images, killed, interrupted = random_images(ROWS), Tiny(), Tiny()
    killed.killed_after, interrupted.fails_after = 3 * BATCH, BATCH
    assert run_forked(lambda: features(images, killed)) == -signal.SIGKILL
    assert sum(entry.count for entry in list_rows()) == 3 * BATCH
    with pytest.raises(KeyboardInterrupt):
        features(images, interrupted)
    assert computed(images) == ROWS - 4 * BATCH
    assert features(images, Tiny()) == pytest.approx(expected(images), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("full", [True, False])
def test_a_full_or_unwritable_disk_is_logged_once_and_what_was_stored_is_intact(cache: Path, full: bool) -> None:
    before, reporter = resource.getrlimit(resource.RLIMIT_FSIZE), Recorder()
    if full:
        features(random_images(BATCH), Tiny())
        resource.setrlimit(resource.RLIMIT_FSIZE, ((cache / "rows.sqlite").stat().st_size, before[1]))
    else:
        cache.parent.write_text("not a folder")
    try:
        found = features(random_images(3_000), Tiny(), reporter)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found == pytest.approx(expected(random_images(3_000)), rel=1e-5, abs=1e-6)
    assert len(reporter.messages) == 2 and str(cache) in reporter.messages[0]
    assert not full or computed(random_images(100)) < 100


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
