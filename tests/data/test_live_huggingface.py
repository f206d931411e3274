"""Live data sets of the library ``datasets``, in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (40 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def data(photos: Path, tmp_path: Path) -> Dataset:
    splits = ["train"] * 8 + ["val"] * 2 + ["test"] * 2
    lists = ["a/b,cat", "cat,image", "image,", "cat;image,a/b"]  # present and absent; the rest is unknown
    rows = [f"{number}.png,{split},{lists[number % 4]}" for number, split in enumerate(splits)]
    (tmp_path / "tags.csv").write_text("\n".join(["image,split,present,absent", *rows]))
    return lg.load(tmp_path / "tags.csv", images=photos)


def test_a_data_set_goes_out_and_comes_back(data: Dataset) -> None:
    out = data.to_huggingface()
    assert list(out) == ["train", "validation", "test"]
    assert out["train"].column_names == ["image_", "a/b", "cat", "image"], "one class is called image"
    assert out["train"][0]["image_"].size == (30, 40)
    assert [out["train"][0][name] for name in data.classes] == [True, False, None]
    back = lg.load(out)
    for mine, theirs in zip(data.splits, back.splits, strict=True):
        assert (mine.name, list(mine.labels.images)) == (theirs.name, list(theirs.labels.images))
        assert np.array_equal(mine.labels.to_dense(), theirs.labels.to_dense())
        assert np.array_equal(mine.images[1], theirs.images[1])
    assert back.classes == data.classes and back.recipe["name"] == "huggingface"
    again = back.to_huggingface()
    assert again["test"][1]["image_"].size == out["test"][1]["image_"].size, "of bytes in rows"


def test_images_in_memory_go_out_too() -> None:
    digits = lg.load("digits", train=4, val=2, test=2)
    back = lg.load(digits.to_huggingface())
    assert np.array_equal(back.train.labels.to_dense(), digits.train.labels.to_dense())
    assert np.array_equal(back.train.images[3][..., :1], digits.train.images[3])


def test_rows_that_are_selected_and_lists_of_classes(photos: Path) -> None:
    names = ["cat", "dog", "owl"]
    features = datasets.Features({"image": datasets.Image(), "tags": datasets.List(datasets.ClassLabel(names=names))})
    rows = {"image": [str(photos / f"{number}.png") for number in range(6)], "tags": [[0], [1, 2], [], None, [2], [0]]}
    live = datasets.Dataset.from_dict(rows, features=features).select([5, 1, 3])
    loaded = lg.load(live, unlisted="absent")
    assert loaded.classes == tuple(names)
    expected = [[PRESENT, ABSENT, ABSENT], [ABSENT, PRESENT, PRESENT], [UNKNOWN] * 3]
    assert loaded.train.labels.to_dense().tolist() == expected
    assert loaded.train.images[0].shape == (45, 30, 3)


@pytest.mark.parametrize("kind", ["int8", "float32", "bool"])
def test_vectors_of_states_keep_null(photos: Path, kind: str) -> None:
    features = datasets.Features({"image": datasets.Image(), "labels": datasets.List(datasets.Value(kind))})
    rows: dict[str, Any] = {"image": [str(photos / f"{number}.png") for number in range(3)]}
    rows["labels"] = [[1, 0, None], None, [None, 1, 1]]
    live = datasets.Dataset.from_dict(rows, features=features)
    expected = [[PRESENT, ABSENT, UNKNOWN], [UNKNOWN] * 3, [UNKNOWN, PRESENT, PRESENT]]
    assert lg.load(live).train.labels.to_dense().tolist() == expected
    assert lg.load(live).classes == ("0", "1", "2") and lg.load(live, classes=["a", "b", "c"]).classes == (
        "a",
        "b",
        "c",
    )
    with pytest.raises(InputError, match="3 states"):
        lg.load(live, classes=["a"])
    live = datasets.Dataset.from_dict({**rows, "labels": [[1, 0], [1], [1, 0]]}, features=features)
    with pytest.raises(InputError, match="1 states, not 2"):
        lg.load(live)


def test_a_run_on_a_live_data_set_finds_its_data_again(data: Dataset, tmp_path: Path) -> None:
    live = data.to_huggingface()
    run = lg.fit(lg.load(live), backbone="tiny-cnn", epochs=1, out=tmp_path / "run", device="cpu", quiet=True)
    assert lg.open_run(run.path).load_data().train.images.fingerprint() == lg.load(live).train.images.fingerprint()
