"""Shards in a folder: read by offset, in any order; a broken one is named, and left out where that is asked for."""

from __future__ import annotations

import json
import pickle
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from tests.data.readers.refused import places, refused
from tests.data.readers.shards.sample_shards import write_sample

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.files import file_digest
from labelgap.data import ImageSource, load
from labelgap.data.findings import ShardsSkipped
from labelgap.data.images import shuffle_rows
from labelgap.data.loader import ImageLoader
from labelgap.data.readers import shards as dataset
from labelgap.data.transforms import Resize
from labelgap.labels import LabelTable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten images in train, in shards of two, and four in val."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    write_sample(tmp_path / "photos", tmp_path / "shards")
    return tmp_path / "shards"


def test_a_path_is_recognized_and_the_images_are_a_source(folder: Path) -> None:
    data = load(folder)
    assert data.recipe["name"] == "shards" and data.recipe["path"] == str(folder)
    assert len(load(folder / "index.json").train) == len(load(f"shards={folder}").train) == 10
    images = data.train.images
    assert isinstance(images, ImageSource)
    assert isinstance(pickle.loads(pickle.dumps(images)).select([3])[0], np.ndarray)
    moved = folder.rename(folder.parent / "moved")
    assert load("shards", moved).train.images.fingerprint() == images.fingerprint()
    with pytest.raises(InputError, match=r"train-000000\.tar does not exist"):
        images[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_files_also_from_the_middle_of_an_epoch(folder: Path, workers: int) -> None:
    images, files = load("shards", folder).train.images, load("csv", folder.parent / "photos" / "tags.csv").train.images
    order = shuffle_rows(images, np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(10))

    def read(source: ImageSource, rows: Any) -> list[tuple[list[int], bytes]]:
        loader = ImageLoader(source, rows, transform=Resize(16, 5), batch_size=3, workers=workers, epoch=2)
        return [(index.tolist(), pixels.numpy().tobytes()) for index, pixels in loader]

    whole = read(images, order)
    assert whole == read(files, order)
    assert read(images, order[6:]) == whole[2:]


def test_shards_of_webdataset_without_an_index_are_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    photo = (tmp_path / "photos" / "00.jpg").read_bytes()
    labels: list[dict[str, Any]] = [{"present": ["dog"], "split": "Validation"}, {"present": [], "absent": ["dog"]}]
    labels += [{"present": ["cat", "dog"], "image": "my cat.jpg"}]
    for number in range(2):
        with webdataset.TarWriter(str(tmp_path / "theirs" / f"shard ({number}).tar")) as writer:
            for place, each in enumerate(labels):
                writer.write({"__key__": f"sub.dir/{number}{place}", "jpg": photo, "json": each, "txt": "more"})
            labels = [{"present": ["owl"]}]
    data = load(tmp_path / "theirs")
    assert data.classes == ("cat", "dog", "owl") and data.val is not None
    assert data.train.labels == LabelTable.from_dense(
        [[-1, 0, -1], [1, 1, -1], [-1, -1, 1]],
        ["cat", "dog", "owl"],
        ["sub.dir/01.jpg", "my cat.jpg", "sub.dir/10.jpg"],
    )
    assert np.array_equal(data.val.images[0], load("shards", folder).train.images[0])
    again = load("shards", tmp_path / "theirs")  # from the index in the cache
    assert [split.labels for split in again.splits] == [split.labels for split in data.splits]


def member(name: str, content: bytes = b"{}") -> tuple[tarfile.TarInfo, BytesIO]:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    return header, BytesIO(content)


@pytest.mark.parametrize(
    "members",
    [
        [member("a.jpg")],
        [member("a.json")],
        *([member("a.jpg"), member("a.json", content)] for content in (b"{}", b'{"present": [1]}', b"{")),
        [member("a.jpg"), member("a.json", b'{"present": [], "split": "x"}')],
        [member("a.jpg"), member("a.json", b'{"present": ["x"], "absent": ["x"]}')],
        [member("a.jpg"), member("a.json", b'{"present": [], "group": %d}' % 10**30)],
        [member("a.jpg"), member("a.png")],
        [],
    ],
)
def test_other_layouts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: list[tuple[tarfile.TarInfo, BytesIO]]
) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for header, content in members:
            tar.addfile(header, content)
            content.seek(0)
    (message,) = refused("shards", tmp_path)
    assert "a.tar: a" in message or not members


def test_broken_shards_are_all_named_or_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load("shards", folder)
    hashed = list[str]()

    def digest(path: Path) -> bytes:
        hashed.extend([path.name] if path.suffix == ".tar" else [])
        return file_digest(path)

    monkeypatch.setattr(dataset, "file_digest", digest)
    load("shards", folder)
    assert not hashed  # nothing has changed since
    (folder / "train-000000.tar").unlink()
    with (folder / "train-000001.tar").open("r+b") as file:
        file.truncate(2000)
    with (folder / "train-000003.tar").open("r+b") as file:
        file.seek(700)
        file.write(b"?")
    broken = [f"train-00000{number}.tar" for number in (0, 1, 3)]
    assert places("shards", folder) == [str(folder / name) for name in broken] and hashed == broken[2:]
    rest = load(folder, on_bad_image="skip")
    assert ShardsSkipped(tuple(broken), 6) in rest.findings
    assert rest.train.labels == whole.train.labels.select([4, 5, 8, 9]) and rest.val is not None and len(rest.val) == 4
    assert np.array_equal(rest.train.images[3], whole.train.images[9])
    for name in ("index.json", "images.parquet"):
        (folder / name).unlink()
    assert places("shards", folder) == [str(folder / name) for name in broken[1:2]], "the truncated one"
    for each in folder.iterdir():
        each.unlink()
    with pytest.raises(InputError, match=r"shards "):
        load("shards", folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format 2"),
        ({"classes": ["cat"]}, "class"),
        ({"classes": ["cat", "cat"]}, "classes"),
        ({"images_digest": "0" * 32}, "index.json"),
        ({"shards": []}, "shard"),
        ({"code": "x"}, "'code'"),
        ({"name": "../train-000000.tar"}, "name"),
        ({"name": "train-000001.tar"}, "name"),
        ({"bytes": 1000}, "image"),
        ({"count": 3}, "counts"),
    ],
)
def test_an_index_that_cannot_be_is_refused(folder: Path, change: dict[str, Any], said: str) -> None:
    index = json.loads((folder / "index.json").read_text())
    if change.keys() & {"name", "bytes", "count"}:
        index["shards"][0] |= change
    else:
        index |= change
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(LabelGapError, match=said):
        load("shards", folder)
