"""Transforms and batches: what comes out, and that nothing but (seed, epoch, row) decides what is random."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data import loader
from labelgap.data.images import ArrayImages, FileImages, to_channels
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import (
    Augmentation,
    CenterCrop,
    CounterRNG,
    Interpolation,
    RandomResizedCrop,
    Resize,
    flip_mask,
    random_crop_box,
    resize,
    smallest_crop,
    uniform_rows,
)


def photo(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """A smooth image with some noise."""
    random = np.random.default_rng(seed)
    down, right = np.mgrid[0:height, 0:width]
    waves = [np.sin(down / (7 + 3 * n)) + np.cos(right / (11 - 2 * n)) for n in range(3)]
    pixels = 128 + 50 * np.stack(waves, axis=-1) + random.normal(0, 8, (height, width, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """The next output of SplitMix64 from a state, in Python's whole numbers."""
    value = (value + STEP) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def reference_numbers(seed: int, epoch: int, row: int) -> Iterator[float]:
    """The uniform numbers of an image: SplitMix64 from the hash on."""
    state = mix(mix(mix(mix(seed & MASK) ^ epoch)) ^ row)
    state = mix(state)
    while True:
        yield (mix(state) >> 11) / 2**53
        state = (state + STEP) & MASK


def test_the_numbers_of_an_image_follow_their_definition() -> None:
    for seed, epoch, row in ((0, 1, 0), (7, 3, 1000), (-1, 2, 3_400_000)):
        draws, expected = CounterRNG(seed, epoch, row), reference_numbers(seed, epoch, row)
        assert [draws.uniform() for _ in range(5)] == [next(expected) for _ in range(5)]
    for seed, epoch in ((0, 1), (7, 3), (-1, 2), (1 << 70, 1)):  # a coin is the last of three numbers
        rows = [0, 1, 2, 1000, 3_400_000]
        coins = [mix(mix(mix(mix(mix(seed & MASK) ^ epoch)) ^ row)) >> 63 for row in rows]
        assert flip_mask(seed, epoch, rows).tolist() == coins


FILTERS = {"bilinear": (Image.Resampling.BILINEAR, 1), "bicubic": (Image.Resampling.BICUBIC, 2)}


@pytest.mark.parametrize(("height", "width", "size"), [(375, 500, 224), (500, 333, 224), (100, 90, 31), (7, 300, 224)])
@pytest.mark.parametrize("interpolation", FILTERS)
def test_every_transform_resizes_as_pillow(interpolation: Interpolation, height: int, width: int, size: int) -> None:
    image, (how, levels) = photo(height, width), FILTERS[interpolation]
    for channels in (3, 1):
        shown = Image.fromarray(image if channels == 3 else image[..., 0])
        expected = np.asarray(shown.resize((size, size), how)).reshape(size, size, channels)
        made = Resize(size, None, interpolation)(image[..., :channels], 0, 1)
        apart = np.abs(made.astype(int) - expected.transpose(2, 0, 1))
        assert apart.max() <= levels and apart.mean() < (0.3 if height > width else 0.01)
    image = photo(51, 77)
    middle = Image.fromarray(image).resize((20 * 77 // 51, 20), how).crop((7, 2, 7 + 16, 2 + 16))  # as torchvision
    made = CenterCrop(16, 20, interpolation)(image, 0, 1)
    assert np.abs(made.astype(int) - np.asarray(middle).transpose(2, 0, 1)).max() <= levels


def test_a_random_part_keeps_its_share_and_shape_and_stays_inside() -> None:
    shares = []
    for height, width in ((375, 500), (500, 375), (50, 400), (3, 3), (1, 1000), (1, 1)):
        for row in range(60):
            top, left, tall, wide = random_crop_box(height, width, CounterRNG(0, 1, row))
            assert top >= 0 and left >= 0 and tall >= 1 and wide >= 1
            assert top + tall <= height and left + wide <= width
            if min(height, width) > 300:
                shares.append(tall * wide / (height * width))
                assert 0.07 < shares[-1] <= 1 and 0.73 < wide / tall < 1.36
    assert min(shares) < 0.15 and max(shares) > 0.85
    assert random_crop_box(30, 3000, CounterRNG(0, 1, 0)) == (0, 1480, 30, 40), "a shape that never fits: the middle"
    assert random_crop_box(3000, 30, CounterRNG(0, 1, 0)) == (1480, 0, 40, 30)


def test_light_and_colours_change_as_the_formulas_say() -> None:
    """The whole of RandomCrop on one image, in floats, with the numbers drawn by the reference."""
    image = np.clip(photo(90, 120), 60, 190)
    for row in range(6):
        numbers = reference_numbers(11, 2, row)
        share, shape = 0.08 + 0.92 * next(numbers), math.exp(math.log(0.75) + next(numbers) * math.log(16 / 9))
        wide, tall = round(math.sqrt(90 * 120 * share * shape)), round(math.sqrt(90 * 120 * share / shape))
        if wide > 120 or tall > 90:
            continue
        top, left = int(next(numbers) * (90 - tall + 1)), int(next(numbers) * (120 - wide + 1))
        part = Image.fromarray(image[top : top + tall, left : left + wide]).resize((24, 24), Image.Resampling.BILINEAR)
        values = np.asarray(part).astype(float)
        values = values[:, ::-1] if next(numbers) < 0.5 else values
        factors = [0.6 + 0.8 * next(numbers) for _ in range(3)]
        order = [0, 1, 2]
        for last in (2, 1):
            other = int(next(numbers) * (last + 1))
            order[last], order[other] = order[other], order[last]
        for number in order:
            gray = values @ [0.299, 0.587, 0.114]
            towards = (np.zeros_like(values), np.full_like(values, gray.mean()), np.stack([gray] * 3, axis=-1))[number]
            values = np.clip(towards + factors[number] * (values - towards), 0, 255)
        amounts = []
        for _ in range(3):
            length = math.sqrt(-2 * math.log(1 - next(numbers)))
            amounts.append(0.1 * length * math.cos(2 * math.pi * next(numbers)))
        vectors = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
        scales = [0.2175, 0.0188, 0.0045]
        added = [255 * sum(vectors[c][k] * amounts[k] * scales[k] for k in range(3)) for c in range(3)]
        expected = np.clip(values + added, 0, 255).transpose(2, 0, 1)
        assert np.abs(RandomResizedCrop(24, 11)(image, row, 2) - expected).max() < 5


def test_senseless_arguments_are_refused() -> None:
    for wrong in (lambda: Resize(0), lambda: RandomResizedCrop(jitter=2), lambda: RandomResizedCrop(lighting=-1)):
        with pytest.raises(InputError):
            wrong()
    with pytest.raises(InputError, match="does not fit"):
        CenterCrop(224, 200)
    for make in (Resize, RandomResizedCrop, CenterCrop):
        with pytest.raises(UnknownNameError, match="bicubic"):
            make(interpolation="bicubc")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="uint8"):
        resize(np.zeros((3, 3, 3), dtype=np.float32), 2, 2)


def test_parts_of_images_are_not_mirrored_where_that_shows_something_else() -> None:
    image = np.random.default_rng(0).integers(0, 255, (20, 30, 3)).astype(np.uint8)
    changed = 0
    for row in range(12):
        free = RandomResizedCrop(16, jitter=0, lighting=0)(image, row, 1)
        kept = RandomResizedCrop(16, jitter=0, lighting=0, flip=False)(image, row, 1)
        assert np.array_equal(free, kept) or np.array_equal(free[:, :, ::-1], kept)
        changed += not np.array_equal(free, kept)
    assert 0 < changed < 12


def smooth_images(count: int, size: int) -> torch.Tensor:
    down, right = np.mgrid[0:size, 0:size]
    planes = [[128 + 60 * np.sin(down / (3 + n)) * np.cos(right / (5 - n)) for n in range(3)] for _ in range(count)]
    return torch.from_numpy(np.rint(planes).astype(np.uint8))


def sample_at(image: NDArray[np.float64], x: float, y: float) -> NDArray[np.float64]:
    """Bilinear interpolation at pixel position (x, y); black outside."""
    height, width = image.shape[1:]
    value = np.zeros(len(image))
    for column in (math.floor(x), math.floor(x) + 1):
        for row in (math.floor(y), math.floor(y) + 1):
            if 0 <= column < width and 0 <= row < height:
                value += (1 - abs(x - column)) * (1 - abs(y - row)) * image[:, row, column]
    return value


def augmented(image: NDArray[np.float64], draws: list[float], min_area: float, color: float) -> NDArray[np.float64]:
    mirror, area, shape, across, down, *others = draws
    side = 4 / 3
    area, ratio = min_area + (1 - min_area) * area, side ** (2 * shape - 1)
    width, height = min(1.0, math.sqrt(area * ratio)), min(1.0, math.sqrt(area / ratio))
    strengths = [math.radians(15), 0.15, 0.15, 0.15, 0.15]
    amounts = [(-s if u < 1 / 8 else s if u < 1 / 4 else 0.0) for u, s in zip(others[:5], strengths, strict=True)]
    angle, shear_x, shear_y, shift_x, shift_y = amounts
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    shear = np.array([[1, shear_x], [shear_y, 1]])
    matrix = np.diag([width, height]) @ shear @ rotation @ np.diag([-1 if mirror < 0.5 else 1, 1])
    offset = np.array([(1 - width) * (2 * across - 1) + shift_x, (1 - height) * (2 * down - 1) + shift_y])
    size = image.shape[1]
    out = np.zeros_like(image)
    for row in range(size):
        for column in range(size):
            u = (2 * np.array([column, row]) + 1) / size - 1
            x, y = ((matrix @ u + offset + 1) * size - 1) / 2
            out[:, row, column] = sample_at(image, x, y)
    brightness, contrast, saturation = (1 + color * (4 * u - 1) if u < 0.5 else 1.0 for u in others[5:])
    out = out * brightness
    out = (out - out.mean()) * contrast + out.mean()
    gray = out.mean(0)
    saturated: NDArray[np.float64] = np.clip((out - gray) * saturation + gray, 0, 255)
    return saturated


@pytest.mark.parametrize("size", [224, 448])
def test_a_batch_is_changed_as_defined(size: int) -> None:
    images, rows = smooth_images(6, 12), [3, 0, 8, 5, 21, 34]
    changed = Augmentation(seed=4, min_area=smallest_crop(size))(images, rows, epoch=2)
    smallest = {224: 0.4, 448: 1.0}[size]
    assert changed.dtype == torch.uint8
    for place, row in enumerate(rows):
        rng = CounterRNG(4, 2, row)
        expected = augmented(images[place].numpy().astype(float), [rng.uniform() for _ in range(13)], smallest, 0.3)
        assert np.abs(changed[place].numpy() - expected).max() <= 0.51


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_given_images_stay_as_they_are_and_floats_are_changed_like_bytes(kind: torch.dtype) -> None:
    images = smooth_images(6, 12).contiguous().to(kind)
    given, change = images.clone(), Augmentation(seed=4)
    assert torch.equal(change(images, range(6), epoch=2), change(given.byte(), range(6), epoch=2))
    assert torch.equal(images, given)


def test_nothing_is_mirrored_where_a_mirror_image_has_other_labels() -> None:
    draws = torch.from_numpy(uniform_rows(0, 1, np.arange(200), 13)).float()
    assert (Augmentation(0, flip=False).affine_matrices(draws)[:, 0, 0] > 0).all()
    assert 0.4 < (Augmentation(0).affine_matrices(draws)[:, 0, 0] > 0).float().mean() < 0.6


@pytest.fixture(scope="module")
def array() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (23, 8, 8)).astype(np.uint8)


@pytest.fixture
def files(tmp_path: Path, array: NDArray[np.uint8]) -> FileImages:
    names = [f"{row}.png" for row in range(len(array))]
    for name, image in zip(names, array, strict=True):
        Image.fromarray(image).save(tmp_path / name)
    return FileImages(tmp_path, names)


def everything(batches: ImageLoader) -> tuple[list[int], torch.Tensor]:
    pairs = list(batches)
    return torch.cat([index for index, _ in pairs]).tolist(), torch.cat([pixels for _, pixels in pairs])


def test_whole_batches_from_an_array_equal_images_one_by_one() -> None:
    colors = np.random.default_rng(1).integers(0, 256, (9, 6, 6, 3)).astype(np.uint8)
    for source in (colors, colors[..., :1]):
        for channels in (1, 3):
            _, pixels = everything(
                ImageLoader(ArrayImages(source), transform=Resize(6), channels=channels, batch_size=4)
            )
            assert np.array_equal(pixels.numpy(), to_channels(source, channels).transpose(0, 3, 1, 2))


def test_files_and_arrays_give_the_same_pixels(files: FileImages, array: NDArray[np.uint8]) -> None:
    for size in (8, 5):
        one = everything(ImageLoader(files, transform=Resize(size, 3), batch_size=5))
        other = everything(ImageLoader(ArrayImages(array), transform=Resize(size, 3), batch_size=5))
        assert one[0] == other[0] and torch.equal(one[1], other[1])


@pytest.mark.parametrize("start", [None, pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_change_nothing_however_they_are_started(
    files: FileImages, start: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "DataLoader", partial(DataLoader, multiprocessing_context=start))
    order = np.random.default_rng(3).permutation(len(files))
    settings: dict[str, Any] = {"transform": Resize(5, 9), "batch_size": 4, "epoch": 2}
    here, there = (everything(ImageLoader(files, order, **settings, workers=workers)) for workers in (0, 2))
    assert here[0] == there[0] and torch.equal(here[1], there[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_named_without_a_traceback(files: FileImages, workers: int) -> None:
    files.path(7).write_bytes(b"")
    with pytest.raises(InputError) as caught:
        list(ImageLoader(files, transform=Resize(5), workers=workers, batch_size=4))
    assert str(caught.value) == f"{files.path(7)} is empty (0 bytes)."
