"""JPEGs unpacked by simplejpeg and by Pillow: the same pixels, the same refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.data import decoding
from labelgap.data.decoding import decode

pytest.importorskip("simplejpeg")


@pytest.fixture
def image() -> Image.Image:
    down, right = np.mgrid[0:217, 0:333]
    waves = [128 + 60 * np.sin(down / (9 + 5 * n)) + 60 * np.cos(right / (20 - 6 * n)) for n in range(3)]
    return Image.fromarray(np.clip(np.stack(waves, axis=-1), 0, 255).astype(np.uint8))


def by_pillow(path: Path, min_size: int | None, monkeypatch: pytest.MonkeyPatch) -> NDArray[np.uint8]:
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "simplejpeg", None)
        return decode(path, min_size)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("orientation", [None, 6])
@pytest.mark.parametrize("progressive", [False, True])
def test_both_give_the_same_pixels(
    image: Image.Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    orientation: int | None,
    progressive: bool,
) -> None:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    path = tmp_path / "a.jpg"
    for subsampling in (0, 1, 2):
        image.convert(mode).save(path, quality=85, subsampling=subsampling, progressive=progressive, exif=exif)
        for min_size in (None, 100, 50, 20):
            assert np.array_equal(decode(path, min_size), by_pillow(path, min_size, monkeypatch))


def test_what_one_forgives_the_other_decides(
    image: Image.Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes flipped within the file: both read it alike, or both refuse it."""
    path = tmp_path / "a.jpg"
    image.save(path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in random.integers(2, len(whole), 3):
            damaged[place] = int(random.integers(0, 256))
        path.write_bytes(bytes(damaged))
        try:
            expected = by_pillow(path, None, monkeypatch)
        except InputError:
            with pytest.raises(InputError):
                decode(path)
        else:
            assert np.array_equal(decode(path), expected)
