"""Shards in a folder, or at a URL of a real server: read by offset, in any order; a broken one is named or left out."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from tests.data.readers.refused import places, refused
from tests.data.readers.shards.sample_shards import write_sample
from tests.serving import serve

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.files import file_digest
from labelgap.data import Dataset, ImageSource, addresses, load, load_from_recipe
from labelgap.data.findings import ShardsSkipped
from labelgap.data.images import shuffle_rows
from labelgap.data.loader import ImageLoader
from labelgap.data.readers import shards
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

    monkeypatch.setattr(shards, "file_digest", digest)
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


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardServer]:
    """Ten train images and four val images in shards of two, with nothing in the cache."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(addresses, "PAUSE_SECONDS", 0.01)
    write_sample(tmp_path / "photos", tmp_path / "shards")
    with serve_shards(tmp_path / "shards") as served:
        yield served


def cached(server: ShardServer) -> list[str]:
    return sorted(path.name for path in (server.folder.parent / "cache" / "shards").glob("[!.]*.tar"))


def read(data: Dataset, workers: int = 0) -> list[int]:
    """Read an epoch in its own order, and compare it with the local images."""
    images, order = data.train.images, shuffle_rows(data.train.images, np.random.default_rng(1))
    rows = list[int]()
    for index, pixels in ImageLoader(images, order, transform=Resize(8), batch_size=3, workers=workers):
        assert len(pixels) == len(index)
        rows += index.tolist()
    return rows


@pytest.mark.parametrize("workers", [0, 2])
def test_each_shard_is_copied_once_and_each_image_read_once(server: ShardServer, workers: int) -> None:
    data, local = load(server.url), load("shards", server.folder)
    assert data.recipe["path"] == server.url and load_from_recipe(data.recipe).classes == data.classes
    assert [split.labels for split in data.splits] == [split.labels for split in local.splits]
    assert sum(server.sent[f"train-{number:06d}.tar"] for number in range(5)) == 0  # only when they are needed
    for _ in range(2):
        assert sorted(read(data, workers)) == list(range(10))
    assert np.array_equal(data.train.images[7], local.train.images[7])
    sent = {server.sent[f"train-{number:06d}.tar"] for number in range(5)}
    assert sent == {10240} and len(cached(server)) == 5


def test_a_server_that_fails_once_is_asked_again_and_one_that_fails_for_ever_is_named(server: ShardServer) -> None:
    server.fails = lambda name: server.failures[name] < 1
    data = load("shards", server.url)
    assert sorted(read(data)) == list(range(10)) and {*server.failures.values()} == {1}
    server.fails = lambda name: name.startswith("val")
    assert data.val is not None
    with pytest.raises(InputError, match=rf"{server.url}/val-000000\.tar .*503"):
        data.val.images[0]
    server.fails = lambda name: name.endswith(".tar")
    assert len(refused("shards", server.url)) == 7
    server.fails = lambda name: True
    assert places("shards", server.url) == [f"{server.url}/index.json"]
    server.fails = lambda name: False
    (server.folder / "index.json").unlink()
    assert places("shards", server.url) == [f"{server.url}/index.json"]


def test_broken_shards_are_named_or_left_out(server: ShardServer) -> None:
    names = [f"train-00000{number}.tar" for number in (0, 1, 3)]
    (server.folder / names[0]).unlink()
    with (server.folder / names[1]).open("r+b") as file:
        file.truncate(2000)
    assert places("shards", server.url) == [f"{server.url}/{name}" for name in names[:2]]
    rest = load("shards", server.url, on_bad_image="skip")
    assert len(rest.train) == 6 and sorted(read(rest)) == list(range(6))
    with (server.folder / names[2]).open("r+b") as file:
        file.seek(700)
        file.write(b"?")
    for path in (server.folder.parent / "cache" / "shards").glob("*.tar"):
        path.unlink()
    with pytest.raises(InputError, match=rf"{server.url}/{names[2]}"):
        read(rest)
    assert len(cached(server)) <= 2, "nothing of a shard with a wrong digest is kept"
    assert places("shards", server.url) == [f"{server.url}/{name}" for name in names]
    rest = load("shards", server.url, on_bad_image="skip")
    assert len(rest.train) == 4 and sorted(read(rest)) == list(range(4))


def test_the_cache_is_bounded_and_an_epoch_needs_a_shard_once(
    server: ShardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "40000")  # three shards of 10,240 bytes
    monkeypatch.setattr(shards, "WINDOW", 1)
    data = load("shards", server.url)
    orders = [shuffle_rows(data.train.images, np.random.default_rng(seed)) for seed in range(2)]
    assert orders[0].tolist() != orders[1].tolist()
    for order in orders:  # the two images of a shard follow each other
        assert sorted(order.tolist()) == list(range(10)) and (order[::2] // 2 == order[1::2] // 2).all()
    for epoch in range(1, 3):
        assert sorted(read(data)) == list(range(10)) and len(cached(server)) <= 3
        assert sum(server.sent[f"train-{number:06d}.tar"] for number in range(5)) <= epoch * 5 * 10240
    monkeypatch.setenv("LABELGAP_CACHE_LIMIT", "5000")  # less than one shard: the one that is read is kept
    other = server.folder.parent / "cache" / "shards" / f".{'a' * 32}-{'b' * 16}.partial.tar"
    other.touch()  # another process is copying it
    assert sorted(read(data)) == list(range(10)) and len(cached(server)) <= 2 and other.exists()


class ShardServer:
    """What a server does, and what it was asked for.

    Attributes:
        url: of the folder.
        sent: name → how many bytes were sent of it.
        failures: name → how many requests of it were answered with an error.
        fails: whether to answer a request of a file with an error, by its name.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.sent: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.fails: Callable[[str], bool] = lambda name: False


@contextmanager
def serve_shards(folder: Path) -> Iterator[ShardServer]:
    """Serve a folder while the block runs."""

    class Handler(SimpleHTTPRequestHandler):
        def send_head(self) -> Any:
            name = Path(self.path).name
            if served.fails(name):
                served.failures[name] += 1
                self.send_error(503)
                return None
            return super().send_head()

        def copyfile(self, source: Any, outputfile: Any) -> None:
            served.sent[Path(self.path).name] += source.seek(0, os.SEEK_END)
            source.seek(0)
            super().copyfile(source, outputfile)

        def log_message(self, format: str, *values: object) -> None:
            """Print nothing."""

    with serve(partial(Handler, directory=str(folder.parent))) as address:
        served = ShardServer(folder, f"{address}/{folder.name}")
        yield served
