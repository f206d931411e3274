"""Formats: a fixed list, whatever a file is called, and no program is started; JPEGs by simplejpeg are as by Pillow."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.data.decoding.postscript import POSTSCRIPT, GhostscriptTrace

from labelgap.core.errors import InputError
from labelgap.data import decoding
from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import FORMATS, decode, open_image
from labelgap.data.images import FileImages
from labelgap.data.writers.formats import write_coco
from labelgap.inference.export import SCRIPT
from labelgap.labels import PRESENT, LabelTable

PROJECT = Path(__file__).resolve().parents[3]


def test_images_are_opened_in_one_place_and_by_the_list_of_formats() -> None:
    for folder in ("src", "examples"):
        for path in (PROJECT / folder).rglob("*.py"):
            if path.name not in ("decoding.py", "export.py"):
                assert "Image.open(" not in path.read_text(encoding="utf-8"), path
    assert "Image.open(path, formats=readable_formats())" in SCRIPT and repr(FORMATS) in SCRIPT


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
def test_postscript_named_as_a_photo_never_reaches_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ghostscript = GhostscriptTrace(tmp_path, monkeypatch)
    path = tmp_path / "photo.jpg"
    for content in (POSTSCRIPT, b"\xc5\xd0\xd3\xc6" + bytes(26) + POSTSCRIPT):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"photo\.jpg is a PostScript file"):
            decode(path)
        with pytest.raises(InputError, match="PostScript"), open_image(io.BytesIO(content)):
            pass
    table = LabelTable.from_dense(np.array([[PRESENT]]), classes=["cat"], images=["photo.jpg"])
    images = FileImages(tmp_path, ["photo.jpg"])
    write_coco(Dataset("a", Split("train", images, table)), tmp_path / "a.json")
    assert '"width"' not in (tmp_path / "a.json").read_text() and not ghostscript.started


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp", "tif", "ppm", "jp2", "avif"])
def test_a_listed_format_is_read_whatever_its_name(tmp_path: Path, suffix: str) -> None:
    pixels = np.full((20, 30, 3), 90, np.uint8)
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}")
    (tmp_path / f"a.{suffix}").rename(tmp_path / "a.eps")
    assert np.abs(decode(tmp_path / "a.eps").astype(int) - pixels).max() < 4


def test_formats_outside_of_the_list_are_refused(tmp_path: Path) -> None:
    for suffix in ("eps", "pcx", "sgi", "tga", "ico", "icns", "dds", "msp", "xbm"):
        Image.new("1" if suffix in ("msp", "xbm") else "RGB", (32, 32)).save(tmp_path / f"a.{suffix}")
        (tmp_path / f"a.{suffix}").rename(tmp_path / "photo.jpg")
        with pytest.raises(InputError, match=r"photo\.jpg is (not an image|a PostScript)"):
            decode(tmp_path / "photo.jpg")


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


def test_what_one_forgives_the_other_does(image: Image.Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
