"""Trained runs with candidates, made once; every test gets a copy of a run's folder."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.browsers import close_windows, start_browser
from tests.review.http_client import FORKSERVER, ReviewClient, Worker, run_server
from tests.review.samples import Row, make_album, make_photos, make_run, write_candidates

from labelgap.review import Review, create_random_review, open_review_folder
from labelgap.review.database import FILE
from labelgap.review.store import DecisionStore


@pytest.fixture(autouse=True)
def preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reviews in this process rank soon, in copies of a process that has imported everything; each has a cache."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("labelgap.review.live.IDLE_SECONDS", 0.5)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: FORKSERVER)
    monkeypatch.setattr("labelgap.review.live.run_worker", Worker())


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    make_run(folder)
    return folder


@pytest.fixture
def folder(digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with candidates and no decisions; pictures are kept in a folder of the test's own."""
    return shutil.copytree(digits_run, tmp_path / "run")


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An album's run, made once; features are computed once, into a cache of its own."""
    place = tmp_path_factory.mktemp("album")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELGAP_CACHE", str(place / "cache"))
        return make_album(place / "album")


@pytest.fixture
def album_run(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(album.parents[1] / "cache"))
    return shutil.copytree(album, tmp_path / "run")


@pytest.fixture
def review(folder: Path) -> Iterator[Review]:
    with closing(Review(open_review_folder(folder))) as opened:
        yield opened


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Review]:
    """A review of all labels of five photos, which needs no run."""
    with closing(Review(create_random_review(make_photos(tmp_path), "train", 5, 0, tmp_path / "review"))) as opened:
        yield opened


@pytest.fixture
def client(review: Review) -> Iterator[ReviewClient]:
    """The page of the review, client by a thread of this process."""
    with run_server(review) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionStore]:
    with closing(DecisionStore(tmp_path / FILE)) as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 kB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=400k", "labelgap-test", str(folder)]
    if os.geteuid() or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a disk can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for the tests of one file: while it is open, a process that another test forks would hold its pipes."""
    with start_browser() as started:
        yield started


@pytest.fixture
def chromium(browser: Any) -> Iterator[Any]:
    """The browser, without the windows of the test before."""
    yield browser
    close_windows(browser)


ROWS: list[Row] = [
    ("0.jpg", "train", "dog", 0.9, "missing", -1, 1, 1),
    ("0.jpg", "train", "owl", 0.6, "missing", -1, 2, 1),
    ("3.jpg", "train", "cat", 0.4, "random", -1, 1, 1),
    ("5.jpg", "val", "dog", 0.3, "missing", -1, 3, 2),
]


@pytest.fixture
def photos_review(photos: Review) -> Iterator[Review]:
    write_candidates(photos.path / "candidates.parquet", ROWS, photos.folder.data)
    with closing(Review(photos.folder)) as opened:
        yield opened
