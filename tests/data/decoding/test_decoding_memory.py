"""Memory of decoding: no second whole copy, a bound on what threads decode at once, a limit of pixels that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.test_images import png

from labelgap.core.errors import InputError
from labelgap.data import decoding
from labelgap.data.decoding import DecodedImage, _PixelBudget, decode, decoded

PEAK_MEMORY = """
import json, os, resource, sys
from pathlib import Path
from labelgap.data import decoding as decoder
from labelgap.data.decoding import decode, decoded
from labelgap.data.scanning import scan_images
from labelgap.data.images import FileImages

path = Path(sys.argv[1])
peaks = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]
with decoded(path) as image:
    image.thumbnail(240)
peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
assert scan_images(FileImages(path.parent, [path.name])).errors == ("",)
peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
decode(path)
peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
with decoder._budget.take(decoder._PIXELS_AT_ONCE):
    child = os.fork()
    if child == 0:
        decode(Path(sys.argv[2]))  # what the parent holds is not held here
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
json.dump([peak - peaks[0] for peak in peaks[1:]], sys.stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in another unit, or missing")
def test_a_large_image_is_held_once_and_not_in_copies(tmp_path: Path) -> None:
    """Eighteen megapixels with transparency: 72 MB in Pillow; 27 bytes per pixel were used before."""
    Image.new("RGBA", (4500, 4000), (200, 100, 50, 128)).save(tmp_path / "a.png", compress_level=1)
    Image.new("RGB", (8, 8)).save(tmp_path / "b.png")
    command = [sys.executable, "-c", PEAK_MEMORY, str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    environment = {**os.environ, "LABELGAP_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    thumbnail, scan, whole = (peak * 1024 / 18e6 for peak in json.loads(done.stdout))
    assert thumbnail < 7 and scan < 8 and whole < 10, "bytes per pixel"


@pytest.mark.parametrize(("pixels", "at_once"), [(60, 1), (30, 3), (1000, 1)])
def test_threads_decode_no_more_pixels_at_once_than_the_budget(pixels: int, at_once: int) -> None:
    budget, active, seen = _PixelBudget(100), list[None](), list[int]()

    def work(_: int) -> None:
        with budget.take(pixels):
            active.append(None)
            seen.append(len(active))
            active.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(400)))
    assert 1 <= max(seen) <= at_once
    with budget.take(100):
        pass


def test_an_error_gives_its_share_of_the_budget_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = _PixelBudget(10)
    monkeypatch.setattr("labelgap.data.decoding._budget", budget)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "cut.png")
    os.truncate(tmp_path / "cut.png", 5000)
    for _ in range(3):
        with pytest.raises(InputError, match="truncated"):
            decode(tmp_path / "cut.png")
    Image.fromarray(noise).save(tmp_path / "whole.png")
    with pytest.raises(InputError, match="damaged"), decoded(tmp_path / "whole.png"):
        raise ValueError
    assert budget._free == 10


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "La", "RGBa", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_strips_give_the_same_pixels_as_the_whole(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 256, (23, 11, 4), dtype=np.uint8)
    if mode in ("I;16", "I", "F"):
        dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        image = Image.fromarray((values[..., 0].astype(np.float64) * 257).astype(dtype))
    else:
        color = Image.fromarray(values)
        image = color.convert({"La": "LA", "RGBa": "RGBA"}.get(mode, mode) if "A" in mode.upper() else "RGB")
        image = image.convert(mode)
    for orientation in (1, 5, 6, 8):
        whole = DecodedImage(image, orientation).pixels()
        with monkeypatch.context() as patch:
            patch.setattr(decoding, "_STRIP_PIXELS", 30)
            assert np.array_equal(DecodedImage(image, orientation).pixels(), whole)
        assert whole.flags.writeable and whole.flags.c_contiguous


def test_a_thumbnail_has_the_pixels_of_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_STRIP_PIXELS", 500)
    random = np.random.default_rng(0)
    for _ in range(60):
        height, width = random.integers(1, 220, 2).tolist()
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        expected = Image.fromarray(pixels)
        expected.thumbnail((24, 24), Image.Resampling.LANCZOS)
        assert np.array_equal(np.asarray(DecodedImage(Image.fromarray(pixels)).thumbnail(24)), np.asarray(expected))


def test_the_limit_of_pixels_can_be_lowered_and_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(png(40, 25, depth=1, color=0, lines=[bytes(5)] * 25))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    for limit, named in (("999", "999 pixels.*LABELGAP_MAX"), *((each, "LABELGAP_MAX") for each in WRONG_LIMITS)):
        monkeypatch.setenv("LABELGAP_MAX_PIXELS", limit)
        with pytest.raises(InputError, match=named):
            decode(tmp_path / "a.png")
    monkeypatch.setenv("LABELGAP_MAX_PIXELS", "1000")
    assert decode(tmp_path / "a.png").shape == (25, 40, 3)


WRONG_LIMITS = ("0", "-5", "1e9", "٣", "9" * 30)


def test_a_file_too_large_to_be_read_or_unpacked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("a.webp", 200 * 2**20), ("b.png", 2**40)):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
        os.truncate(tmp_path / name, size)  # a hole: it takes no room on the disk
        with pytest.raises(InputError, match=f"{name} .* {size:,} bytes"):
            decode(tmp_path / name)
    Image.new("RGB", (8, 8)).save(tmp_path / "c.png")
    monkeypatch.setattr(DecodedImage, "pixels", lambda self: bytearray(2**62))
    with pytest.raises(InputError, match=r"c\.png needs more memory"):
        decode(tmp_path / "c.png")
