from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "labels.parquet"


def write(file: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), file)
    return file


def test_a_file_is_plain_to_read_for_others(file: Path) -> None:
    LabelTable.from_dense([[1, 0, -1], [1, 1, -1]], ["cat", "dog", "owl"], ["a.jpg", "b.jpg"]).to_parquet(file)
    rows = pq.read_table(file).to_pylist()
    assert rows == [
        {"image": "a.jpg", "present": ["cat"], "absent": ["dog"]},
        {"image": "b.jpg", "present": ["cat", "dog"], "absent": []},
    ]


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0)])
def test_empty_tables_come_back(file: Path, shape: tuple[int, int]) -> None:
    table = LabelTable.from_dense(np.zeros(shape))
    table.to_parquet(file)
    assert LabelTable.from_parquet(file) == table


def test_files_of_other_programs_are_read_and_their_classes_sorted(file: Path) -> None:
    strings = pa.list_(pa.string())
    write(file, image=[1, 2, 3], present=pa.array([["owl"], None, ["cat", "owl"]], strings), width=[3, 4, 5])
    table = LabelTable.from_parquet(file)
    assert table.classes == ("cat", "owl")
    assert table.images == ("1", "2", "3")
    assert table.to_dense().tolist() == [[-1, 1], [-1, -1], [1, 1]]


def test_lists_may_come_in_pieces_with_words_of_their_own(file: Path) -> None:
    words = pa.dictionary(pa.int8(), pa.large_string())
    pieces = []
    for ends, codes, texts in (([0, 1, 1], [0], ["owl"]), ([0, 1, 2], [0, 1], ["cat", "owl"])):
        indices, values = pa.array(codes, words.index_type), pa.array(texts, words.value_type)
        pieces.append(pa.ListArray.from_arrays(ends, pa.DictionaryArray.from_arrays(indices, values)))
    schema = pa.schema([("image", pa.string()), ("present", pa.list_(words)), ("absent", pa.list_(pa.string()))])
    with pq.ParquetWriter(file, schema) as writer:
        for number, piece in enumerate(pieces):
            names = [f"{number}{place}" for place in range(2)]
            absent = pa.array([["dog"], ["dog"]], pa.list_(pa.string()))
            writer.write_table(pa.table([pa.array(names), piece, absent], schema=schema))
    table = LabelTable.from_parquet(file)
    assert table.classes == ("cat", "dog", "owl")
    assert table.to_dense().tolist() == [[-1, 0, 1], [-1, 0, -1], [1, 0, -1], [-1, 0, 1]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": ["a"]}, "has no column 'present': it needs image, present and perhaps absent"),
        ({"present": [["a"]]}, "has no column 'image'"),
        ({"image": ["a"], "present": ["cat;dog"]}, "column 'present': it must hold lists of class names, not string"),
        (
            {"image": ["a"], "present": [[1]]},
            "column 'present': it must hold lists of class names, each of them a string",
        ),
        ({"image": ["a"], "present": [["a", None]]}, "each of them a string"),
        ({"image": ["a", None], "present": [["a"], ["a"]]}, "row 1: no image is named"),
        ({"image": ["a", "a"], "present": [["a"], ["a"]]}, "the image 'a' is listed twice"),
        ({"image": ["a"], "present": [["cat"]], "absent": [["cat"]]}, "row 0 has two labels for class 'cat'"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(file: Path, columns: Any, message: str) -> None:
    with pytest.raises(InputError, match=r"labels\.parquet.*" + message):
        LabelTable.from_parquet(write(file, **columns))


def test_a_class_outside_of_the_files_own_list_is_refused(file: Path) -> None:
    columns = pa.table({"image": ["a"], "present": [["dog"]]})
    pq.write_table(columns.replace_schema_metadata({b"labelgap.classes": b'["cat"]'}), file)
    with pytest.raises(InputError, match="lists the class 'dog', which its own list of classes does not have"):
        LabelTable.from_parquet(file)


def test_what_is_no_parquet_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match=r"labels\.parquet does not exist"):
        LabelTable.from_parquet(file)
    file.write_text("image,cat\n")
    with pytest.raises(InputError, match=r"labels\.parquet cannot be read as Parquet"):
        LabelTable.from_parquet(file)
