"""Images are resized by the filter that is asked for, everywhere that they are resized."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import UnknownNameError
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


@pytest.mark.parametrize("interpolation", FILTERS)
def test_every_transform_uses_the_filter_that_it_is_given(interpolation: Interpolation) -> None:
    image = photo(50, 70)
    shown, how = Image.fromarray(image), FILTERS[interpolation]
    whole = np.asarray(shown.resize((16, 16), how)).transpose(2, 0, 1)
    assert np.abs(Resize(16, None, interpolation)(image, 0, 1).astype(int) - whole).max() <= 2
    middle = np.asarray(shown.resize((28, 20), how).crop((6, 2, 22, 18))).transpose(2, 0, 1)
    assert np.abs(CenterCrop(16, 20, interpolation)(image, 0, 1).astype(int) - middle).max() <= 2


def test_an_unknown_filter_is_refused() -> None:
    for make in MAKERS.values():
        with pytest.raises(UnknownNameError, match=r"no interpolation 'bicubc'\. Did you mean 'bicubic'"):
            make("bicubc")  # type: ignore[arg-type]
