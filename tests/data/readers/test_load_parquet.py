"""A Parquet file and a folder of images: the rules of CSV, rows instead of lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.opening import load
from labelgap.labels import LabelTable
from labelgap.labels.io.formats import read_parquet


def album(folder: Path, columns: dict[str, Any]) -> Path:
    for number, name in enumerate(
        columns["image"].to_pylist() if isinstance(columns["image"], pa.Array) else columns["image"]
    ):
        if name is not None:
            Image.new("RGB", (6, 4), (number, 99, 7)).save(folder / f"{str(name).removesuffix('.png')}.png")
    pq.write_table(pa.table(columns), folder / "tags.parquet")
    return folder / "tags.parquet"


def test_wide_columns_of_any_kind_say_the_same(tmp_path: Path) -> None:
    columns = {
        "image": ["a.png", "b.png", "c.png"],
        "split": pa.array(["train", "val", "test"]).dictionary_encode(),
        "whole": pa.array([1, 0, None], pa.int8()),
        "real": [1.0, 0.0, float("nan")],
        "logical": [True, False, None],
        "text": ["yes", "no", ""],
        "decimal": pa.array([1, 0, None], pa.decimal128(3, 1)),
        "half": pa.array([1, 0, None], pa.float16()),
    }
    data = load("parquet", album(tmp_path, columns))
    assert data.classes == ("whole", "real", "logical", "text", "decimal", "half")
    dense = [split.labels.to_dense().tolist() for split in data.splits]
    assert dense == [[[1] * 6], [[0] * 6], [[-1] * 6]]


def test_lists_of_parquet_keep_names_as_they_are_and_lists_in_texts_are_split(tmp_path: Path) -> None:
    columns = {"image": ["a.png", "b.png"], "present": [["cat; big", "dog"], []], "absent": [None, ["owl"]]}
    path = album(tmp_path, columns)
    assert read_parquet(path).table == LabelTable.from_lists(
        [["cat; big", "dog"], []], [[], ["owl"]], images=["a.png", "b.png"]
    )
    pq.write_table(pa.table({"image": ["a.png", "b.png"], "present": ["cat|dog", None]}), path)
    assert read_parquet(path).table.classes == ("cat", "dog")


def test_what_a_table_wrote_keeps_its_classes_and_their_order(tmp_path: Path) -> None:
    table = LabelTable.from_lists([["b"], ["a"], ["b"]], classes=["z", "b", "a"], images=["x.png", "y.png", "w.png"])
    album(tmp_path, {"image": list(table.images)})
    table.to_parquet(tmp_path / "tags.parquet")
    data = load(tmp_path / "tags.parquet")
    assert data.classes == ("z", "b", "a") and sentences(data)[0] == "recognized as parquet: a .parquet file"
    assert read_parquet(tmp_path / "tags.parquet").table == table


def test_every_problem_is_told_with_its_row(tmp_path: Path) -> None:
    columns = {
        "image": pa.array(["a.png", None, "a.png", "d.png", "gone.png"]),
        "split": ["train", "train", "train", "tran", "val"],
        "cat": ["1", "0", "1", "maybe", ""],
    }
    path = album(tmp_path, columns)
    (tmp_path / "gone.png").unlink()
    with pytest.raises(ProblemsError) as caught:
        load("parquet", path)
    assert [(each.line, each.message) for each in caught.value.problems] == [
        (2, "no image is named"),
        (3, "a.png is listed again (first in row 1)"),
        (4, "'maybe' under cat: a cell is 1 (present), 0 (absent) or blank (unknown)"),
        (4, "'tran' under split: it is train, val or test. Did you mean 'train'?"),
        (5, f"{tmp_path / 'gone.png'} does not exist"),
    ]
    assert "  row 2  no image is named" in str(caught.value).splitlines()


def test_columns_that_no_table_of_tags_has_are_one_problem_each_and_can_be_left_out(tmp_path: Path) -> None:
    count = 12
    columns = {
        "image": [f"{number}.png" for number in range(count)],
        "raw": pa.array([{"bytes": b"x", "path": None}] * count),
        "vector": [[0.1, 0.2]] * count,
        "taken": pa.array([0] * count, pa.timestamp("s")),
        "cat": [number % 2 for number in range(count)],
    }
    path = album(tmp_path, columns)
    with pytest.raises(ProblemsError) as caught:
        load("parquet", path)
    assert [
        "raw" in each.message or "vector" in each.message or "taken" in each.message for each in caught.value.problems
    ] == [True] * 3
    assert load("parquet", path, classes=["cat"]).classes == ("cat",)
    assert load("parquet", path, ignore_columns=["raw", "vector", "taken"]).classes == ("cat",)


def test_names_that_are_numbers_find_their_files(tmp_path: Path) -> None:
    data = load("parquet", album(tmp_path, {"image": pa.array([7, 8, 9]), "cat": [1, 0, 1]}))
    assert sorted(name for split in data.splits for name in split.labels.images) == ["7", "8", "9"]
    assert any(rule == "3 image names were completed: 7 is 7.png" for rule in sentences(data))
    assert data.train.images[0].shape == (4, 6, 3)


def test_a_file_of_a_hugging_face_folder_is_refused_with_the_folder(tmp_path: Path) -> None:
    path = album(tmp_path, {"image": [{"bytes": b"", "path": "a.png"}], "cat": [1]})
    with pytest.raises(InputError, match=f"column 'image' holds images.* huggingface: {tmp_path}$"):
        load("parquet", path)


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("image,cat\n")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="does not exist"):
        load("parquet", tmp_path / "none.parquet")
    pq.write_table(pa.table({"photo file": ["a.png"], "cat": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"row 0  no column is called 'image'"):
        load("parquet", tmp_path / "x.parquet")
    damaged = tmp_path / "x.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-30] + b"PAR1")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load("parquet", damaged)
