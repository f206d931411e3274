"""A CSV and a folder of real image files: what is read, how it is divided, and everything that can be wrong."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.dataset import Dataset
from labelgap.data.opening import load, load_from_recipe
from labelgap.data.readers.table import load_csv
from labelgap.data.split import hold_out_val, is_unsplit
from labelgap.labels import ABSENT, PRESENT, UNKNOWN


def draw(path: Path, size: tuple[int, int] = (12, 8), color: tuple[int, int, int] | None = None) -> None:
    """Draw a plain sheet, of a colour of its own unless it is given, so that no two are the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color or tuple(hashlib.sha256(path.name.encode()).digest()[:3])).save(path)


def album(folder: Path, text: str, images: Sequence[str] = (), name: str = "tags.csv") -> Path:
    """Write a table, and beside it the images that it names (or those given)."""
    table = folder / name
    table.write_text(text, encoding="utf-8")
    for image in images or [line.split(",")[0] for line in text.splitlines()[1:]]:
        draw(folder / image)
    return table


def wide(rows: int, split: Sequence[str] | None = None) -> str:
    """A table of cats and dogs, by turns."""
    head = "image,split,cat,dog" if split is not None else "image,cat,dog"
    lines = [
        ",".join(
            [f"{row:03d}.png", *([split[row]] if split is not None else []), *(("1", "") if row % 2 else ("0", "1"))]
        )
        for row in range(rows)
    ]
    return "\n".join([head, *lines]) + "\n"


def problems(path: Path) -> list[tuple[int, str]]:
    with pytest.raises(ProblemsError) as caught:
        load_csv(path)
    return [(problem.line, problem.message) for problem in caught.value.problems]


def everything(data: Dataset) -> list[str]:
    return [name for split in data.splits for name in split.labels.images]


def test_labels_and_pixels_of_every_row_belong_together(tmp_path: Path) -> None:
    table = album(tmp_path, "image,split,red,blue\na.png,train,1,0\nb/c.jpg,test,,1\nd.png,val,0,\n")
    draw(tmp_path / "a.png", (10, 6), (250, 0, 0))
    draw(tmp_path / "b" / "c.jpg", (20, 16), (0, 0, 250))
    data = load_csv(table)
    assert data.val is not None and data.test is not None
    assert data.classes == ("red", "blue")
    assert data.train.labels.to_dense().tolist() == [[PRESENT, ABSENT]]
    assert data.test.labels.to_dense().tolist() == [[UNKNOWN, PRESENT]]
    assert data.val.labels.to_dense().tolist() == [[ABSENT, UNKNOWN]]
    assert [split.labels.images for split in data.splits] == [("a.png",), ("d.png",), ("b/c.jpg",)]
    assert all(split.truth is None for split in data.splits)
    red, blue = data.train.images[0], data.test.images[0]
    assert red.shape == (6, 10, 3) and blue.shape == (16, 20, 3)
    assert red[3, 3].argmax() == 0 and blue[3, 3].argmax() == 2


def test_images_are_looked_for_beside_the_table_or_in_the_folder_given(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    beside = album(tmp_path, wide(4))
    apart = tmp_path / "tables" / "tags.csv"
    apart.write_text(beside.read_text())
    assert everything(load_csv(beside)) == everything(load_csv(apart, tmp_path))
    assert sorted(everything(load_csv(str(apart), str(tmp_path)))) == [f"{row:03d}.png" for row in range(4)]


def test_lists_of_tags_are_read_too(tmp_path: Path) -> None:
    table = album(tmp_path, "image,split,present,absent\na.png,train,cat;dog,\nb.png,train,,owl\nc.png,val,owl,\n")
    data = load_csv(table)
    assert data.classes == ("cat", "dog", "owl")
    assert data.train.labels.to_dense().tolist() == [[1, 1, UNKNOWN], [UNKNOWN, UNKNOWN, 0]]
    assert load_csv(table, unlisted="absent").train.labels.complete


def test_the_findings_say_how_gaps_were_read_and_what_was_found(tmp_path: Path) -> None:
    data = load_csv(album(tmp_path, wide(10)))
    assert sentences(data) == (
        "a column per tag; 1 = present, 0 = absent, blank = unknown",
        "10 images, 2 classes: 10 labels present, 5 absent, 5 unknown",
        "no split given: all 10 images are train",
    )
    unknown = load_csv(tmp_path / "tags.csv", zeros="unknown")
    assert sentences(unknown)[0].startswith("a column per tag; 1 = present, 0 = unknown")
    assert sentences(unknown)[1] == "10 images, 2 classes: 10 labels present, 0 absent, 10 unknown"


def test_a_table_without_a_blank_asks_whether_zeros_are_known(tmp_path: Path) -> None:
    data = load_csv(album(tmp_path, "image,cat\na.png,1\nb.png,0\nc.png,1\n"))
    assert any("--zeros unknown" in rule for rule in sentences(data))


@pytest.mark.parametrize("rows", [1, 2, 60])
def test_without_a_split_column_every_image_is_trained_on(tmp_path: Path, rows: int) -> None:
    data = load_csv(album(tmp_path, wide(rows)))
    assert [len(split) for split in data.splits] == [rows] and is_unsplit(data)


def test_a_tenth_of_train_becomes_val_where_a_network_is_trained(tmp_path: Path) -> None:
    data = load_csv(album(tmp_path, wide(60)))
    held_out, again, other = (
        hold_out_val(data),
        hold_out_val(data),
        hold_out_val(load("csv", tmp_path / "tags.csv", seed=1)),
    )
    assert held_out.val is not None and 2 <= len(held_out.val) <= 12
    assert sorted(everything(held_out)) == sorted(everything(data))
    assert everything(held_out) == everything(again) != everything(other)
    assert hold_out_val(held_out) is held_out
    assert sentences(held_out)[-1].endswith("are held out for it, a tenth by a hash of each image's name, seed 0")


def test_a_split_without_val_stays_as_the_file_says(tmp_path: Path) -> None:
    data = load_csv(album(tmp_path, wide(40, ["train"] * 30 + ["test"] * 10)))
    assert data.val is None and [len(split) for split in data.splits] == [30, 10]
    assert sentences(data)[2:] == (
        "split as the file says: 30 train, 0 val, 10 test",
        "no val rows: a linear head is cross-validated over the 30 train images",
    )
    assert hold_out_val(data).val is not None


def test_val_and_test_can_be_tables_of_their_own(tmp_path: Path) -> None:
    album(tmp_path, wide(12))
    rows = (tmp_path / "tags.csv").read_text().splitlines()
    header = rows[0]
    for name, part in (("train", rows[1:8]), ("val", rows[8:10])):
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *part]) + "\n")
    (tmp_path / "test.csv").write_text(f"image,owl,{header.split(',')[1]}\n010.png,1,0\n011.png,0,1\n")
    data = load_csv(tmp_path / "train.csv", val=tmp_path / "val.csv", test=tmp_path / "test.csv")
    assert [len(split) for split in data.splits] == [7, 2, 2]
    assert data.test is not None and data.test.labels.to_dense()[:, 0].tolist() == [0, 1]
    assert (data.test.labels.to_dense()[:, 1] == -1).all()
    reloaded = load_from_recipe(load("csv", tmp_path / "train.csv", test=tmp_path / "test.csv").recipe)
    assert reloaded.val is None and reloaded.test is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,cat\n001.png,1\n", "001.png is in .* and in .*, and 1 images in all"),
        ("image,zebra\nx.png,1\n", "knows no label of a class of"),
        ("image,cat\nx.png,7\n", "test.csv"),
    ],
)
def test_a_table_of_test_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    table = album(tmp_path, wide(4))
    (tmp_path / "x.png").write_bytes((tmp_path / "000.png").read_bytes())
    (tmp_path / "test.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        load_csv(table, test=tmp_path / "test.csv")


def test_without_test_rows_there_is_no_test_and_it_is_said(tmp_path: Path) -> None:
    data = load_csv(album(tmp_path, wide(8, ["train"] * 6 + ["val"] * 2)))
    assert data.test is None and data.val is not None and len(data.val) == 2
    assert sentences(data)[-1].startswith("no test rows")


def test_a_split_column_without_train_is_refused(tmp_path: Path) -> None:
    table = album(tmp_path, wide(4, ["val", "val", "test", "test"]))
    with pytest.raises(InputError, match=r"no row has 'train' under split \(0 train, 2 val, 2 test\)"):
        load_csv(table)


def test_train_rows_that_know_nothing_are_refused(tmp_path: Path) -> None:
    table = album(tmp_path, "image,split,cat\na.png,train,\nb.png,train,\nc.png,test,1\n")
    with pytest.raises(InputError, match="no label of a train image is known"):
        load_csv(table)


def test_a_missing_image_is_told_with_its_line(tmp_path: Path) -> None:
    table = album(tmp_path, wide(4))
    (tmp_path / "002.png").unlink()
    assert problems(table) == [(4, f"{tmp_path / '002.png'} does not exist")]


def test_an_image_below_a_file_does_not_exist(tmp_path: Path) -> None:
    table = album(tmp_path, "image,cat\na.png,1\na.png/b.png,1\n", ["a.png"])
    assert problems(table) == [(3, f"{tmp_path / 'a.png' / 'b.png'} does not exist")]


def test_a_folder_under_image_is_no_file(tmp_path: Path) -> None:
    table = album(tmp_path, "image,cat\na.png,1\nfolder,0\n", ["a.png", "folder/b.png"])
    assert problems(table) == [(3, f"{tmp_path / 'folder'} is a folder, not an image")]


def test_an_empty_file_is_no_image(tmp_path: Path) -> None:
    table = album(tmp_path, "image,cat\na.png,1\nb.png,0\n")
    (tmp_path / "b.png").write_bytes(b"")
    assert problems(table) == [(3, f"{tmp_path / 'b.png'} is empty (0 bytes)")]


@pytest.mark.parametrize("name", ["../secret.png", "photos/../../secret.png", ".."])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    draw(tmp_path / "secret.png")
    (tmp_path / "album" / "photos").mkdir(parents=True)
    table = album(tmp_path / "album", f"image,cat\na.png,1\n{name},0\n", ["a.png"])
    assert problems(table) == [(3, f"{name} lies outside of the image folder {tmp_path / 'album'}")]


def test_a_whole_path_is_refused_outside_of_the_folder_and_taken_inside(tmp_path: Path) -> None:
    draw(tmp_path / "secret.png")
    (tmp_path / "album").mkdir()
    inside, outside = tmp_path / "album" / "a.png", tmp_path / "secret.png"
    draw(inside)
    table = album(tmp_path / "album", f"image,cat\n{inside},1\n{outside},0\n", ["a.png"])
    told = f"{outside} lies outside of the image folder {tmp_path / 'album'}. Are all images there? --images {tmp_path}"
    assert problems(table) == [(3, told)]
    table.write_text(f"image,cat\n{inside},1\n")
    assert load_csv(table).train.labels.images == (str(inside),)


def test_a_detour_inside_the_folder_is_allowed_but_not_twice_the_same_file(tmp_path: Path) -> None:
    table = album(tmp_path, "image,cat\nb/../a.png,1\nc.png,0\n", ["a.png", "b/x.png", "c.png"])
    assert sorted(everything(load_csv(table))) == ["b/../a.png", "c.png"]
    table.write_text("image,cat\na.png,1\n./a.png,0\n")
    assert problems(table) == [(3, "./a.png is a.png once more, written differently")]


def test_a_link_in_the_folder_is_followed(tmp_path: Path) -> None:
    draw(tmp_path / "store" / "x.png")
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "a.png").symlink_to(tmp_path / "store" / "x.png")
    table = tmp_path / "album" / "tags.csv"
    table.write_text("image,cat\na.png,1\n")
    assert load_csv(table).train.images[0].shape == (8, 12, 3)


def test_a_name_that_no_file_can_bear_is_a_problem_like_any_other(tmp_path: Path) -> None:
    table = album(tmp_path, f"image,cat\na.png,1\n{'x' * 300}.png,0\n", ["a.png"])
    ((line, message),) = problems(table)
    assert line == 3 and "cannot be read" in message


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("002.png,train,dgo,", "'dgo' under cat"),
        ("002.png,trian,1,", "'trian' under split"),
        ("002.png,,1,", "'' under split"),
        ("001.png,train,1,", "001.png is listed again (first in line 3)"),
        (",train,1,", "no image is named"),
        ("002.png,train,1", "3 cells where the header has 4"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path: Path, row: str, expected: str) -> None:
    lines = wide(4, ["train"] * 4).splitlines()
    table = album(tmp_path, "\n".join(lines) + "\n")
    table.write_text("\n".join([*lines[:3], row, lines[4]]) + "\n")
    ((line, message),) = problems(table)
    assert line == 4 and message.startswith(expected)


def test_every_problem_of_the_table_and_of_the_images_is_told_at_once(tmp_path: Path) -> None:
    text = (
        "image,split,cat,dog\n"
        "a.png,train,1,0\n"
        "a.png,train,1,0\n"
        "gone.png,tets,dgo,2\n"
        "b.png,train,1\n"
        ",train,1,0\n"
        "../c.png,val,,1\n"
        "gone2.png,test,1,1\n"
        "empty.png,test,1,1\n"
        "broken.png,test,1,1\n"
    )
    table = album(tmp_path, text, ["a.png", "b.png"])
    (tmp_path / "empty.png").touch()
    (tmp_path / "broken.png").write_text("no image")
    expected = [
        (3, "a.png is listed again (first in line 2)"),
        (4, "'2' under dog"),
        (4, "'dgo' under cat"),
        (4, "'tets' under split"),
        (4, f"{tmp_path / 'gone.png'} does not exist"),
        (5, "3 cells where the header has 4"),
        (6, "no image is named"),
        (7, f"../c.png lies outside of the image folder {tmp_path}"),
        (8, f"{tmp_path / 'gone2.png'} does not exist"),
        (9, f"{tmp_path / 'empty.png'} is empty (0 bytes)"),
        (10, f"{tmp_path / 'broken.png'} is not an image"),
    ]
    found = problems(table)
    assert [line for line, _ in found] == [line for line, _ in expected]
    assert all(message.startswith(start) for (_, message), (_, start) in zip(found, expected, strict=True))


def test_the_message_is_the_one_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    album(tmp_path, wide(212))
    (tmp_path / "photos").mkdir()
    for row in range(210):
        draw(tmp_path / "photos" / f"{row:03d}.png", (1, 1))
    with pytest.raises(ProblemsError) as caught:
        load_csv("tags.csv", "photos")
    place = Path("photos")
    assert str(caught.value).splitlines() == [
        "tags.csv cannot be used yet: 2 problems, nothing was trained",
        f"  line 212  {place / '210.png'} does not exist",
        f"  line 213  {place / '211.png'} does not exist",
    ]


def test_a_folder_that_holds_none_of_the_images_is_asked_about(tmp_path: Path) -> None:
    table = album(tmp_path, wide(3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProblemsError) as caught:
        load_csv(table, tmp_path / "empty")
    assert len(caught.value.problems) == 3
    assert f"None of its images is in {tmp_path / 'empty'}: where are they? (--images DIR)" in str(caught.value)


def test_an_image_folder_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    table = album(tmp_path, wide(3))
    with pytest.raises(InputError, match="photos does not exist: images is the folder"):
        load_csv(table, tmp_path / "photos")
    with pytest.raises(InputError, match=r"tags\.csv is not a folder: images is the folder"):
        load_csv(table, table)


def test_a_table_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv does not exist"):
        load_csv(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"none\.csv does not exist"):
        load_csv(os.fspath(tmp_path / "nowhere" / "none.csv"))


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, "is empty: it needs a header"),
        ("image,cat\n", {}, "has a header and no rows"),
        ("image,cat\na.png,\n", {}, "no label is known"),
        ("photo file,cat\na.png,1\n", {}, "no column is called 'image'"),
        ("image\na.png\n", {}, "no class"),
        ("image,cat\na.png,1\n", {"zeros": "missing"}, "zeros='missing'"),
        ("image,cat\na.png,1\n", {"unlisted": "absent"}, "--unlisted is for lists"),
        ("image,present\na.png,cat\n", {"zeros": "unknown"}, "--zeros is for tables"),
    ],
)
def test_a_table_that_cannot_be_understood_says_why(
    tmp_path: Path, text: str, options: dict[str, str], expected: str
) -> None:
    table = album(tmp_path, text, ["a.png"])
    with pytest.raises(InputError, match=expected):
        load_csv(table, None, **options)  # type: ignore[arg-type]
