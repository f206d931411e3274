from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.training.untrained_run import CLASSES, make_run

from labelgap.core.errors import InputError
from labelgap.data import Split
from labelgap.data.dataset import InMemoryImages, as_image_source
from labelgap.data.images import ArrayImages, FileImages
from labelgap.labels import LabelTable


def ramp(height: int = 6, width: int = 10) -> NDArray[np.uint8]:
    """An image without any symmetry."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 20 + 10, y * 30 + 5, x * y * 3 + 1], axis=2).astype(np.uint8)


def read(folder: Path, name: str) -> NDArray[np.uint8]:
    return FileImages(folder, [name])[0]


def test_arrays_that_are_no_images_are_refused() -> None:
    wrong = [(np.zeros(shape, np.uint8), None) for shape in ((4, 4), (2, 4, 4, 2), (2, 0, 4), (2, 4, 4, 3, 1))]
    for array, names in (*wrong, (np.zeros((2, 4, 4)), None), (np.zeros((2, 4, 4), np.uint8), ["a", "b", "c"])):
        with pytest.raises(InputError):
            ArrayImages(array, names)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, suffix: str, orientation: int) -> None:
    """The stored pixels are turned back by hand; after reading, the image must be upright."""
    upright = np.kron(ramp(), np.ones((16, 16, 1), np.uint8))
    turned = [upright, upright[:, ::-1], upright[::-1, ::-1], upright[::-1], upright.transpose(1, 0, 2)]
    turned += [np.rot90(upright, 1), upright[::-1, ::-1].transpose(1, 0, 2), np.rot90(upright, -1)]
    stored = turned[orientation - 1]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / f"a.{suffix}", exif=exif, quality=95)
    got = read(tmp_path, f"a.{suffix}")
    assert got.shape == upright.shape
    assert np.abs(got.astype(int) - upright).mean() < 8


def test_palettes_are_looked_up_with_and_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (4, 2), 1)
    image.putpalette([255, 0, 0, 0, 0, 255, 9, 9, 9])
    image.putpixel((0, 0), 0)
    image.save(tmp_path / "plain.png")
    image.save(tmp_path / "key.gif", transparency=0)
    image.save(tmp_path / "bytes.png", transparency=bytes([0, 255]))
    assert read(tmp_path, "plain.png")[0, :2].tolist() == [[255, 0, 0], [0, 0, 255]]
    for name in ("key.gif", "bytes.png"):
        assert read(tmp_path, name)[0, :2].tolist() == [[255, 255, 255], [0, 0, 255]]


@pytest.mark.parametrize(
    ("mode", "suffix", "color", "expected"),
    [
        ("CMYK", "jpg", (0, 255, 255, 0), (255, 0, 0)),
        ("CMYK", "tif", (0, 0, 0, 255), (0, 0, 0)),
        ("1", "png", 1, (255, 255, 255)),
        ("YCbCr", "jpg", (128, 128, 128), (128, 128, 128)),
        ("RGBA", "png", (200, 0, 0, 0), (255, 255, 255)),
        ("RGBA", "png", (200, 0, 0, 255), (200, 0, 0)),
        ("RGBA", "png", (200, 0, 0, 51), (244, 204, 204)),
        ("LA", "png", (100, 255), (100, 100, 100)),
        ("LA", "png", (100, 0), (255, 255, 255)),
    ],
)
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str, suffix: str, color: Any, expected: tuple[int, ...]) -> None:
    Image.new(mode, (16, 16), color).save(tmp_path / f"a.{suffix}", quality=95)
    assert np.abs(read(tmp_path, f"a.{suffix}").astype(int) - expected).max() <= (12 if suffix == "jpg" else 1)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_samples_of_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 257, 128 * 257, 65535]], dtype=np.uint16)
    if suffix == "pgm":
        (tmp_path / "a.pgm").write_bytes(b"P5 4 1 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(tmp_path / f"a.{suffix}")
    assert read(tmp_path, f"a.{suffix}")[0, :, 1].tolist() == [0, 1, 128, 255]
    samples = np.array([[[0, 0x8040, 0xFFFF]]], dtype=">u2")
    (tmp_path / "color.png").write_bytes(png(1, 1, depth=16, color=2, lines=[samples.tobytes()]))
    assert read(tmp_path, "color.png")[0, 0].tolist() == [0, 0x80, 0xFF]


@pytest.mark.parametrize(("values", "expected"), [([0, 0.5, 1], 128), ([0, 100, 200], 100), ([0, 32768, 65535], 128)])
def test_real_numbers_are_scaled_by_the_next_full_scale(tmp_path: Path, values: list[float], expected: int) -> None:
    Image.fromarray(np.array([values], dtype=np.float32)).save(tmp_path / "a.tif")
    assert read(tmp_path, "a.tif")[0, 1].tolist() == [expected] * 3


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, depth: int, color: int, lines: list[bytes]) -> bytes:
    """A PNG written by hand."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + line for line in lines))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def test_files_that_are_no_images_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")  # reading it would never end
    for name in ("empty.jpg", "text.jpg", "folder.jpg", "none.jpg", "pipe.jpg"):
        with pytest.raises(InputError, match=name):
            read(tmp_path, name)


@pytest.mark.parametrize("name", ["../a.png", "sub/../../a.png", "/etc/a.png", "..", "", " ", "a\0.png"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"out|name"):
        FileImages(tmp_path, ["fine.png", name])


def test_names_inside_the_folder_may_be_absolute_nested_or_odd(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    names = ["sub/a..b.png", str(tmp_path / "c.png"), "sub/../d é.png", "..e.png"]
    images = FileImages(tmp_path, names)
    for row in range(len(names)):
        Image.fromarray(ramp()).save(images.path(row))
        assert images[row].shape == (6, 10, 3)
    assert list(images.names) == names


def test_every_form_of_images_gives_the_same_scores(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 50, 70, 3), dtype=np.uint8)
    expected = run.predict(ArrayImages(pixels), device="cpu")
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    files = [tmp_path / f"{number}.png" for number in range(3)]
    first = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    table = LabelTable.from_dense(np.full((3, 3), -1), CLASSES)
    ways: dict[str, Any] = {
        "paths": files,
        "texts": [str(file) for file in files],
        "Pillow images": [Image.open(file) for file in files],
        "an array": pixels,
        "arrays": list(pixels),
        "floats": pixels / 255,
        "a tensor": first,
        "tensors": tuple(first),
        "a tensor of floats": first.float() / 255,
        "halves": (first.double() / 255),
        "a mixture": [pixels[0], first[1], Image.fromarray(pixels[2])],
        "a split": Split("test", ArrayImages(pixels), table),
        "a source": InMemoryImages(list(pixels)),
    }
    for name, way in ways.items():
        np.testing.assert_allclose(run.predict(way, device="cpu"), expected, atol=1e-6, err_msg=name)
    ones = [files[1], str(files[1]), Image.open(files[1]), pixels[1], first[1], first[1] / 255]
    for one in ones:
        np.testing.assert_allclose(run.predict(one, device="cpu"), expected[1:2], atol=1e-6)
    gray = pixels[..., 0]
    expected = run.predict(ArrayImages(gray), device="cpu")
    for way in (gray, gray[..., None], torch.from_numpy(gray)[:, None], [Image.fromarray(each) for each in gray]):
        np.testing.assert_allclose(run.predict(way, device="cpu"), expected, atol=1e-6)
    np.testing.assert_allclose(run.predict(gray[0], device="cpu"), expected[:1], atol=1e-6)
    source = InMemoryImages(list(pixels))
    chosen = source.select([2, 0])
    assert chosen.names == ("2", "0") and np.array_equal(chosen[0], pixels[2])
    assert source.fingerprint() != chosen.fingerprint() == InMemoryImages([pixels[2], pixels[0]]).fingerprint()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "not int"),
        (b"bytes", "not bytes"),
        ([1, 2], "item 0 is a int"),
        (["a.jpg", np.zeros((4, 4), np.uint8)], "item 0 is a str"),
        (np.zeros((4, 4, 3), np.int64), "an array of int64"),
        (np.full((4, 4, 3), 200.0), "200 to 200"),
        (torch.full((3, 4, 4), -1.0), "from -1 to -1"),
        (torch.full((3, 4, 4), float("nan")), "from nan"),
        (torch.zeros(4, 4, 3), r"a tensor of shape \(4, 4, 3\)"),
        (torch.zeros(3, 4, 4, dtype=torch.int32), "a tensor of int32"),
        (np.zeros((2, 4, 4, 5), np.uint8), r"image 0 is an array of shape \(4, 4, 5\)"),
        (np.zeros((0, 4, 3), np.uint8), "shape"),
        (np.zeros(4, np.uint8), "shape"),
        (np.zeros((1, 2, 3, 4, 5), np.uint8), "shape"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_image_is_rejected_with_a_reason(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_image_source(given)
