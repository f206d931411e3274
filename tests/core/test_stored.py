from __future__ import annotations

import io
import json
import os
import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from labelgap.core.errors import RunError
from labelgap.core.stored import read_arrays, read_bytes, read_json, read_table, size_limit
from labelgap.core.tensors import read_tensors

SCHEMA = {"image": pa.string(), "rank": pa.int32()}


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    names: tuple[str, ...]
    rate: float = 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One intact file of each kind."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "a.json").write_text(json.dumps({"format": 1, "names": ["a", "b"], "signature": "00"}))
    np.savez(folder / "a.npz", loss=np.arange(6, dtype=np.float32).reshape(2, 3), flag=np.array([True, False]))
    np.save(folder / "a.npy", np.asfortranarray(np.arange(6).reshape(2, 3)))
    table = pa.table({"image": ["x.jpg", "y.jpg"], "rank": pa.array([1, 2], pa.int32())})
    pq.write_table(table.replace_schema_metadata({"labelgap": "{}"}), folder / "a.parquet")
    return folder


def read(path: Path) -> Any:
    if path.suffix == ".json":
        return read_json(path, Document, format=1)
    return read_table(path, SCHEMA) if path.suffix == ".parquet" else read_arrays(path)


def test_intact_files_come_back_as_they_were_written(folder: Path) -> None:
    assert read(folder / "a.json") == Document(format=1, names=("a", "b"))
    arrays = read(folder / "a.npz")
    np.testing.assert_array_equal(arrays["loss"], [[0, 1, 2], [3, 4, 5]])
    assert arrays["loss"].dtype == np.float32 and arrays["loss"].flags.writeable
    np.testing.assert_array_equal(arrays["flag"], [True, False])
    np.testing.assert_array_equal(read(folder / "a.npy")["array"], [[0, 1, 2], [3, 4, 5]])
    table = read(folder / "a.parquet")
    assert table.to_pydict() == {"image": ["x.jpg", "y.jpg"], "rank": [1, 2]}
    assert table.schema.metadata[b"labelgap"] == b"{}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "damaged"),
        ("[1, 2]", "not a JSON object"),
        ("[" * 100_000, "damaged"),
        ('{"format": 2, "names": []}', "of format 2; this version of labelgap reads format 1"),
        ('{"format": 1}', "names"),
        ('{"format": 1, "names": "ab"}', "names='ab'"),
        ('{"format": 1, "names": [1]}', "names.0=1"),
        ('{"format": 1, "names": [], "rate": "0.5"}', "rate='0.5'"),
        ('{"format": 1, "names": [], "raet": 1}', "there is no setting 'raet'; did you mean 'rate'"),
        ('{"format": 1, "names": ["\\ud800"]}', "damaged"),
        ('{"format": 1, "names": [], "rate": ' + "9" * 5000 + "}", "a.json"),
    ],
)
def test_json_of_another_shape_is_one_error_with_the_file(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(RunError, match=reason) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def npy(header: str, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body


@pytest.mark.parametrize(
    "content",
    [
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}\n"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}\n"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n", b"cos\nsystem\n(S'true'\ntR."),
        npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}\n", bytes(8)),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}\n", bytes(8)),
        npy("(" * 5000),
        npy("__import__('os').system('true')"),
        b"\x93NUMPY\x09\x00",
    ],
)
def test_an_array_that_claims_what_it_does_not_have_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(RunError, match="is damaged"):
            read(tmp_path / name)


def test_a_compressed_array_larger_than_the_limit_is_not_unpacked(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(1 << 20))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", buffer.getvalue())
    with pytest.raises(RunError, match="claims 8,388,608 bytes"):
        read_arrays(tmp_path / "a.npz", limit=1 << 20)
    assert read_arrays(tmp_path / "a.npz")["x"].shape == (1 << 20,)


def test_a_table_with_another_column_type_or_too_many_rows_is_damaged(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.parquet", 1 << 20
    many = {"image": pa.array(["x"] * rows), "rank": pa.array(np.zeros(rows, dtype=np.int32))}
    for columns, named in (
        ({"image": ["x"], "rank": [1.5]}, "double"),
        ({"image": ["x"]}, "'rank'"),
        (many, "1,048,576"),
    ):
        pq.write_table(pa.table(columns), path, compression="zstd")
        with pytest.raises(RunError, match=named):
            read(path)


def test_only_an_ordinary_file_of_bounded_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(11))
    (tmp_path / "folder").mkdir()
    for name, named in (("none", "Again."), ("folder", "folder"), ("pipe", "ordinary"), ("large", "10 bytes")):
        with pytest.raises(RunError, match=named):
            read_bytes(tmp_path / name, limit=10, remedy="Again.")


@pytest.mark.parametrize("name", ["a.json", "a.npz", "a.npy", "a.parquet"])
@settings(max_examples=40)
@given(data=st.data())
def test_mutations_are_refused(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    content = bytearray((folder / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    path = tmp_path_factory.getbasetemp() / f"mutated{Path(name).suffix}"
    path.write_bytes(content)
    try:
        read(path)
    except RunError as error:
        assert str(path) in str(error)


def test_rows_of_a_table_are_selected_while_it_is_read(tmp_path: Path) -> None:
    names = [f"{row}.jpg" for row in range(60_000)]
    table = pa.table({"image": names, "score": pa.array(range(60_000), pa.float32()), "other": names})
    pq.write_table(table, tmp_path / "a.parquet")
    schema = {"score": pa.float32(), "image": pa.string()}
    for wanted in (["7.jpg", "50000.jpg"], ["none.jpg"]):
        found = read_table(tmp_path / "a.parquet", schema, where=pc.field("image").isin(wanted))
        assert found.to_pydict() == {
            "score": [float(name[:-4]) for name in wanted if name in names],
            "image": [name for name in wanted if name in names],
        }


def make_sparse(path: Path, size: int) -> Path:
    """Write a file whose bytes are not on the disk."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize("name", ["a.json", "a.parquet", "a.npz", "a.safetensors"])
def test_a_file_larger_than_its_kind_can_be_or_full_of_holes_is_refused_before_it_is_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_one = {".safetensors": read_tensors}.get(Path(name).suffix, read)
    sparse = make_sparse(tmp_path / name, 400_000_000_000)
    with pytest.raises(RunError, match=r"more than [0-9,]+ bytes"):
        read_one(sparse)
    make_sparse(sparse, size_limit(sparse))
    with pytest.raises(RunError, match="damaged" if name == "a.json" else "not on the disk"):
        read_one(sparse)


def test_a_large_file_with_few_holes_is_read(tmp_path: Path) -> None:
    """Zeros may be stored as a hole by a file system, or by a copy."""
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|i1", "fortran_order": False, "shape": (1 << 27,)})
        start = file.tell()
        file.truncate(start + (1 << 27))
    with pytest.raises(RunError, match="not on the disk"):
        read_arrays(path)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(1 << 24))
    assert not read_arrays(path)["array"].any()


@pytest.mark.parametrize("value", ["[]", '{"a": {}}', "1e5"])
def test_json_of_very_many_small_values_is_refused_before_it_takes_a_hundred_times_its_size(
    tmp_path: Path, value: str
) -> None:
    (tmp_path / "a.json").write_text('{"format": 1, "names": [' + ",".join([value] * 3_000_000) + "]}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RunError, match="more than"):
        read_json(tmp_path / "a.json", Document, format=1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    (tmp_path / "a.json").write_text('{"format": 1, "names": [' + ",".join(["1"] * 2000) + "]}")
    with pytest.raises(RunError, match="2,000 values are wrong"):
        read_json(tmp_path / "a.json", Document, format=1)
