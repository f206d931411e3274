"""``candidates.parquet`` by its one reader: damage and nonsense end in a ``RunError``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.mutations import mutations

from labelgap.audit.candidates import (
    COLUMNS,
    FILE,
    Audit,
    CandidateList,
    read_candidates,
    read_metadata,
    write_candidates,
)
from labelgap.core.errors import RunError
from labelgap.core.manifest import check_files, write_manifest
from labelgap.labels import LabelTable

METADATA: dict[str, Any] = {
    **{"format": 1, "runs": ["a"], "data": {}, "splits": ["train"], "images": 40, "unknown_total": 90},
    **{"unknown_per_class": {"cat": 40, "dog": 50}, "method": "an", "backbone": "small-cnn", "estimate": None},
}


def write(path: Path, metadata: dict[str, Any] = METADATA, classes: tuple[str, str] = ("cat", "dog")) -> Audit:
    table = LabelTable.from_dense(np.full((40, 2), -1), classes)
    rows, columns = np.divmod(np.arange(60), 2)
    scores = np.linspace(0.9, 0.1, 60, dtype=np.float32)
    missing = CandidateList.of_unknown(rows, columns, scores)
    return write_candidates(path, {"missing": missing}, {"train": table}, metadata)


def rewrite(path: Path, column: str, values: list[Any], kind: pa.DataType | None = None) -> None:
    """Replace the first cells of a column."""
    table = pq.read_table(path)
    cells = [*values, *table[column].to_pylist()[len(values) :]]
    array = pa.array(cells, COLUMNS[column] if kind is None else kind)
    pq.write_table(table.set_column(table.column_names.index(column), column, array), path)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    found = write(tmp_path / FILE)
    assert found.table == pq.read_table(found.path) and len(found) == 60
    assert {name: found.metadata[name] for name in METADATA} == METADATA


def test_a_notebook_shows_what_was_found_and_names_are_escaped(tmp_path: Path) -> None:
    evil = "<img src=x>&"
    estimate = {"missing": 34, "range": [17, 67], "known": 9, "missing_per_class": {evil: 30, "dog": 4}}
    found = write(tmp_path / FILE, {**METADATA, "method": evil, "estimate": estimate}, (evil, "dog"))
    page = ElementTree.fromstring(found._repr_html_())
    text = " ".join(page.itertext())
    assert page.find(".//img") is None and text.count(evil) == 1 + 1 + 3
    assert all(number in text for number in ("34 labels", "17 to 67", "90 unknown labels", "40 images"))
    assert str(found.path) in text


def test_a_damaged_file_is_a_run_error_or_reads_as_valid_candidates(tmp_path: Path) -> None:
    path = write(tmp_path / FILE).path
    refused = 0
    for content in mutations(path.read_bytes(), 400):
        path.write_bytes(content)
        try:
            read_metadata(path)
            table = read_candidates(path)
        except RunError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert table.schema.types == list(COLUMNS.values())
    assert refused > 300


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("score", [2.0], None),
        ("score", [float("inf")], None),
        ("kind", ["mising"], None),
        ("observed", [3], None),
        ("rank", [0], None),
        ("class_rank", [-5], None),
        ("image", [None], None),
        ("rank", [2**40], pa.int64()),
        ("image", [b"\xff"], pa.binary()),
    ],
)
def test_values_of_no_audit_are_refused(
    tmp_path: Path, column: str, values: list[Any], kind: pa.DataType | None
) -> None:
    path = write(tmp_path / FILE).path
    if kind == pa.binary():
        table = pq.read_table(path)
        array = pa.array([b"\xff"] * len(table), kind)
        pq.write_table(table.set_column(0, column, array), path)
    else:
        rewrite(path, column, values, kind)
    with pytest.raises(RunError, match=column):
        read_candidates(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"format": None},
        {"unknown_total": -1},
        {"unknown_total": 10**30},
        {"unknown_per_class": {"cat": "many"}},
        {"unknown_per_class": []},
        {"estimate": {"missing": 5}},
        {"runs": "a"},
        {"method": None},
        {"code": "os.system"},
        {"unknown_total": float("nan")},
    ],
)
def test_metadata_of_other_types_or_keys_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = write(tmp_path / FILE).path
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"labelgap": json.dumps({**METADATA, **changed})}), path)
    with pytest.raises(RunError, match=FILE):
        read_metadata(path)


def test_a_long_name_repeated_by_a_dictionary_does_not_fill_the_memory(tmp_path: Path) -> None:
    path, rows = tmp_path / FILE, 20_000
    table = pa.table({name: pa.nulls(rows, kind) for name, kind in COLUMNS.items()})
    name = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 1_000_000]))
    pq.write_table(table.set_column(0, "image", name), path, compression="zstd")
    assert path.stat().st_size < 10_000
    with pytest.raises(RunError, match="too long"):
        read_candidates(path)


def test_the_manifest_of_a_finished_folder_follows_the_file_and_finds_a_flipped_bit(tmp_path: Path) -> None:
    path = write(tmp_path / FILE).path
    write_manifest(tmp_path, [FILE])
    write(path, {**METADATA, "images": 41})
    check_files(tmp_path, [FILE])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for read in (read_metadata, read_candidates):
        with pytest.raises(RunError, match=FILE):
            read(path)
