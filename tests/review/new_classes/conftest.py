"""An album with a run, made once; every test gets a copy of the run's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.review.new_classes.sample_album import make_album


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An album's run; features are computed once, into a cache of its own."""
    place = tmp_path_factory.mktemp("album")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELGAP_CACHE", str(place / "cache"))
        return make_album(place / "album")


@pytest.fixture
def album_run(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(album.parents[1] / "cache"))
    return shutil.copytree(album, tmp_path / "run")
