"""Random changes on the device, against a loop in numpy that follows the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from labelgap.data.transforms import Augmentation, CounterRNG, smallest_crop, uniform_rows


def smooth_images(count: int, size: int) -> torch.Tensor:
    down, right = np.mgrid[0:size, 0:size]
    planes = [[128 + 60 * np.sin(down / (3 + n)) * np.cos(right / (5 - n)) for n in range(3)] for _ in range(count)]
    return torch.from_numpy(np.rint(planes).astype(np.uint8))


def sample(image: NDArray[np.float64], x: float, y: float) -> NDArray[np.float64]:
    """Bilinear interpolation at pixel position (x, y); black outside."""
    height, width = image.shape[1:]
    value = np.zeros(len(image))
    for column in (math.floor(x), math.floor(x) + 1):
        for row in (math.floor(y), math.floor(y) + 1):
            if 0 <= column < width and 0 <= row < height:
                value += (1 - abs(x - column)) * (1 - abs(y - row)) * image[:, row, column]
    return value


def reference(image: NDArray[np.float64], draws: list[float], min_area: float, color: float) -> NDArray[np.float64]:
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
            out[:, row, column] = sample(image, x, y)
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
        expected = reference(images[place].numpy().astype(float), [rng.uniform() for _ in range(13)], smallest, 0.3)
        assert np.abs(changed[place].numpy() - expected).max() <= 0.51


def test_what_is_random_depends_on_seed_epoch_and_row_alone() -> None:
    images, change = smooth_images(4, 8), Augmentation(seed=1)
    together, rows = change(images, [0, 1, 2, 3], 1), [2, 0]
    assert torch.equal(change(images[rows], rows, 1), together[rows])
    assert not torch.equal(change(images, [0, 1, 2, 3], 2), together)


def test_nothing_is_mirrored_where_a_mirror_image_has_other_labels() -> None:
    draws = torch.from_numpy(uniform_rows(0, 1, np.arange(200), 13)).float()
    assert (Augmentation(0, flip=False).affine_matrices(draws)[:, 0, 0] > 0).all()
    assert 0.4 < (Augmentation(0).affine_matrices(draws)[:, 0, 0] > 0).float().mean() < 0.6


def test_gray_images_stay_gray() -> None:
    gray = smooth_images(2, 8)[:, :1]
    assert Augmentation(0)(gray, [0, 1], 1).shape == gray.shape
