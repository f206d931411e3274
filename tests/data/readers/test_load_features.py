"""Vectors instead of pixels: npz and Parquet, and the papers' own labels in the real file."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.sentences import sentences

from labelgap.core.errors import InputError
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.images import ImageSource
from labelgap.data.loader import ImageLoader
from labelgap.data.opening import load, load_from_recipe
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
        columns["observed"] += content[
            f"{split}_observed" if f"{split}_observed" in content else f"{split}_truth"
        ].tolist()
    table = pa.table({**columns, "features": pa.array(columns["features"], pa.list_(pa.float32()))})
    pq.write_table(
        table.replace_schema_metadata({"classes": json.dumps(content["classes"].tolist())}), folder / "x.parquet"
    )
    return folder / "x.parquet"


def test_labels_are_what_was_observed_and_truth_is_all_that_is_known(tmp_path: Path) -> None:
    content = arrays()
    data = load(stored(tmp_path, content))
    assert sentences(data)[0] == "recognized as features: an .npz or .parquet file with features"
    assert data.classes == ("a", "b", "c") and (data.backbone, data.protocol, data.flip) == (
        "features",
        "linear",
        False,
    )
    assert data.train.labels.to_dense().tolist() == content["train_observed"].tolist()
    assert data.train.truth is not None and data.train.truth.to_dense().tolist() == content["train_truth"].tolist()
    assert data.val is not None and data.val.labels.complete and data.test is not None and data.test.labels.complete
    assert data.train.labels.images == tuple(content["train_ids"])
    assert isinstance(data.train.images, FeatureVectors)
    assert (data.train.images.vectors == content["train_features"]).all()


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    content = arrays()
    one, other = load(stored(tmp_path, content)), load(table_file(tmp_path, content))
    assert sentences(other)[0].startswith("recognized as features")
    for first, second in zip(one.splits, other.splits, strict=True):
        assert first.labels == second.labels and first.truth == second.truth
        assert isinstance(first.images, FeatureVectors) and isinstance(second.images, FeatureVectors)
        assert np.allclose(first.images.vectors, second.images.vectors)


def test_labels_alone_may_have_gaps_and_names_may_be_left_out(tmp_path: Path) -> None:
    labels = np.array([[1, np.nan], [0, 1]])
    data = load("features", stored(tmp_path, {"train_features": np.eye(2), "train_labels": labels}))
    assert data.train.labels == LabelTable.from_dense(labels) and data.train.truth is None
    assert data.classes == ("0", "1") and data.val is None and data.train.labels.images == ("0", "1")


def test_asking_for_pixels_says_that_there_are_none(tmp_path: Path) -> None:
    images = load(stored(tmp_path, arrays())).train.images
    assert isinstance(images, ImageSource)
    with pytest.raises(InputError, match="feature vectors, there are no pixels"):
        images[0]
    with pytest.raises(InputError, match="there are no pixels"):
        list(ImageLoader(images, transform=Resize(4)))


def test_vectors_can_be_chosen_pickled_and_told_apart() -> None:
    vectors = FeatureVectors(np.arange(12, dtype=np.float32).reshape(4, 3), names="abcd")
    chosen = vectors.select([3, 1])
    assert chosen.names == ("d", "b") and chosen.vectors.tolist() == [[9, 10, 11], [3, 4, 5]]
    copied = pickle.loads(pickle.dumps(chosen))
    assert copied.fingerprint() == chosen.fingerprint() != vectors.fingerprint()
    assert repr(vectors) == "FeatureVectors(4 of 3 numbers)"


@pytest.mark.parametrize(
    "vectors", [np.zeros((2, 0)), np.zeros(3), np.zeros((2, 2), dtype=int), np.full((1, 1), np.nan)]
)
def test_what_are_no_vectors_is_refused(vectors: Any) -> None:
    with pytest.raises(InputError, match="features"):
        FeatureVectors(vectors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_truth": None, "train_observed": None}, "train has features but no labels"),
        ({"train_labels": np.ones((6, 3))}, "labels beside truth or observed"),
        ({"train_observed": np.zeros((6, 3))}, "train_observed says something else than train_truth"),
        ({"train_truth": np.full((6, 3), 7)}, "train_truth: labels holds 7"),
        ({"val_features": np.zeros((6, 9))}, "features of different widths"),
        ({"val_ids": np.array(["x"] * 6)}, "is listed twice"),
        ({"classes": np.array(["a", "b"])}, "2 class names were given for 3 columns"),
        ({"train_features": None}, "has no train_features"),
        ({"classes": np.array([{"a": 1}], dtype=object)}, "is damaged"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changes: Arrays, message: str) -> None:
    content = {name: value for name, value in {**arrays(), **changes}.items() if value is not None}
    with pytest.raises(InputError, match=message):
        load("features", stored(tmp_path, content))


def test_files_that_are_damaged_or_not_there_are_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, arrays())
    path.write_bytes(path.read_bytes()[:300])
    for text in (f"features={path}", str(path)):
        with pytest.raises(InputError, match=r"x\.npz is damaged \(File is not a zip file\)"):
            load(text)
    with pytest.raises(InputError, match="does not exist"):
        load("features", tmp_path / "none.npz")
    np.savez(path, weights=np.zeros(3))
    with pytest.raises(InputError, match="does not recognize"):
        load(path)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("features", [[1.0], [1.0, 2.0, 3.0]], "all of one length"),
        ("features", ["x", "y"], "it must hold lists of numbers"),
        ("split", ["train", "trial"], "'trial' under split"),
        ("labels", [[1, None], [1, 0]], "without gaps"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, column: str, values: list[Any], message: str) -> None:
    columns: Arrays = {"features": [[1.0, 2.0], [3.0, 4.0]], "split": ["train", "train"], "labels": [[1, 0], [1, -1]]}
    pq.write_table(pa.table({**columns, column: values}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=message):
        load("features", tmp_path / "x.parquet")


def test_the_real_features_carry_the_papers_labels_and_their_draw(shared_data: Path) -> None:
    data = load(shared_data / "voc2012_resnet50_448.npz")
    assert [len(split) for split in data.splits] == [4574, 1143, 5823] and len(data.classes) == 20
    assert data.train.labels.counts().total == (4574, 0, 86906)
    assert all(split.evaluation_labels.complete for split in data.splits)
    assert data.observe(positives=1, negatives=0, seed=1200).train.labels == data.train.labels
    assert any("papers' split of one set" in rule for rule in sentences(data))


def test_the_boxes_of_a_devkit_are_found_by_the_ids_of_the_images(tmp_path: Path) -> None:
    content, folder = arrays(), tmp_path / "VOC2012" / "Annotations"
    folder.mkdir(parents=True)
    thing = "<object><name>{}</name><bndbox>{}</bndbox></object>"
    box = "<xmin>1</xmin><ymin>1</ymin><xmax>{0}</xmax><ymax>{0}</ymax>"
    for number in range(6):
        for split in ("train", "val", "test"):
            objects = "".join(thing.format(name, box.format(9 + place)) for place, name in enumerate("abc"))
            (folder / f"{split}{number}.xml").write_text(f"<annotation>{objects}</annotation>")
    path = stored(tmp_path, content)
    for place in (tmp_path, tmp_path / "VOC2012", folder):
        data = load("features", path, annotations=place).observe("salient")
        expected = [max(np.flatnonzero(row)) for row in content["train_truth"]]
        assert data.train.labels.columns.tolist() == expected and data.recipe["options"]["annotations"] == str(place)
    assert load_from_recipe(data.recipe).train.labels == data.train.labels
    (folder / "train0.xml").unlink()
    missing = int(content["train_truth"][0].sum())
    assert f"; {missing} present labels have no box) and 0 absent" in sentences(load_from_recipe(data.recipe))[-1]
    with pytest.raises(InputError, match=r"has no file train0.xml, nor one of another image"):
        load("features", path, annotations=tmp_path / "nothing")
    content["train_ids"][0] = "../x"
    with pytest.raises(InputError, match=r"'../x': an image id is the name of a file"):
        load("features", stored(tmp_path, content), annotations=folder)
