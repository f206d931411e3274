"""Images that cannot be read: all of them told at once, or left out and counted; and HEIC with its extra."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from PIL import Image
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.decoding import decode
from labelgap.data.readers.table import load_csv


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
    with pytest.raises(ProblemsError) as caught:
        load_csv(album(tmp_path, 5, 25))
    assert len(caught.value.problems) == 25
    assert [each.line for each in caught.value.problems] == list(range(7, 32))
    lines = str(caught.value).splitlines()
    assert "25 images cannot be read (--on-bad-image skip leaves them out)" in lines[0]
    assert len(lines) == 21 and lines[-1].endswith("…and 5 more")
    assert "bad00.jpg is not an image" in lines[1]


def test_images_that_cannot_be_read_are_left_out_and_counted_when_asked(tmp_path: Path) -> None:
    table = album(tmp_path, 10, 7)
    (tmp_path / "good3.png").unlink()
    (tmp_path / "good4.png").write_bytes(b"")
    data = load_csv(table, on_bad_image="skip")
    names = sorted(name for split in data.splits for name in split.labels.images)
    assert names == [f"good{number}.png" for number in (0, 1, 2, 5, 6, 7, 8, 9)]
    expected = "9 images cannot be read and are left out: good3.png, good4.png, bad00.jpg, bad01.jpg, bad02.jpg …"
    assert expected in sentences(data)
    assert "8 images, 1 class:" in sentences(data)[2]
    for split in data.splits:
        assert all(split.images[row].shape == (8, 8, 3) for row in range(len(split)))


def test_a_table_of_which_no_image_can_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of its 3 images can be read"):
        load_csv(album(tmp_path, 0, 3), on_bad_image="skip")


def test_copies_are_found_beside_images_that_are_left_out(tmp_path: Path) -> None:
    table = album(tmp_path, 6, 2)
    (tmp_path / "again.png").write_bytes((tmp_path / "good5.png").read_bytes())
    table.write_text(
        table.read_text()
        .replace("image,cat\n", "image,cat\nbad00.jpg,1\n", 1)
        .replace("bad00.jpg,0\n", "again.png,1\n")
    )
    data = load_csv(table, on_bad_image="skip")
    assert data.train.groups is not None
    placed = dict(zip(data.train.labels.images, data.train.groups.tolist(), strict=True))
    assert placed["again.png"] == placed["good5.png"]
    assert sentences(data)[-1] == "1 exact duplicate: kept in one fold"


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


def test_a_heic_photo_without_the_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "a.heic").write_bytes(HEIC)
    with pytest.raises(
        InputError, match=r"is a HEIC photo, which needs the package pillow-heif: pip install 'labelgap\[heic\]'"
    ):
        decode(tmp_path / "a.heic")


@pytest.mark.parametrize("installed", [True, False])
def test_the_formats_of_a_message_are_those_that_this_installation_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.delitem(sys.modules, "pillow_heif", raising=False)
    if installed:
        (tmp_path / "pillow_heif.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "a.jpg").write_bytes(b"no image at all")
    with pytest.raises(InputError, match=r"These are: JPEG, PNG, .*\.") as caught:
        decode(tmp_path / "a.jpg")
    assert ("HEIF" in str(caught.value)) == installed


def test_a_heic_photo_is_opened_by_its_content_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = types.ModuleType("pillow_heif")
    opened = Image.open
    calls = []

    def register() -> None:
        calls.append("registered")
        monkeypatch.setattr(Image, "open", lambda path, formats: Image.new("RGB", (3, 2), "red"))

    helper.register_heif_opener = register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pillow_heif", helper)
    (tmp_path / "a.jpg").write_bytes(HEIC)
    assert decode(tmp_path / "a.jpg").tolist() == [[[255, 0, 0]] * 3] * 2
    assert calls == ["registered"] and Image.open is not opened


def test_a_real_heic_photo_is_read(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    image = Image.new("RGB", (64, 48), (200, 30, 60))
    heif.from_pillow(image).save(tmp_path / "a.heic", quality=90)
    pixels = decode(tmp_path / "a.heic")
    assert pixels.shape == (48, 64, 3) and abs(int(pixels[20, 20, 0]) - 200) < 12
