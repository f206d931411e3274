"""A Hugging Face data set on a disk: files in the layout that ``datasets`` writes, made by pyarrow alone."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.data.readers.refused import places
from tests.data.sentences import sentences

from labelgap.core.errors import InputError, ProblemsError
from labelgap.data.readers.huggingface import RowImages
from labelgap.data.registry import load
from labelgap.data.split import is_unsplit

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CLASS_LABEL = {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}
FEATURES = {"image": {"_type": "Image"}, "labels": {"feature": CLASS_LABEL, "_type": "List"}}
LABELS = [[0, 2], [1], [], [2, 2]]
Columns = Mapping[str, Any]


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 5), (shade, 7, 9)).save(file, "png")
    return file.getvalue()


def images(count: int, shade: int = 0, path: str | None = None) -> pa.Array:
    rows = [{"bytes": png(shade + row), "path": path and path.format(row)} for row in range(count)]
    return pa.array(rows, IMAGE)


def lists(shade: int = 0) -> Columns:
    return {"image": images(4, shade), "labels": pa.array(LABELS, pa.list_(pa.int64()))}


def described(columns: Columns, features: Mapping[str, Any]) -> pa.Table:
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.table(dict(columns)).replace_schema_metadata(metadata)


def save(folder: Path, columns: Columns, features: Mapping[str, Any] = FEATURES, shards: int = 2) -> Path:
    """Write what ``Dataset.save_to_disk`` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    table = described(columns, features)
    names = [f"data-{shard:05d}-of-{shards:05d}.arrow" for shard in range(shards)]
    for shard, name in enumerate(names):
        first, last = (len(table) * (shard + more) // shards for more in (0, 1))
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(first, last - first), max_chunksize=1)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f2137253479faa3c", "_split": None}
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=2))
    return folder


def save_dict(folder: Path, names: Sequence[str] = ("train", "validation", "test"), **changed: Any) -> Path:
    """Write what ``DatasetDict.save_to_disk`` writes."""
    for number, name in enumerate(names):
        save(folder / name, lists(20 * number), **changed)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(names)}))
    return folder


def save_parquet(folder: Path, columns: Columns | None = None, features: Mapping[str, Any] = FEATURES) -> Path:
    """Write what a repository of the Hub holds."""
    (folder / "data").mkdir(parents=True)
    table = described(columns or lists(), features)
    for split, count in (("train", 2), ("test", 1)):
        for shard in range(count):
            part = table.slice(len(table) * shard // count, len(table) // count)
            pq.write_table(part, folder / "data" / f"{split}-{shard:05d}-of-{count:05d}.parquet", row_group_size=1)
    return folder


@pytest.mark.parametrize("layout", ["dict", "single", "parquet"])
def test_images_and_lists_are_those_of_the_rows(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "set"
    write: dict[str, Callable[[], Path]] = {
        "dict": lambda: save_dict(folder),
        "parquet": lambda: save_parquet(folder),
        "single": lambda: save(folder, lists()),
    }
    data = load(write[layout]())
    splits = {"dict": ["train", "val", "test"], "parquet": ["train", "test"], "single": ["train"]}[layout]
    assert data.recipe["name"] == "huggingface" and data.classes == ("cat", "dog", "owl")
    assert [split.name for split in data.splits] == splits and is_unsplit(data) == (layout == "single")
    assert data.train.labels.to_dense().tolist() == [[1, -1, 1], [-1, 1, -1], [-1] * 3, [-1, -1, 1]]
    copied = pickle.loads(pickle.dumps(data.train.images))
    assert [int(copied[row][0, 0, 0]) for row in range(4)] == [0, 1, 2, 3] and copied[0].shape == (5, 6, 3)
    assert isinstance(copied, RowImages) and copied.fingerprint() == data.train.images.fingerprint()
    assert copied.encoded_size(2) == len(png(2)) and copied.select([3]).names == ("train-000003",)
    assert sorted(copied.shuffle(np.random.default_rng(0)).tolist()) == [0, 1, 2, 3]
    for file in copied.data_files:
        file.unlink()
    with pytest.raises(InputError, match="train-000000"):
        copied[0]


@pytest.mark.parametrize(
    ("feature", "column"),
    [
        ({"feature": {**CLASS_LABEL, "id": None}, "length": -1, "id": None, "_type": "Sequence"}, LABELS),
        ([CLASS_LABEL], LABELS),
        ({"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"}, [["owl", "cat"], ["dog"], [], ["owl"]]),
        (CLASS_LABEL, [2, 1, None, -1]),
    ],
)
def test_lists_are_read_as_every_version_writes_them(tmp_path: Path, feature: Any, column: list[Any]) -> None:
    columns = {"image": images(4, path="p{}.png"), "tags": pa.array(column), "note": pa.array(["x"] * 4)}
    data = load("huggingface", save(tmp_path, columns, {"image": {"_type": "Image"}, "tags": feature}))
    assert data.classes == ("cat", "dog", "owl") and data.train.labels.images[0] == "p0.png"
    first = [-1, -1, 1] if feature == CLASS_LABEL else [1, -1, 1]
    assert data.train.labels.to_dense()[:3].tolist() == [first, [-1, 1, -1], [-1] * 3]
    assert any(each.endswith(": note") for each in sentences(data)), "left out"


def test_unlisted_is_what_was_asked_for_and_null_stays_unknown(tmp_path: Path) -> None:
    columns = {"image": images(4), "labels": pa.array([[0], [], None, [2]], pa.list_(pa.int64()))}
    data = load("huggingface", save(tmp_path, columns), unlisted="absent", classes=["owl", "cat"])
    assert data.train.labels.to_dense().tolist() == [[0, 1], [0, 0], [-1, -1], [1, 0]]
    with pytest.raises(InputError, match="'cow'"):
        load("huggingface", tmp_path, classes=["cow"])


def test_a_column_per_class_has_null_for_unknown(tmp_path: Path) -> None:
    columns = {"image": images(3), "cat": pa.array([True, None, False]), "dog": pa.array([1, 0, None], pa.int8())}
    data = load("huggingface", save(tmp_path / "a", columns, {}))
    assert data.classes == ("cat", "dog") and data.train.labels.to_dense().tolist() == [[1, 1], [-1, 0], [0, -1]]
    with pytest.raises(InputError, match="--unlisted"):
        load("huggingface", tmp_path / "a", unlisted="absent")
    columns["width"] = pa.array([640, 1, 2**60 + 1])
    save(tmp_path / "b", columns, {}, shards=1)
    found = places("huggingface", tmp_path / "b")  # a column of no class is named once in each batch
    assert found == [f"data-00000-of-00001.arrow, row {row}" for row in (0, 2)]
    assert load("huggingface", tmp_path / "b", ignore_columns=["width"]).classes == ("cat", "dog")


def test_an_image_may_be_a_file_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(3):
        (tmp_path / "photos" / f"{number}.png").write_bytes(png(number))
    paths = [{"bytes": None, "path": f"{number}.png"} for number in range(3)]
    columns = {"image": pa.array(paths, IMAGE), "labels": pa.array([[0], [1], [2]])}
    folder = save(tmp_path / "set", columns, shards=1)
    data = load("huggingface", folder, images=tmp_path / "photos")
    assert [int(data.train.images[row][0, 0, 0]) for row in range(3)] == [0, 1, 2]
    assert isinstance(data.train.images, RowImages) and data.train.images.encoded_size(1) == len(png(1))
    for row, path in enumerate(("../set/state.json", None, "gone.png")):
        paths[row]["path"] = path
    save(folder, {**columns, "image": pa.array(paths, IMAGE)}, shards=1)
    expected = [f"data-00000-of-00001.arrow, row {row}" for row in range(3)]
    assert places("huggingface", folder, images=tmp_path / "photos") == expected


def test_missing_and_damaged_files_are_named_together(tmp_path: Path) -> None:
    folder = save_dict(tmp_path / "set")
    (folder / "train" / "data-00001-of-00002.arrow").unlink()
    (folder / "test" / "state.json").unlink()
    (folder / "validation" / "dataset_info.json").write_text("{")
    names = ["train/data-00001-of-00002.arrow", "validation/dataset_info.json", "test/state.json"]
    assert places("huggingface", folder) == names
    hub = save_parquet(tmp_path / "hub")
    (hub / "data" / "train-00000-of-00002.parquet").unlink()
    assert places("huggingface", hub) == ["data/train-00000-of-00002.parquet"]
    whole = save(tmp_path / "cut", lists(), shards=1) / "data-00000-of-00001.arrow"
    content = whole.read_bytes()
    for end in (-8, -40, 0, 300):
        whole.write_bytes(content[:end])
        assert places("huggingface", whole.parent) == [whole.name]
    state = json.loads((whole.parent / "state.json").read_text())
    for changed, named in (
        ({"_data_files": [{"filename": "../x.arrow"}]}, "state.json"),
        ({"_data_files": [{"filename": "x" * 300}]}, "xxx"),
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, "state.json"),
    ):
        (whole.parent / "state.json").write_text(json.dumps({**state, **changed}))
        assert places("huggingface", whole.parent)[0].startswith(named)


def test_unknown_classes_and_classes_twice_are_refused(tmp_path: Path) -> None:
    bad = {"image": images(4), "labels": pa.array([[0], [3, -1], [None], [2]], pa.list_(pa.int64()))}
    found = places("huggingface", save(tmp_path / "a", bad, shards=1))
    assert found == [f"data-00000-of-00001.arrow, row {row}" for row in (1, 1, 2)]
    for names in (["cat", "cat", "owl"], ["a", "b", "c"]):  # twice, and others than those of train
        other = save_dict(tmp_path / names[1])
        feature = {"feature": {**CLASS_LABEL, "names": names}, "_type": "List"}
        save(other / "test", lists(), {**FEATURES, "labels": feature})
        assert places("huggingface", other) == ["test/data-00000-of-00002.arrow"]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"text": pa.array(["a"])}, "text"),
        ({"a": images(1), "b": images(1)}, r"a, b.*--ignore-columns"),
        ({"a": images(1), "text": pa.array(["a"])}, "a, text"),
        ({"a": images(1), "b": pa.array([["x"]]), "c": pa.array([["y"]])}, r"b, c"),
        ({"a": pa.array([None], IMAGE), "b": pa.array([["x"]])}, "row 0"),
        ({"a": images(1), "b": pa.array([[" "]])}, "row 0"),
        ({"a": pa.array([{"bytes": [1], "path": "x"}]), "b": pa.array([["x"]])}, "a, b"),
        ({"a": pa.array([{"bytes": None, "path": 1}]), "b": pa.array([["x"]])}, "a, b"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, columns: Columns, named: str) -> None:
    with pytest.raises(ProblemsError, match=named):
        load("huggingface", save(tmp_path, columns, {}, shards=1))


def test_splits_have_our_names_and_others_are_left_out(tmp_path: Path) -> None:
    data = load("huggingface", save_dict(tmp_path / "a", ["dev", "train", "unlabeled"]))
    assert [split.name for split in data.splits] == ["train", "val"] and "unlabeled" in " ".join(sentences(data))
    for names, named in ((["val", "validation", "train"], "val and validation"), (["test"], "train")):
        with pytest.raises(InputError, match=named):
            load("huggingface", save_dict(tmp_path / names[0], names))
    assert places("huggingface", tmp_path) == ["dataset_dict.json"]
