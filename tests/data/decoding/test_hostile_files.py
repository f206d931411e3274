"""Images made to do harm: mutations, bombs, few descriptors, little memory. Errors name the file."""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from tests.data.test_images import chunk
from tests.killing import run_forked
from tests.mutations import mutations

from labelgap.core.errors import InputError
from labelgap.data import decoding
from labelgap.data.decoding import DecodedImage, _PixelBudget, decode, decoded

SAMPLE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((48, 36))


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def samples() -> list[bytes]:
    """One small image of every kind of file that the list of formats allows."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "camera"
    text = PngImagePlugin.PngInfo()
    text.add_text("a", "b" * 400, zip=True)
    frames: dict[str, Any] = {"save_all": True, "append_images": [SAMPLE.rotate(90)], "duration": 10}
    return [
        encoded(SAMPLE, "JPEG", exif=exif),
        encoded(SAMPLE.convert("CMYK"), "JPEG", progressive=True),
        encoded(SAMPLE, "PNG", pnginfo=text, exif=exif, icc_profile=bytes(300)),
        encoded(SAMPLE.convert("P"), "PNG", transparency=3),
        encoded(SAMPLE, "PNG", **frames),
        encoded(SAMPLE, "GIF", comment=b"c" * 600, **frames),
        encoded(SAMPLE.convert("RGBA"), "WEBP", lossless=True, exif=exif),
        encoded(SAMPLE, "WEBP", **frames),
        encoded(SAMPLE, "TIFF"),
        encoded(SAMPLE, "TIFF", compression="tiff_lzw"),
        encoded(SAMPLE.convert("F"), "TIFF"),
        encoded(SAMPLE, "BMP"),
        encoded(SAMPLE, "PPM"),
    ]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0


def test_mutated_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABELGAP_MAX_PIXELS", "4000000")
    path = tmp_path / "photo.jpg"
    before, outcomes = open_files(), set()
    for number, content in enumerate(samples()):
        for damaged in mutations(content, 20, seed=number):
            path.write_bytes(damaged)
            try:
                assert decode(path, 16).shape[2] == 3
                with decoded(path) as image:
                    assert max(image.thumbnail(20).size) <= 20
                outcomes.add("read")
            except InputError as error:
                assert str(path) in str(error)
                outcomes.add("refused")
    gc.collect()
    assert outcomes == {"read", "refused"} and open_files() <= before  # an earlier test may have left some to close
    capfd.readouterr()  # libtiff writes to standard error by itself


def zeros(megabytes: int) -> bytes:
    """So many megabytes of zeros, compressed."""
    compressor = zlib.compressobj(1)
    return b"".join(compressor.compress(bytes(2**20)) for _ in range(megabytes)) + compressor.flush()


def png(width: int, height: int, data: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), *chunks, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(**tags: int) -> bytes:
    """A TIFF of 16 × 16 gray pixels, compressed, with further tags ``t322=…``."""
    all_tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1} | {int(name[1:]): tags[name] for name in tags}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, all_tags[tag]) for tag in sorted(all_tags))
    return b"II*\0" + struct.pack("<IH", 8, len(all_tags)) + entries + bytes(4) + zlib.compress(bytes(1000)) * 3


SMALL = zlib.compress(bytes(72))
JPEG = encoded(SAMPLE, "JPEG")
EXIF_SEGMENT = b"\xff\xe1\xff\xff" + b"Exif\0\0" + bytes(65527)


def bombs() -> dict[str, bytes]:
    """Small files that claim much, by what they claim."""
    many = b"a\0\0" + zeros(150)
    return {
        "text": png(8, 8, SMALL, (b"zTXt", many)),
        "profile": png(8, 8, SMALL, (b"iCCP", many)),
        "pixels": png(60000, 60000, SMALL),
        "nothing behind the header": png(9000, 9000, SMALL),
        "tiles": tiff(t322=30000, t323=30000, t324=150, t325=17),
        "offsets": tiff(t273=2**31, t278=2**32 - 1, t279=2**31),
        "exif": JPEG[:2] + EXIF_SEGMENT * 270 + JPEG[2:],
    }


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in another unit, or missing")
def test_a_small_file_that_claims_much_is_refused_before_memory_is_used(tmp_path: Path) -> None:
    named = {"tiles": "tiles", "exif": "16,777,216 bytes", "pixels": "LABELGAP_MAX_PIXELS"}

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB

    def measure() -> None:
        before = peak()
        for name, content in bombs().items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(InputError, match=named.get(name, str(tmp_path))):
                decode(tmp_path / name)
            assert peak() - before < 100_000, name

    assert run_forked(measure) == 0


FEW_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from labelgap.core.errors import LabelGapError
from labelgap.data.decoding import decode
from labelgap.data import scanning
from labelgap.data.images import FileImages
from labelgap.data.loader import ImageLoader
from labelgap.data.transforms import Resize

folder = Path(sys.argv[1])
images = FileImages(folder, sorted(file.name for file in folder.iterdir()))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
taken = max(map(int, os.listdir("/proc/self/fd")))  # torch leaves some open on some processors
resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 10, hard))
scanning.cpu_count = lambda: 2
unreadable = scanning.scan_images(images).unreadable
assert sorted(unreadable) == [row for row, name in enumerate(images.names) if name.startswith("bad")], unreadable
good = [row for row in range(len(images)) if row not in unreadable]
assert sum(len(index) for index, _ in ImageLoader(images, good, transform=Resize(8), batch_size=4)) == len(good)
resource.setrlimit(resource.RLIMIT_NOFILE, (taken, hard))
try:
    decode(images.path(good[0]))
except LabelGapError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_ten_descriptors_are_enough_for_any_number_of_files_and_none_is_told(tmp_path: Path) -> None:
    for number, content in enumerate(samples()):
        (tmp_path / f"good{number:02}.jpg").write_bytes(content)
        (tmp_path / f"bad{number:02}.jpg").write_bytes(content[: len(content) // 2])
    environment = {**os.environ, "LABELGAP_CACHE": str(tmp_path.parent / "cache")}
    command = [sys.executable, "-c", FEW_DESCRIPTORS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Raise the limit" in done.stdout


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
    Image.new("1", (40, 25)).save(tmp_path / "a.png")
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
