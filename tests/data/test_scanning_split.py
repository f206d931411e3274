"""Copies of images are found, files that cannot be read are named, and no image is on two sides of a split."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from tests.data.sentences import sentences

from labelgap.core.errors import ProblemsError
from labelgap.data import Split, scanning
from labelgap.data.dataset import Dataset
from labelgap.data.decoding import DecodedImage, decoded
from labelgap.data.findings import LeaksAllowed
from labelgap.data.images import FileImages
from labelgap.data.readers.table import load_table
from labelgap.data.scanning import (
    MAX_HASH_DISTANCE,
    RECORD,
    ImageScan,
    cluster_ids,
    exact_pairs,
    find_duplicates,
    find_unreadable,
    near_pairs,
    perceptual_hash,
    refuse_unreadable,
    scan_images,
)
from labelgap.data.split import hash_split, hold_out_val
from labelgap.labels import PRESENT, UNKNOWN, LabelTable


def scene(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """An image with shapes of its own: eight coloured rectangles."""
    random = np.random.default_rng(seed)
    pixels = np.full((size[1], size[0], 3), random.integers(0, 256, 3), dtype=np.uint8)
    for _ in range(8):
        left, right = sorted(random.integers(0, size[0], 2))
        top, bottom = sorted(random.integers(0, size[1], 2))
        pixels[top:bottom, left:right] = random.integers(0, 256, 3)
    return Image.fromarray(pixels)


def distance(first: Image.Image, second: Image.Image) -> int:
    bits = [perceptual_hash(DecodedImage(np.asarray(image.convert("RGB")))).bits for image in (first, second)]
    return (bits[0] ^ bits[1]).bit_count()


def saved(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def seen(bits: NDArray[np.uint64], color: Any = 0.0, textured: Any = 1) -> ImageScan:
    records = np.zeros(len(bits), RECORD)
    records["bits"], records["color"], records["textured"] = bits, color, textured
    return ImageScan(("",) * len(bits), records)


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_of_another_size_or_quality_has_nearly_the_same_bits_and_another_image_has_not(seed: int) -> None:
    image = scene(seed)
    for copy in (saved(image, 50), *(image.resize(size, Image.Resampling.BICUBIC) for size in ((320, 240), (80, 60)))):
        assert distance(image, copy) <= MAX_HASH_DISTANCE
    assert distance(image, scene(seed + 100)) > 2 * MAX_HASH_DISTANCE


def test_near_pairs_are_exactly_those_that_comparing_all_with_all_finds() -> None:
    random = np.random.default_rng(3)
    bits = random.integers(0, 2**63, 400, dtype=np.uint64)
    for row in range(100):
        for bit in random.choice(63, int(random.integers(0, 8)), replace=False):
            bits[300 + row] = (bits[300 + row] if bit % 2 else bits[row]) ^ np.uint64(1 << int(bit))
    bits[300:350] = bits[:50] ^ np.uint64(0b10101)
    bits[350:380] = bits[:30] ^ np.uint64(1 << 62 | 1 << 40 | 1 << 20 | 1)
    bits[380:400] = bits[:20] ^ np.uint64(1 << 62 | 1 << 50 | 1 << 40 | 1 << 20 | 1)
    expected = {
        (first, second)
        for first in range(400)
        for second in range(first + 1, 400)
        if (int(bits[first]) ^ int(bits[second])).bit_count() <= MAX_HASH_DISTANCE
    }
    found = near_pairs(seen(bits))
    assert set(zip(found.first.tolist(), found.second.tolist(), strict=True)) == expected
    assert not found.exact.any() and len(expected) >= 80


def test_other_colours_are_other_images_and_plain_sheets_are_never_alike() -> None:
    bits = np.full(3, 7, dtype=np.uint64)
    red = seen(bits, np.array([[90, 0], [0, 0], [3, 0]], dtype=np.float32))
    assert set(zip(near_pairs(red).first, near_pairs(red).second, strict=True)) == {(1, 2)}
    assert len(near_pairs(seen(bits, textured=[1, 0, 0]))) == 0
    found = near_pairs(seen(np.full(5000, 7, dtype=np.uint64)))
    assert len(found) == 4999 and len(np.unique(cluster_ids(found, 5000))) == 1, "connected however many they are"


def test_the_same_bytes_are_found_under_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("a.png", b"one"), ("b.png", b"two"), ("c.jpg", b"one"), ("d.png", b"three"), ("e.png", b"one")):
        (tmp_path / name).write_bytes(text)
    found = exact_pairs(FileImages(tmp_path, ["a.png", "b.png", "c.jpg", "d.png", "e.png", "gone.png"]))
    assert list(zip(found.first.tolist(), found.second.tolist(), strict=True)) == [(0, 2), (0, 4)]
    assert found.exact.all()
    monkeypatch.setattr(Path, "open", lambda *arguments, **options: pytest.fail("only files of one size are opened"))
    assert len(exact_pairs(FileImages(tmp_path, ["b.png", "d.png"]))) == 0


def test_a_scan_is_remembered_per_file_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(scanning, "_MIN_CACHED_SECONDS", -1.0)
    opened: list[str] = []

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.append(path.name)
        return decoded(path, *arguments, **options)

    monkeypatch.setattr(scanning, "decoded", counted)
    for number, name in enumerate(("a.png", "b.png", "c.png")):
        scene(number, (40, 40 + number)).save(tmp_path / name)
    (tmp_path / "bad.png").write_text("no image")
    first = scan_images(FileImages(tmp_path, ["a.png", "bad.png", "b.png"]))
    assert sorted(opened) == ["a.png", "b.png", "bad.png"] and [*first.unreadable] == [1]
    opened.clear()
    again = scan_images(FileImages(tmp_path, ["b.png", "c.png", "a.png", "bad.png"]))
    assert sorted(opened) == ["bad.png", "c.png"], "one image more costs one image more, what is broken is tried again"
    assert (again.records[[2, 0]] == first.records[[0, 2]]).all()
    alone = scan_images(FileImages(tmp_path / "..", [f"{tmp_path.name}/c.png"]))
    for name in ("bits", "color"):
        assert (alone.records[name][0] == again.records[name][1]).all()
    opened.clear()
    scene(7, (40, 50)).save(tmp_path / "b.png")
    images = FileImages(tmp_path, ["b.png", "c.png"])
    assert scan_images(images).records["bits"][0] != first.records["bits"][2] and opened == ["b.png"]
    for file in (tmp_path / "cache" / "scans").iterdir():
        file.write_bytes(b"damaged")
    assert scan_images(images).errors == ("", "")


def test_no_two_photos_of_the_real_sample_are_taken_for_one(shared_data: Path) -> None:
    folder = shared_data / "VOCdevkit" / "VOC2012" / "JPEGImages"
    names = sorted(file.name for file in folder.iterdir())[:150]
    images = FileImages(folder, names)
    looks = scan_images(images)
    assert not looks.unreadable and looks.records["textured"].mean() > 0.99
    assert len(find_duplicates(images, looks, "near")) == 0


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
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
    bad = {f"short {kind}.jpg": encoded(kind)[:-200] for kind in FORMATS[:4]}
    bad |= {"text.jpg": b"not a photo", "page.png": b"<!DOCTYPE html>", "empty.jpg": b""}
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    names = [*sound, *bad, "gone.jpg"]
    found = find_unreadable(FileImages(tmp_path, names), decode=decode)
    assert [names[row] for row in found] == [*bad, "gone.jpg"]
    assert all(names[row] in reason for row, reason in found.items())
    assert sorted(scan_images(FileImages(tmp_path, names)).unreadable) == sorted(found)


def test_damage_in_the_middle_is_found_where_all_are_decoded(tmp_path: Path) -> None:
    content = bytearray(encoded("PNG"))
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "a.png").write_bytes(content)
    images = FileImages(tmp_path, ["a.png"])
    assert find_unreadable(images, decode=False) == {} and [*find_unreadable(images, decode=True)] == [0]


@pytest.mark.parametrize("decode", [False, True])
def test_one_error_names_those_of_all_splits(tmp_path: Path, sound: list[str], decode: bool) -> None:
    splits = {}
    for name in ("train", "val"):
        (tmp_path / f"{name}.jpg").write_text("not a photo")
        images = FileImages(tmp_path, [*sound, f"{name}.jpg"])
        table = LabelTable.from_dense(np.ones((len(images), 1), np.int8), ["a"], images.names)
        splits[name] = Split(name, images, table)
    done: list[int] = []
    with pytest.raises(ProblemsError, match=r"2 images(.|\n)*train\.jpg(.|\n)*val\.jpg"):
        refuse_unreadable(Dataset("photos", splits["train"], splits["val"]), done.append, decode=decode)
    assert sum(done) == 2 * len(sound) + 2


def image(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """An image with shapes of its own, at any size."""
    return scene(seed).resize(size, Image.Resampling.LANCZOS)


def album(folder: Path, rows: list[str], header: str = "image,split,cat") -> Path:
    """Write a table; images that are not there yet are drawn, each its own."""
    for number, row in enumerate(rows):
        if not (folder / row.split(",")[0]).exists():
            image(number).save(folder / row.split(",")[0])
    (folder / "tags.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "tags.csv"


def split_of(data: Dataset) -> dict[str, str]:
    return {name: split.name for split in data.splits for name in split.labels.images}


def group_of(data: Dataset) -> dict[str, int]:
    assert data.train.groups is not None
    return dict(zip(data.train.labels.images, data.train.groups.tolist(), strict=True))


def test_the_images_of_a_group_are_kept_together_and_blanks_are_no_group(tmp_path: Path) -> None:
    rows = [f"{number:02d}.png,{'' if number < 20 else number // 5},{number % 2}" for number in range(60)]
    data = load_table(album(tmp_path, rows, "image,group,cat"))
    for placed in (group_of(data), split_of(hold_out_val(data))):
        for group in range(4, 12):
            assert len({placed[f"{number:02d}.png"] for number in range(group * 5, group * 5 + 5)}) == 1
        assert len({placed[f"{number:02d}.png"] for number in range(20)}) > 1
    assert "8 groups" in sentences(data)[-1]


def test_copies_are_kept_together(tmp_path: Path) -> None:
    rows = [f"{number:02d}.png,{number % 2}" for number in range(40)]
    album(tmp_path, rows, "image,cat")
    for number in range(8):
        (tmp_path / f"copy{number}.png").write_bytes((tmp_path / f"{number:02d}.png").read_bytes())
        image(number, (240, 180)).save(tmp_path / f"large{number}.jpg", quality=92)
    extra = [f"{name},1" for number in range(8) for name in (f"copy{number}.png", f"large{number}.jpg")]
    data = load_table(album(tmp_path, rows + extra, "image,cat"))
    placed = group_of(data)
    for number in range(8):
        assert len({placed[name] for name in (f"{number:02d}.png", f"copy{number}.png", f"large{number}.jpg")}) == 1
    assert len(set(placed.values())) == 40
    assert sentences(data)[-1].startswith("8 exact and 8 near")
    exact_only = load_table(tmp_path / "tags.csv", duplicates="exact")
    assert sentences(exact_only)[-1].startswith("8 exact duplicates")
    held = split_of(hold_out_val(data))
    assert "val" in held.values() and all(held[f"{n:02d}.png"] == held[f"copy{n}.png"] for n in range(8))
    assert "duplicate" not in sentences(load_table(tmp_path / "tags.csv", duplicates="off"))[-1]


def test_a_split_of_the_file_that_leaks_is_a_problem_unless_allowed(tmp_path: Path) -> None:
    image(1).save(tmp_path / "a.png")
    image(1).save(tmp_path / "b.png")
    image(1, (240, 180)).save(tmp_path / "c.jpg", quality=92)
    rows = ["x.png,train,1", "b.png,test,1", "a.png,train,1", "y.png,val,0", "c.jpg,val,1"]
    table = album(tmp_path, rows)
    with pytest.raises(ProblemsError) as caught:
        load_table(table)
    assert [each.line for each in caught.value.problems] == [3, 6] and "--allow-leaks" in str(caught.value)
    assert all("a.png (train, line 4)" in each.message for each in caught.value.problems)
    data = load_table(table, allow_leaks=True)
    assert [len(split) for split in data.splits] == [2, 2, 1]
    assert any(isinstance(each, LeaksAllowed) for each in data.findings)
    with pytest.raises(ProblemsError, match="1 problem,"):
        load_table(table, duplicates="exact")
    assert len(load_table(table, duplicates="off").splits) == 3


def random_table(count: int, classes: int, seed: int, share: float = 0.3) -> LabelTable:
    random = np.random.default_rng(seed)
    codes = random.choice([PRESENT, UNKNOWN], (count, classes), p=[share, 1 - share])
    return LabelTable.from_dense(codes, images=[f"photos/{number:05d}.jpg" for number in range(count)])


def splits(table: LabelTable, seed: int = 0) -> dict[str, int]:
    return {table.images[row]: split for split, part in enumerate(hash_split(table, 2, seed)) for row in part}


@settings(max_examples=30)
@given(count=st.integers(0, 60), classes=st.integers(1, 5), tenths=st.integers(1, 2), seed=st.integers(0, 10_000))
def test_a_row_is_in_one_split_and_a_class_in_the_first(count: int, classes: int, tenths: int, seed: int) -> None:
    table = random_table(count, classes, seed)
    parts = hash_split(table, tenths, seed)
    assert len(parts) == tenths + 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    known, train = (each.counts().present > 0 for each in (table, table.select(parts[0])))
    assert count < 10 or (known == train).all()
    assert count < 5 or all(map(len, parts))


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_rows_that_change_leave_the_others_where_they_are(seed: int, data: st.DataObject) -> None:
    table = random_table(300, 3, seed)
    before = splits(table)
    rows = data.draw(st.permutations(range(300)))
    fewer = table.select(rows[: data.draw(st.integers(200, 300))])
    added = LabelTable.from_dense(np.ones((7, 3)), images=[f"new-{seed}-{n}.jpg" for n in range(7)])
    relabeled = LabelTable.from_dense(np.ones((300, 3)), images=table.images)
    for changed in (fewer, LabelTable.concatenate([added, table]), relabeled):
        after = splits(changed)
        assert all(after[name] == split for name, split in before.items() if name in after)


def test_a_tenth_is_held_out_twice_and_classes_come_out_evenly_as_chance_has_it() -> None:
    table = random_table(20_000, 2, 0)
    parts = hash_split(table, 2)
    assert [len(part) / 20_000 for part in parts] == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    for part in parts:
        assert table.select(part).counts().present / len(part) == pytest.approx([0.3, 0.3], abs=0.04)
