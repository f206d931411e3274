"""A Parquet file and a folder of images: the rules of CSV, rows instead of lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.data.readers.refused import refused

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.opening import load
from labelgap.labels import LabelTable
from labelgap.labels.io.formats import read_parquet


def album(folder: Path, columns: dict[str, Any]) -> Path:
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
    data = load("parquet", album(tmp_path, columns))
    assert data.classes == (*kinds, "logical", "real", "text")
    dense = [split.labels.to_dense().tolist() for split in data.splits]
    assert dense == [[[1] * 6], [[0] * 6], [[-1] * 6]]


def test_lists_keep_names_and_the_order_of_classes_and_lists_in_texts_are_split(tmp_path: Path) -> None:
    columns = {"image": ["a.png", "b.png"], "present": [["cat; big", "dog"], []], "absent": [None, ["owl"]]}
    path = album(tmp_path, columns)
    expected = LabelTable.from_lists([["cat; big", "dog"], []], [[], ["owl"]], images=["a.png", "b.png"])
    assert read_parquet(path).table == expected
    pq.write_table(pa.table({"image": ["a.png", "b.png"], "present": ["cat|dog", None]}), path)
    assert read_parquet(path).table.classes == ("cat", "dog")
    table = LabelTable.from_lists([["b"], ["a"]], classes=["z", "b", "a"], images=["a.png", "b.png"])
    table.to_parquet(path)
    data = load(path)
    assert data.classes == ("z", "b", "a") and data.recipe["name"] == "parquet" and read_parquet(path).table == table


def test_every_problem_is_told_with_its_row_and_what_is_no_table_of_tags_is_refused(tmp_path: Path) -> None:
    columns = {
        "image": pa.array(["a.png", None, "a.png", "d.png", "gone.png"]),
        "split": ["train", "train", "train", "tran", "val"],
        "cat": ["1", "0", "1", "maybe", ""],
    }
    path = album(tmp_path, columns)
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
    path = album(tmp_path, columns)
    messages = refused("parquet", path)
    assert sorted(each.split("'")[1] for each in messages) == ["raw", "taken", "vector"]
    data = load("parquet", path, classes=["cat"])
    assert data.classes == ("cat",) and data.train.labels.images[7] == "7" and data.train.images[0].shape == (4, 6, 3)
    assert load("parquet", path, ignore_columns=["raw", "vector", "taken"]).classes == ("cat",)
