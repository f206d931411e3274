"""Shards at a URL, served by a real HTTP server: copied once, checked, tried again, and bounded on the disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from tests.data.readers.refused import places, refused
from tests.data.readers.shards.sample_shards import write_sample

from labelgap.core.errors import InputError
from labelgap.data import Dataset, addresses, load, load_from_recipe
from labelgap.data.images import shuffle_rows
from labelgap.data.loader import ImageLoader
from labelgap.data.readers import shards
from labelgap.data.transforms import Resize


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardServer]:
    """Ten train images and four val images in shards of two, with nothing in the cache."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(addresses, "PAUSE_SECONDS", 0.01)
    write_sample(tmp_path / "photos", tmp_path / "shards")
    with serve(tmp_path / "shards") as served:
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
def serve(folder: Path) -> Iterator[ShardServer]:
    """Serve a folder while the block runs."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(folder.parent))

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

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = ShardServer(folder, f"http://127.0.0.1:{server.server_port}/{folder.name}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
