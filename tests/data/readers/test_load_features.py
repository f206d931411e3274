"""Vectors instead of pixels: npz and Parquet, and the papers' own labels in the real file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.sentences import sentences

from labelgap.core.errors import InputError
from labelgap.data.images import FeatureVectors, ImageSource
from labelgap.data.loader import ImageLoader
from labelgap.data.registry import load, load_from_recipe
from labelgap.data.transforms import Resize
from labelgap.labels import UNKNOWN, LabelTable

Arrays = dict[str, Any]


def arrays(count: int = 6, width: int = 4) -> Arrays:
    random = np.random.default_rng(0)
    truth = random.integers(0, 2, (count, 3)).astype(np.int8)
    truth[:, 0] = 1
    observed = np.where(np.arange(3) == 0, truth, UNKNOWN).astype(np.int8)
    made: Arrays = {"classes": np.array(["a", "b", "c"])}
    for split in ("train", "val", "test"):
        made[f"{split}_features"] = random.normal(size=(count, width)).astype(np.float16)
        made[f"{split}_ids"] = np.array([f"{split}{number}" for number in range(count)])
        made[f"{split}_truth"] = truth
    return {**made, "train_observed": observed}


def stored(folder: Path, content: Arrays) -> Path:
    np.savez(folder / "x.npz", **content)
    return folder / "x.npz"


def table_file(folder: Path, content: Arrays) -> Path:
    """The same in Parquet: a row per image."""
    columns: dict[str, list[Any]] = {name: [] for name in ("id", "split", "features", "truth", "observed")}
    for split in ("test", "train", "val"):
        columns["id"] += content[f"{split}_ids"].tolist()
        columns["split"] += [split] * len(content[f"{split}_ids"])
        columns["features"] += content[f"{split}_features"].tolist()
        columns["truth"] += content[f"{split}_truth"].tolist()
        columns["observed"] += content[f"{split}_{'observed' if split == 'train' else 'truth'}"].tolist()
    table = pa.table({**columns, "features": pa.array(columns["features"], pa.list_(pa.float32()))})
    pq.write_table(
        table.replace_schema_metadata({"classes": json.dumps(content["classes"].tolist())}), folder / "x.parquet"
    )
    return folder / "x.parquet"


@pytest.mark.parametrize("write", [stored, table_file])
def test_labels_were_observed_and_truth_is_all_that_is_known(
    tmp_path: Path, write: Callable[[Path, Arrays], Path]
) -> None:
    content = arrays()
    data = load(write(tmp_path, content))
    assert data.recipe["name"] == "features" and data.classes == ("a", "b", "c")
    assert (data.backbone, data.protocol, data.flip) == ("features", "linear", False)
    assert data.train.labels.to_dense().tolist() == content["train_observed"].tolist()
    assert [split.name for split in data.splits if split.labels.complete] == ["val", "test"]
    for split in data.splits:
        assert split.truth is not None and split.truth.to_dense().tolist() == content[f"{split.name}_truth"].tolist()
        assert split.labels.images == tuple(content[f"{split.name}_ids"]) and isinstance(split.images, FeatureVectors)
        assert np.allclose(split.images.vectors, content[f"{split.name}_features"])
    assert isinstance(data.train.images, ImageSource)
    for read in (lambda: data.train.images[0], lambda: list(ImageLoader(data.train.images, transform=Resize(4)))):
        with pytest.raises(InputError, match="no pixels"):
            read()


def test_labels_alone_may_have_gaps_and_names_may_be_left_out(tmp_path: Path) -> None:
    labels = np.array([[1, np.nan], [0, 1]])
    data = load("features", stored(tmp_path, {"train_features": np.eye(2), "train_labels": labels}))
    assert data.train.labels == LabelTable.from_dense(labels) and data.train.truth is None
    assert data.classes == ("0", "1") and data.val is None and data.train.labels.images == ("0", "1")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train_truth": None, "train_observed": None}, "train"),
        ({"train_labels": np.ones((6, 3))}, "train"),
        ({"train_observed": np.zeros((6, 3))}, "train_observed"),
        ({"train_truth": np.full((6, 3), 7)}, "train_truth.* 7"),
        ({"train_features": np.zeros((0, 4))}, "train_features"),
        ({"val_features": np.zeros((6, 9))}, "4, 9"),
        ({"val_ids": np.array(["x"] * 6)}, "x"),
        ({"classes": np.array(["a", "b"])}, "2 .* 3"),
        ({"train_features": None}, "train_features"),
        ({"classes": np.array([{"a": 1}], dtype=object)}, "damaged"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changes: Arrays, named: str) -> None:
    content = {name: value for name, value in {**arrays(), **changes}.items() if value is not None}
    with pytest.raises(InputError, match=named):
        load("features", stored(tmp_path, content))


def test_files_that_are_damaged_or_not_there_are_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, arrays())
    path.write_bytes(path.read_bytes()[:300])
    np.savez(tmp_path / "y.npz", weights=np.zeros(3))
    for text in (f"features={path}", str(path), f"features={tmp_path / 'none.npz'}", str(tmp_path / "y.npz")):
        with pytest.raises(InputError, match=r"\.npz"):
            load(text)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("features", [[1.0], [1.0, 2.0, 3.0]]),
        ("features", ["x", "y"]),
        ("split", ["train", "trial"]),
        ("split", None),
        ("labels", [[1, None], [1, 0]]),
        ("classes", '{"a": 1}'),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, column: str, values: Any) -> None:
    columns: Arrays = {"features": [[1.0, 2.0], [3.0, 4.0]], "split": ["train", "train"], "labels": [[1, 0], [1, -1]]}
    changed = columns if column == "classes" else {**columns, column: values}
    table = pa.table({name: each for name, each in changed.items() if each is not None})
    about = {"classes": values} if column == "classes" else None
    pq.write_table(table.replace_schema_metadata(about), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=column):
        load("features", tmp_path / "x.parquet")


def test_the_real_features_carry_the_papers_labels_and_their_draw(shared_data: Path) -> None:
    data = load(shared_data / "voc2012_resnet50_448.npz")
    assert [len(split) for split in data.splits] == [4574, 1143, 5823] and len(data.classes) == 20
    assert data.train.labels.counts().total == (4574, 0, 86906)
    assert all(split.evaluation_labels.complete for split in data.splits)
    assert data.observe(positives=1, negatives=0, seed=1200).train.labels == data.train.labels


def test_the_boxes_of_a_devkit_are_found_by_the_ids_of_the_images(tmp_path: Path) -> None:
    content, folder = arrays(), tmp_path / "VOC2012" / "Annotations"
    folder.mkdir(parents=True)
    box = "<xmin>1</xmin><ymin>1</ymin><xmax>{0}</xmax><ymax>{0}</ymax>"
    things = [
        f"<object><name>{name}</name><bndbox>{box.format(9 + n)}</bndbox></object>" for n, name in enumerate("abc")
    ]
    for name in (f"{split}{number}" for split in ("train", "val", "test") for number in range(6)):
        (folder / f"{name}.xml").write_text(f"<annotation>{''.join(things)}</annotation>")
    path = stored(tmp_path, content)
    for place in (tmp_path, tmp_path / "VOC2012", folder):
        data = load("features", path, annotations=place).observe("salient")
        expected = [max(np.flatnonzero(row)) for row in content["train_truth"]]
        assert data.train.labels.columns.tolist() == expected and data.recipe["options"]["annotations"] == str(place)
    (folder / "train0.xml").unlink()
    missing = int(content["train_truth"][0].sum())
    assert f"; {missing} present labels have no box" in sentences(load_from_recipe(data.recipe))[-1]
    with pytest.raises(InputError, match=r"train0\.xml"):
        load("features", path, annotations=tmp_path / "nothing")
    content["train_ids"][0] = "../x"
    with pytest.raises(InputError, match=r"'\.\./x'"):
        load("features", stored(tmp_path, content), annotations=folder)
