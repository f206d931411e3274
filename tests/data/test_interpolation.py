"""Images are resized by the filter that is asked for, everywhere that they are resized."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import UnknownNameError
from labelgap.data.images import ArrayImages, FileImages
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import CenterCrop, Interpolation, RandomResizedCrop, Resize, Transform, resize

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
MAKERS: dict[str, Callable[[Interpolation], Transform]] = {
    "resize": lambda interpolation: Resize(16, interpolation=interpolation),
    "flipped": lambda interpolation: Resize(16, 3, interpolation),
    "random": lambda interpolation: RandomResizedCrop(16, seed=3, interpolation=interpolation),
    "center": lambda interpolation: CenterCrop(16, 20, interpolation),
}


def photo(height: int, width: int) -> NDArray[np.uint8]:
    """Waves, an edge and some noise."""
    down, right = np.mgrid[0:height, 0:width]
    waves = [np.sin(down / (7 + 3 * n)) + np.cos(right / (11 - 2 * n)) for n in range(3)]
    pixels = 128 + 40 * np.stack(waves, axis=-1) + np.random.default_rng(0).normal(0, 8, (height, width, 3))
    pixels[:, width // 2 :] += 30
    return np.clip(pixels, 0, 255).astype(np.uint8)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (100, 90), (7, 300)])
@pytest.mark.parametrize("size", [448, 224, 31])
def test_bicubic_is_within_two_levels_of_pillows(height: int, width: int, size: int) -> None:
    image = photo(height, width)
    for channels in (3, 1):
        shown = Image.fromarray(image if channels == 3 else image[..., 0])
        expected = np.asarray(shown.resize((size, size), Image.Resampling.BICUBIC)).reshape(size, size, channels)
        made = resize(image[..., :channels], size, size, "bicubic")
        apart = np.abs(made.astype(int) - expected.transpose(2, 0, 1))
        assert apart.max() <= 2 and apart.mean() < (0.3 if height > width else 0.01)


def test_bicubic_is_another_filter_than_bilinear() -> None:
    image = photo(60, 80)
    assert np.array_equal(resize(image, 24, 24), resize(image, 24, 24, "bilinear"))
    assert not np.array_equal(resize(image, 24, 24), resize(image, 24, 24, "bicubic"))
    step = np.zeros((4, 4, 1), dtype=np.uint8)
    step[:, 2:] = 200
    sharp = resize(step, 16, 16, "bicubic")
    assert sharp.max() > 200 and sharp.min() == 0  # it overshoots, and is cut off where bytes end


@pytest.mark.parametrize("interpolation", FILTERS)
def test_every_transform_uses_the_filter_that_it_is_given(interpolation: Interpolation) -> None:
    image = photo(50, 70)
    shown, how = Image.fromarray(image), FILTERS[interpolation]
    whole = np.asarray(shown.resize((16, 16), how)).transpose(2, 0, 1)
    assert np.abs(Resize(16, None, interpolation)(image, 0, 1).astype(int) - whole).max() <= 2
    middle = np.asarray(shown.resize((28, 20), how).crop((6, 2, 22, 18))).transpose(2, 0, 1)
    assert np.abs(CenterCrop(16, 20, interpolation)(image, 0, 1).astype(int) - middle).max() <= 2


@pytest.mark.parametrize("name", MAKERS)
def test_a_transform_is_bilinear_unless_it_is_told_otherwise(name: str) -> None:
    image = photo(50, 70)
    bilinear, bicubic = MAKERS[name]("bilinear"), MAKERS[name]("bicubic")
    usual: dict[str, Transform] = {
        "resize": Resize(16),
        "flipped": Resize(16, 3),
        "random": RandomResizedCrop(16, 3),
        "center": CenterCrop(16, 20),
    }
    assert np.array_equal(bilinear(image, 2, 1), usual[name](image, 2, 1))
    assert not np.array_equal(bicubic(image, 2, 1), bilinear(image, 2, 1))
    assert np.array_equal(pickle.loads(pickle.dumps(bicubic))(image, 2, 1), bicubic(image, 2, 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_resizes_by_the_filter_of_its_transform(tmp_path: Path, workers: int) -> None:
    for row in range(3):
        Image.fromarray(photo(40 + row, 60)).save(tmp_path / f"{row}.png")
    images = FileImages(tmp_path, [f"{row}.png" for row in range(3)])
    ((_, bicubic),) = ImageLoader(images, transform=Resize(12, 4, "bicubic"), workers=workers)
    ((_, same),) = ImageLoader(images, transform=Resize(12, 4, "bicubic"))
    ((_, bilinear),) = ImageLoader(images, transform=Resize(12, 4))
    assert torch.equal(bicubic, same) and not torch.equal(bicubic, bilinear)


def test_images_of_the_right_size_stay_as_they_are() -> None:
    array = np.random.default_rng(0).integers(0, 256, (2, 9, 9, 3), dtype=np.uint8)
    ((_, pixels),) = ImageLoader(ArrayImages(array), transform=Resize(9, interpolation="bicubic"))
    assert np.array_equal(pixels.numpy(), array.transpose(0, 3, 1, 2))


def test_an_unknown_filter_is_refused() -> None:
    for make in MAKERS.values():
        with pytest.raises(UnknownNameError, match=r"no interpolation 'bicubc'\. Did you mean 'bicubic'"):
            make("bicubc")  # type: ignore[arg-type]
