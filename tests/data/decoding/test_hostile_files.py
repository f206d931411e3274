"""Images made to do harm: mutations, bombs, many files with few descriptors. Errors name the file."""

from __future__ import annotations

import gc
import io
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
from labelgap.data import scanning
from labelgap.data.decoding import decode, decoded
from labelgap.data.images import FileImages

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
    assert outcomes == {"read", "refused"} and open_files() == before
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


def test_errors_of_a_scan_do_not_keep_the_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(SAMPLE, "PNG")[:-200])
    error = scanning._scan_image(FileImages(tmp_path, ["a.png"]), 0)
    assert isinstance(error, InputError)
    assert error.__traceback__ is None and error.__cause__ is None
