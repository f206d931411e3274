"""``write_shards``: the same data give the same bytes, whatever was interrupted before."""

from __future__ import annotations

import gc
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image
from tests.killing import killed_at_every_operation

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.data import ArrayImages, Dataset, FeatureVectors, FileImages, Split, load
from labelgap.data.images import StoredImages
from labelgap.data.writers.shards import ShardOptions, write_shards
from labelgap.labels import LabelTable

CODES = [[1, 0, -1], [-1, -1, 1], [0, 0, 0], [-1, -1, -1], [1, 1, 1]]
CLASSES = ["cat", "d o g", "Möwe"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Photos of several formats in train and test, some of one group."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    names = ["a.jpg", "b.png", "c.JPEG", "Ä d.webp", "e.jpg"]
    for number, name in enumerate(names):
        pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    images, table = FileImages(tmp_path / "photos", names), LabelTable.from_dense(CODES, CLASSES, names)
    train = Split("train", images, table, groups=np.array([0, 1, 1, 2, 3]))
    test = Split("test", images.select([4, 0]), table.select([4, 0]))
    return Dataset("photos", train, test=test)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("shuffle", [None, 3])
def test_shards_hold_the_images_and_labels_of_the_data(data: Dataset, tmp_path: Path, shuffle: int | None) -> None:
    index = write_shards(data, tmp_path / "out", ShardOptions(images_per_shard=2, shuffle=shuffle))
    assert [(each.name, each.split, each.count) for each in index.shards] == [
        ("train-000000.tar", "train", 2),
        ("train-000001.tar", "train", 2),
        ("train-000002.tar", "train", 1),
        ("test-000000.tar", "test", 2),
    ]
    again = load("shards", tmp_path / "out")
    assert again.classes == data.classes and again.val is None and again.train.truth is None
    for split in data.splits:
        found, source = again.split(split.name), split.images
        order = [split.labels.images.index(name) for name in found.labels.images]
        assert (shuffle is None) == (order == list(range(len(split))))
        assert found.labels == split.labels.select(order)
        assert isinstance(found.images, StoredImages) and isinstance(source, StoredImages)
        for row, place in enumerate(order):
            assert np.array_equal(found.images[row], source[place])
            assert found.images.digest(row) == source.digest(place)
    groups = again.train.groups
    assert groups is not None and sorted(groups.tolist()) == [0, 1, 1, 2, 3] and again.split("test").groups is None


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_them(data: Dataset, tmp_path: Path) -> None:
    write_shards(data, tmp_path / "out", ShardOptions(images_per_shard=3))
    shards = str(tmp_path / "out" / "train-{000000..000001}.tar")
    read = list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).decode("rgb8"))
    assert [sample["__key__"] for sample in read] == [f"{number:06d}" for number in range(5)]
    assert [sorted(key for key in sample if not key.startswith("__")) for sample in read][3] == ["json", "webp"]
    assert read[0]["json"] == {"image": "a.jpg", "split": "train", "present": ["cat"], "absent": ["d o g"], "group": 0}
    assert np.array_equal(read[1]["png"], data.train.images[1])
    gc.collect()  # webdataset leaves its files to be closed here


def test_a_killed_writer_resumes_to_the_same_bytes(data: Dataset, tmp_path: Path) -> None:
    options, out = ShardOptions(images_per_shard=2), tmp_path / "out"
    write_shards(data, tmp_path / "whole", options)
    expected = contents(tmp_path / "whole")
    for _ in killed_at_every_operation(lambda: write_shards(data, out, options), out, step=3):
        if not (out / "index.json").exists() and (out / "train-000000.tar").exists():
            with pytest.raises(LabelGapError, match="complete"):
                load("shards", out)
    assert contents(out) == expected

    for number in killed_at_every_operation(lambda: write_shards(data, out, options, force=True), out, step=7):
        if number > 1:  # whatever was left, another request starts from nothing
            break
    other = ShardOptions(bytes_per_shard=5000, size=16)
    write_shards(data, out, other, force=True)
    write_shards(data, tmp_path / "other", other)
    assert contents(out) == contents(tmp_path / "other") != expected


def test_large_images_are_scaled_down_and_shards_have_a_size(data: Dataset, tmp_path: Path) -> None:
    index = write_shards(data, tmp_path / "out", ShardOptions(size=16, bytes_per_shard=1500))
    assert len(index.shards) > 3
    again = load("shards", tmp_path / "out").train
    assert [again.images[row].shape for row in range(5)] == [(16, 21, 3)] * 5
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as tar:
        names = tar.getnames()
        assert names[:2] == ["000000.jpg", "000000.json"]
        assert sum(member.size for member in tar) <= 1500 or len(names) == 2
    kept = write_shards(data, tmp_path / "kept", ShardOptions(size=30))
    assert kept.shards[0].bytes > index.shards[0].bytes
    assert np.array_equal(load("shards", tmp_path / "kept").train.images[0], data.train.images[0])


def test_arrays_become_png_and_a_hidden_truth_is_not_written(data: Dataset, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9, 7)).astype(np.uint8)
    arrays = Dataset("array", Split("train", ArrayImages(pixels), LabelTable.from_dense(CODES, CLASSES))).observe(1, 0)
    write_shards(arrays, tmp_path / "out", ShardOptions())
    again = load("shards", tmp_path / "out").train
    assert arrays.train.truth is not None and again.truth is None and again.labels == arrays.train.labels
    assert all(np.array_equal(again.images[row][..., 0], pixels[row]) for row in range(5))


def test_what_is_in_the_folder_is_not_lost(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.tar").write_text("something")
    with pytest.raises(RunError, match="not empty"):
        write_shards(data, tmp_path / "mine", ShardOptions(), force=True)
    index = write_shards(data, tmp_path / "out", ShardOptions())
    before, calls = contents(tmp_path / "out"), list[str]()
    for other, options in ((data, ShardOptions(images_per_shard=2)), (replace(data, test=None), ShardOptions())):
        with pytest.raises(RunError, match="other data"):
            write_shards(other, tmp_path / "out", options)
    assert write_shards(data, tmp_path / "out", ShardOptions(), on_complete=lambda: calls.append("")) == index
    assert calls and contents(tmp_path / "out") == before
    shard = bytearray(before["train-000000.tar"])
    shard[600] ^= 1  # in the bytes of an image, where the tar file says nothing
    (tmp_path / "out" / "train-000000.tar").write_bytes(shard)
    write_shards(data, tmp_path / "out", ShardOptions(), on_complete=lambda: calls.append(""))
    assert len(calls) == 1 and contents(tmp_path / "out") == before
    with pytest.raises(InputError, match="read"):
        write_shards(load("shards", tmp_path / "out"), tmp_path / "out", ShardOptions(size=8), force=True)
    assert contents(tmp_path / "out") == before
    vectors = Split("train", FeatureVectors(np.zeros((5, 3), np.float32)), data.train.labels)
    with pytest.raises(InputError, match="no images"):
        write_shards(replace(data, train=vectors), tmp_path / "vectors", ShardOptions())
    with pytest.raises(InputError, match="at least 1"):
        ShardOptions(size=0)
