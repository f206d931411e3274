"""Images that cannot be read: all of them told at once, or left out and counted; and HEIC with its extra."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from PIL import Image

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.decoding import decode
from labelgap.data.findings import ImagesSkipped
from labelgap.data.readers.table import load_csv

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


def album(folder: Path, good: int, bad: int) -> Path:
    """A table of images of which the last are no images."""
    for number in range(good):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"good{number}.png")
    for number in range(bad):
        (folder / f"bad{number:02d}.jpg").write_text(f"no image {number}")
    names = [*(f"good{number}.png" for number in range(good)), *(f"bad{number:02d}.jpg" for number in range(bad))]
    rows = [f"{name},{number % 2}" for number, name in enumerate(names)]
    (folder / "tags.csv").write_text("\n".join(["image,cat", *rows]) + "\n")
    return folder / "tags.csv"


def test_all_images_that_cannot_be_read_are_told_in_one_error(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="--on-bad-image skip") as caught:
        load_csv(album(tmp_path, 5, 25))
    assert [each.line for each in caught.value.problems] == list(range(7, 32))
    lines = str(caught.value).splitlines()
    assert len(lines) == 21 and "bad00.jpg" in lines[1]
    with pytest.raises(InputError, match="3 images"):
        load_csv(album(tmp_path, 0, 3), on_bad_image="skip")


def test_images_that_cannot_be_read_are_left_out_and_copies_of_the_others_are_found(tmp_path: Path) -> None:
    table = album(tmp_path, 10, 7)
    (tmp_path / "good3.png").unlink()
    (tmp_path / "good4.png").write_bytes(b"")
    (tmp_path / "again.png").write_bytes((tmp_path / "good5.png").read_bytes())
    header, text = table.read_text().split("\n", 1)
    table.write_text(f"{header}\nbad06.jpg,1\n{text.replace('bad06.jpg', 'again.png')}")
    data = load_csv(table, on_bad_image="skip")
    good = [f"good{number}.png" for number in (0, 1, 2, 5, 6, 7, 8, 9)]
    assert data.train.labels.images == (*good, "again.png") and len(data.splits) == 1
    bad = tuple(f"bad{number:02d}.jpg" for number in range(6))
    assert ImagesSkipped(("bad06.jpg", "good3.png", "good4.png", *bad)) in data.findings
    assert all(data.train.images[row].shape == (8, 8, 3) for row in range(9))
    assert data.train.groups is not None
    placed = dict(zip(data.train.labels.images, data.train.groups.tolist(), strict=True))
    assert [name for name, group in placed.items() if group == placed["again.png"]] == ["good5.png", "again.png"]


@pytest.mark.parametrize("installed", [True, False])
def test_heic_is_opened_by_its_content_where_the_extra_is_installed_and_messages_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    helper = types.ModuleType("pillow_heif")
    helper.register_heif_opener = lambda: monkeypatch.setattr(  # type: ignore[attr-defined]
        Image, "open", lambda path, formats: Image.new("RGB", (3, 2), "red")
    )
    monkeypatch.setitem(sys.modules, "pillow_heif", helper if installed else None)
    monkeypatch.setattr("labelgap.data.decoding.find_spec", lambda name: helper if installed else None)
    (tmp_path / "b.jpg").write_bytes(b"no image at all")
    with pytest.raises(InputError, match=r"JPEG, PNG, ") as caught:
        decode(tmp_path / "b.jpg")
    assert ("HEIF" in str(caught.value)) == installed
    (tmp_path / "a.jpg").write_bytes(HEIC)
    if installed:
        assert decode(tmp_path / "a.jpg").tolist() == [[[255, 0, 0]] * 3] * 2
    else:
        with pytest.raises(InputError, match=r"labelgap\[heic\]"):
            decode(tmp_path / "a.jpg")


def test_a_real_heic_photo_is_read(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.from_pillow(Image.new("RGB", (64, 48), (200, 30, 60))).save(tmp_path / "a.heic", quality=90)
    pixels = decode(tmp_path / "a.heic")
    assert pixels.shape == (48, 64, 3) and abs(int(pixels[20, 20, 0]) - 200) < 12
