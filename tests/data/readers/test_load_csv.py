"""A table, CSV or Parquet, and a folder of real image files: what is read, how it is divided, and what can be wrong."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.data.readers.refused import refused

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.dataset import Dataset
from labelgap.data.decoding import decode
from labelgap.data.findings import ImagesSkipped, NoValRows, ValidationHeldOut
from labelgap.data.readers.table import load_table
from labelgap.data.registry import load, load_from_recipe
from labelgap.data.split import hold_out_val
from labelgap.labels import ABSENT, PRESENT, UNKNOWN


def draw(path: Path, size: tuple[int, int] = (12, 8), color: tuple[int, int, int] | None = None) -> None:
    """Draw a plain sheet, of a colour of its own unless it is given, so that no two are the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color or tuple(hashlib.sha256(path.name.encode()).digest()[:3])).save(path)


def album(folder: Path, text: str, images: Sequence[str] = ()) -> Path:
    """Write a table, and beside it the images that it names (or those given)."""
    table = folder / "tags.csv"
    table.parent.mkdir(exist_ok=True)
    table.write_text(text, encoding="utf-8")
    for image in images or [line.split(",")[0] for line in text.splitlines()[1:]]:
        draw(folder / image)
    return table


def wide(rows: int, split: Sequence[str] | None = None) -> str:
    """A table of cats and dogs, by turns."""
    lines = ["image,split,cat,dog" if split is not None else "image,cat,dog"]
    for row in range(rows):
        named = [split[row]] if split is not None else []
        lines.append(",".join([f"{row:03d}.png", *named, *(("1", "") if row % 2 else ("0", "1"))]))
    return "\n".join(lines) + "\n"


def problems(path: Path, images: Path | None = None) -> list[tuple[int, str]]:
    with pytest.raises(ProblemsError) as caught:
        load_table(path, images)
    return [(problem.line, problem.message) for problem in caught.value.problems]


def everything(data: Dataset) -> list[str]:
    return [name for split in data.splits for name in split.labels.images]


def test_labels_and_pixels_of_every_row_belong_together(tmp_path: Path) -> None:
    table = album(tmp_path, "image,split,red,blue\na.png,train,1,0\nb/c.jpg,test,,1\nd.png,val,0,\n")
    draw(tmp_path / "a.png", (10, 6), (250, 0, 0))
    draw(tmp_path / "b" / "c.jpg", (20, 16), (0, 0, 250))
    data = load_table(table)
    assert data.classes == ("red", "blue") and data.test is not None
    dense = [split.labels.to_dense().tolist() for split in data.splits]
    assert dense == [[[PRESENT, ABSENT]], [[ABSENT, UNKNOWN]], [[UNKNOWN, PRESENT]]]
    assert [split.labels.images for split in data.splits] == [("a.png",), ("d.png",), ("b/c.jpg",)]
    assert all(split.truth is None for split in data.splits)
    red, blue = data.train.images[0], data.test.images[0]
    assert red.shape == (6, 10, 3) and blue.shape == (16, 20, 3)
    assert red[3, 3].argmax() == 0 and blue[3, 3].argmax() == 2
    apart = tmp_path / "tables" / "tags.csv"
    apart.parent.mkdir()
    apart.write_text(table.read_text())
    assert everything(load_table(str(apart), str(tmp_path))) == everything(data)


def test_a_tenth_of_train_becomes_val_where_a_network_is_trained(tmp_path: Path) -> None:
    data = load_table(album(tmp_path, wide(60)))
    held_out, again = hold_out_val(data), hold_out_val(data)
    other = hold_out_val(load("csv", tmp_path / "tags.csv", seed=1))
    assert held_out.val is not None and 2 <= len(held_out.val) <= 12
    assert sorted(everything(held_out)) == sorted(everything(data))
    assert everything(held_out) == everything(again) != everything(other)
    assert hold_out_val(held_out) is held_out
    assert held_out.findings[-1] == ValidationHeldOut(len(held_out.val), 60, 0)
    data = load_table(album(tmp_path / "a", wide(40, ["train"] * 30 + ["test"] * 10)))
    assert data.val is None and [len(split) for split in data.splits] == [30, 10]
    assert data.findings[-1] == NoValRows(30) and hold_out_val(data).val is not None


def test_val_and_test_can_be_tables_of_their_own(tmp_path: Path) -> None:
    album(tmp_path, wide(12))
    header, *rows = (tmp_path / "tags.csv").read_text().splitlines()
    for name, part in (("train", rows[:7]), ("val", rows[7:9])):
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *part]) + "\n")
    (tmp_path / "test.csv").write_text(f"image,owl,{header.split(',')[1]}\n010.png,1,0\n011.png,0,1\n")
    data = load_table(tmp_path / "train.csv", val=tmp_path / "val.csv", test=tmp_path / "test.csv")
    assert [len(split) for split in data.splits] == [7, 2, 2]
    assert data.test is not None and data.test.labels.to_dense().tolist() == [[0, UNKNOWN], [1, UNKNOWN]]
    reloaded = load_from_recipe(load("csv", tmp_path / "train.csv", test=tmp_path / "test.csv").recipe)
    assert reloaded.val is None and reloaded.test is not None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("image,cat\n001.png,1\n", "001.png"),
        ("image,zebra\nx.png,1\n", "test.csv"),
        ("image,cat\nx.png,7\n", "test.csv"),
    ],
)
def test_a_table_of_test_that_does_not_fit_is_refused(tmp_path: Path, text: str, named: str) -> None:
    table = album(tmp_path, wide(4))
    (tmp_path / "x.png").write_bytes((tmp_path / "000.png").read_bytes())
    (tmp_path / "test.csv").write_text(text)
    with pytest.raises(InputError, match=named):
        load_table(table, test=tmp_path / "test.csv")
    with pytest.raises(InputError):
        load_table(album(tmp_path, wide(4, ["train", "train", "val", "test"])), test=tmp_path / "test.csv")


def test_whole_paths_detours_and_links_are_taken_inside_of_the_folder_only(tmp_path: Path) -> None:
    draw(tmp_path / "secret.png")
    inside, outside = tmp_path / "album" / "a.png", tmp_path / "secret.png"
    table = album(tmp_path / "album", f"image,cat\n{inside},1\n{outside},0\n", ["a.png", "b/x.png", "c.png"])
    ((line, message),) = problems(table)
    assert line == 3 and message.startswith(str(outside)) and message.endswith(f"--images {tmp_path}")
    table.write_text(f"image,cat\n{inside},1\nb/../c.png,0\n")
    assert load_table(table).train.labels.images == (str(inside), "b/../c.png")
    table.write_text("image,cat\na.png,1\n./a.png,0\n")
    assert [line for line, _ in problems(table)] == [3]
    inside.with_name("link.png").symlink_to(outside)
    table.write_text("image,cat\nlink.png,1\n")
    assert load_table(table).train.images[0].shape == (8, 12, 3)


def test_every_problem_of_the_table_and_of_the_images_is_told_at_once(tmp_path: Path) -> None:
    rows: list[tuple[str, list[str]]] = [
        ("a.png,train,1,0", []),
        ("a.png,train,1,0", ["a.png "]),
        (
            "gone.png,tets,dgo,2",
            ["'2' under dog", "'dgo' under cat", "'tets' under split", f"{tmp_path / 'gone.png'} "],
        ),
        ("b.png,train,1", ["3 cells"]),
        (",train,1,0", [""]),
        ("../c.png,val,,1", ["../c.png "]),
        ("b.png/c.png,,1,1", ["'' under split", f"{tmp_path / 'b.png' / 'c.png'} "]),
        *((f"{name},test,1,1", [str(tmp_path / name)]) for name in ("empty.png", "broken.png", "folder", "x" * 300)),
    ]
    text = "\n".join(["image,split,cat,dog", *(row for row, _ in rows)])
    table = album(tmp_path, text, ["a.png", "b.png", "folder/d.png"])
    (tmp_path / "empty.png").touch()
    (tmp_path / "broken.png").write_text("no image")
    expected = [(line, start) for line, (_, starts) in enumerate(rows, 2) for start in starts]
    found = problems(table)
    assert [line for line, _ in found] == [line for line, _ in expected]
    assert all(message.startswith(start) for (_, message), (_, start) in zip(found, expected, strict=True))


def test_folders_without_the_images_and_tables_that_are_not_there_are_refused(tmp_path: Path) -> None:
    table = album(tmp_path, wide(3))
    (tmp_path / "empty").mkdir()
    assert len(problems(table, tmp_path / "empty")) == 3
    with pytest.raises(ProblemsError, match="--images"):
        load_table(table, tmp_path / "empty")
    for path, images in ((table, tmp_path / "photos"), (table, table), (tmp_path / "none.csv", None)):
        with pytest.raises(InputError, match=(images or path).name):
            load_table(path, images)


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        ("image,split,cat\na.png,val,1\nb.png,test,1\n", {}, "0 train, 1 val, 1 test"),
        ("image,cat\na.png,1\n", {"zeros": "missing"}, "zeros='missing'"),
    ],
)
def test_a_senseless_table_is_refused(tmp_path: Path, text: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        load_table(album(tmp_path, text, ["a.png", "b.png", "c.png"]), **options)


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


def half_readable(folder: Path, good: int, bad: int) -> Path:
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
        load_table(half_readable(tmp_path, 5, 25))
    assert [each.line for each in caught.value.problems] == list(range(7, 32))
    lines = str(caught.value).splitlines()
    assert len(lines) == 21 and "bad00.jpg" in lines[1]
    with pytest.raises(InputError, match="3 images"):
        load_table(half_readable(tmp_path, 0, 3), on_bad_image="skip")


def test_images_that_cannot_be_read_are_left_out_and_copies_of_the_others_are_found(tmp_path: Path) -> None:
    table = half_readable(tmp_path, 10, 7)
    (tmp_path / "good3.png").unlink()
    (tmp_path / "good4.png").write_bytes(b"")
    (tmp_path / "again.png").write_bytes((tmp_path / "good5.png").read_bytes())
    header, text = table.read_text().split("\n", 1)
    table.write_text(f"{header}\nbad06.jpg,1\n{text.replace('bad06.jpg', 'again.png')}")
    data = load_table(table, on_bad_image="skip")
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


def parquet_album(folder: Path, columns: dict[str, Any]) -> Path:
    images = columns["image"]
    for number, name in enumerate(images.to_pylist() if isinstance(images, pa.Array) else images):
        if name is not None:
            Image.new("RGB", (6, 4), (number, 99, 7)).save(folder / f"{str(name).removesuffix('.png')}.png")
    pq.write_table(pa.table(columns), folder / "tags.parquet")
    return folder / "tags.parquet"


def test_wide_columns_of_any_kind_say_the_same(tmp_path: Path) -> None:
    kinds = {"whole": pa.int8(), "decimal": pa.decimal128(3, 1), "half": pa.float16()}
    columns = {
        "image": ["a.png", "b.png", "c.png"],
        "split": pa.array(["train", "val", "test"]).dictionary_encode(),
        **{name: pa.array([1, 0, None], kind) for name, kind in kinds.items()},
        "logical": [True, False, None],
        "real": [1.0, 0.0, float("nan")],
        "text": ["yes", "no", ""],
    }
    data = load("parquet", parquet_album(tmp_path, columns))
    assert data.classes == (*kinds, "logical", "real", "text")
    dense = [split.labels.to_dense().tolist() for split in data.splits]
    assert dense == [[[1] * 6], [[0] * 6], [[-1] * 6]]
    named = (tmp_path / "tags.parquet").rename(tmp_path / "tags.csv")
    assert load("csv", named).train.labels == data.train.labels, "it is looked at, whatever its name"
    with pytest.raises(InputError, match="delimiter"):
        load("csv", named, delimiter=";")


def test_every_problem_is_told_with_its_row_and_what_is_no_table_of_tags_is_refused(tmp_path: Path) -> None:
    columns = {
        "image": pa.array(["a.png", None, "a.png", "d.png", "gone.png"]),
        "split": ["train", "train", "train", "tran", "val"],
        "cat": ["1", "0", "1", "maybe", ""],
    }
    path = parquet_album(tmp_path, columns)
    (tmp_path / "gone.png").unlink()
    with pytest.raises(ProblemsError) as caught:
        load("parquet", path)
    assert [each.line for each in caught.value.problems] == [2, 3, 4, 4, 5] and "  row 2  " in str(caught.value)
    row = {"bytes": b"", "path": "a.png"}
    for table, named in (({"image": [{"bytes": b""}]}, "image"), ({"image": [row], "cat": [1]}, "huggingface: ")):
        pq.write_table(pa.table(table), path)
        with pytest.raises(InputError, match=named):
            load("parquet", path)
    with pytest.raises(InputError, match=r"none\.parquet"):
        load("parquet", tmp_path / "none.parquet")


def test_columns_that_no_table_of_tags_has_are_one_problem_each_and_can_be_left_out(tmp_path: Path) -> None:
    count = 12
    columns = {
        "image": pa.array(range(count)),
        "raw": pa.array([{"bytes": b"x", "path": None}] * count),
        "vector": [[0.1, 0.2]] * count,
        "taken": pa.array([0] * count, pa.timestamp("s")),
        "cat": [number % 2 for number in range(count)],
    }
    path = parquet_album(tmp_path, columns)
    messages = refused("parquet", path)
    assert sorted(each.split("'")[1] for each in messages) == ["raw", "taken", "vector"]
    data = load("parquet", path, classes=["cat"])
    assert data.classes == ("cat",) and data.train.labels.images[7] == "7" and data.train.images[0].shape == (4, 6, 3)
    assert load("parquet", path, ignore_columns=["raw", "vector", "taken"]).classes == ("cat",)
