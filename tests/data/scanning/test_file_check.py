"""Files that cannot be read are all named: by a quick look at both ends of each file, or by decoding them."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelgap.core.errors import ProblemsError
from labelgap.data import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.scanning import find_unreadable, refuse_unreadable
from labelgap.labels import LabelTable


def encoded(kind: str) -> bytes:
    file = BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")


@pytest.fixture
def sound(tmp_path: Path) -> list[str]:
    """Files of all formats, those of some with more bytes at their end."""
    for kind in FORMATS:
        (tmp_path / f"{kind}.jpg").write_bytes(encoded(kind))
    (tmp_path / "movie.jpg").write_bytes(encoded("JPEG") + b"a movie of the phone" * 50)
    (tmp_path / "padded.jpg").write_bytes(encoded("GIF") + bytes(9))
    return sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("decode", [False, True])
def test_truncated_files_and_files_that_are_no_images_are_found(tmp_path: Path, sound: list[str], decode: bool) -> None:
    for kind in FORMATS[:4]:
        (tmp_path / f"short {kind}.jpg").write_bytes(encoded(kind)[:-200])
    (tmp_path / "text.jpg").write_text("not a photo")
    (tmp_path / "page.png").write_text("<!DOCTYPE html>")
    (tmp_path / "empty.jpg").write_bytes(b"")
    bad = sorted(path.name for path in tmp_path.iterdir() if path.name not in sound)
    names = [*sound, *bad, "gone.jpg"]
    found = find_unreadable(FileImages(tmp_path, names), decode=decode)
    assert [names[row] for row in found] == [*bad, "gone.jpg"]
    reasons = {names[row]: reason for row, reason in found.items()}
    assert f"{tmp_path / 'short JPEG.jpg'} is damaged or truncated" in reasons["short JPEG.jpg"]
    assert "page.png is a web page" in reasons["page.png"] and "empty.jpg is empty" in reasons["empty.jpg"]
    assert "gone.jpg does not exist" in reasons["gone.jpg"]


def test_damage_in_the_middle_is_found_where_all_are_decoded(tmp_path: Path) -> None:
    content = bytearray(encoded("PNG"))
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "a.png").write_bytes(content)
    images = FileImages(tmp_path, ["a.png"])
    assert find_unreadable(images, decode=False) == {} and [*find_unreadable(images, decode=True)] == [0]


@pytest.mark.parametrize("decode", [False, True])
def test_one_error_names_those_of_all_splits_and_every_image_is_counted(
    tmp_path: Path, sound: list[str], decode: bool
) -> None:
    splits = {}
    for name in ("train", "val"):
        (tmp_path / f"{name}.jpg").write_text("not a photo")
        images = FileImages(tmp_path, [*sound, f"{name}.jpg"])
        table = LabelTable.from_dense(np.ones((len(images), 1), np.int8), ["a"], images.names)
        splits[name] = Split(name, images, table)
    done: list[int] = []
    with pytest.raises(ProblemsError, match="2 images cannot be read") as told:
        refuse_unreadable(Dataset("photos", splits["train"], splits["val"]), done.append, decode=decode)
    assert ["train.jpg is not" in str(told.value), "val.jpg is not" in str(told.value)] == [True, True]
    assert sum(done) == 2 * len(sound) + 2
