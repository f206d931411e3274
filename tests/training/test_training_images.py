"""A run recognizes the images that it was trained on by content: under other names too, and no others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import labelgap as lg
from labelgap.data.dataset import Dataset
from labelgap.data.identity import DataIdentity
from labelgap.training.run_folder import find_training_images, read_data_identity, write_data_identity

COUNT = 24
NAMES = [f"{row}.bmp" for row in range(COUNT)]
CODES = np.random.default_rng(1).integers(0, 2, size=(COUNT, 2))


def album(folder: Path, names: list[str], images: Path, rows: range = range(COUNT)) -> Dataset:
    """Write a table of some photos and read it."""
    lines = [f"{name},{CODES[row, 0]},{CODES[row, 1]}" for name, row in zip(names, rows, strict=True)]
    folder.mkdir(exist_ok=True)
    (folder / "tags.csv").write_text("\n".join(["image,cat,dog", *lines]))
    return lg.load("csv", folder / "tags.csv", images=images)


def write_photo(path: Path, seed: int) -> None:
    """Write noise; as bitmaps all files have the same size."""
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photos, and a cross-validated run that was trained on them."""
    folder = tmp_path_factory.mktemp("album")
    for row, name in enumerate(NAMES):
        write_photo(folder / "photos" / name, row)
    data = album(folder, NAMES, folder / "photos")
    settings: dict[str, Any] = {"folds": 2, "epochs": 2, "device": "cpu", "quiet": True}
    lg.fit(data, "an", backbone="small-cnn", protocol="linear", out=folder / "run", **settings)
    return folder


def test_photos_under_other_names_are_scored_out_of_fold_as_under_their_own(place: Path, tmp_path: Path) -> None:
    run = lg.open_run(place / "run")
    plain = run.evaluate(album(tmp_path / "a", NAMES, place / "photos"), device="cpu", resamples=0)
    assert (plain["trained_images"], plain["out_of_fold_images"]) == (0, COUNT)
    for name in NAMES:
        (tmp_path / "copies").mkdir(exist_ok=True)
        shutil.copy(place / "photos" / name, tmp_path / "copies" / f"a_{name}")
    others = [([f"a_{name}" for name in NAMES], tmp_path / "copies")]
    others += [([name.replace("bmp", "BMP") for name in NAMES], place / "photos")]
    for number, (names, images) in enumerate([*ways(place), *others]):
        assert run.evaluate(album(tmp_path / str(number), names, images), device="cpu", resamples=0) == plain


def test_a_mixed_table_takes_each_photo_for_what_it_is(place: Path, tmp_path: Path) -> None:
    """A name and a size are not enough; two copies of a photo are both recognized, each in its own row."""
    write_photo(tmp_path / "0.bmp", seed=100)
    write_photo(tmp_path / "new.bmp", seed=101)
    for source, copy in (("5.bmp", "1.bmp"), ("5.bmp", "x.bmp"), ("2.bmp", "2.bmp")):
        shutil.copy(place / "photos" / source, tmp_path / copy)
    names = ["0.bmp", "1.bmp", "new.bmp", "x.bmp", "2.bmp"]
    data = album(tmp_path, names, tmp_path, range(5))
    assert find_training_images(place / "run", data) == [None, "5.bmp", None, "5.bmp", "2.bmp"]
    measured = lg.open_run(place / "run").evaluate(data, device="cpu", resamples=0)
    assert (measured["trained_images"], measured["out_of_fold_images"]) == (0, 3)


def test_without_out_of_fold_scores_renamed_photos_are_counted_as_trained_on(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run", tmp_path / "run")
    for name in ("predictions.parquet", "manifest.json"):
        (tmp_path / "run" / name).unlink()
    data = album(tmp_path, [f"photos/{name}" for name in NAMES], place)
    measured = lg.open_run(tmp_path / "run").evaluate(data, device="cpu", resamples=0)
    assert (measured["trained_images"], measured["out_of_fold_images"]) == (COUNT, 0)


def test_without_digests_names_are_compared(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    data, renamed = (album(tmp_path / str(n), names, at) for n, (names, at) in enumerate(ways(place)))
    write_data_identity(tmp_path, DataIdentity.of(data))
    assert find_training_images(tmp_path, data, "train") == NAMES
    assert find_training_images(tmp_path, renamed) == [None] * COUNT
    monkeypatch.setattr("labelgap.training.run_folder.MAX_HASHED", COUNT - 1)  # of more files none is read
    write_data_identity(tmp_path, DataIdentity.of(data), data)
    assert find_training_images(tmp_path, data, "train") == find_training_images(place / "run", data, "train") == NAMES


def ways(place: Path) -> list[tuple[list[str], Path]]:
    """The photos under their own names, and from the folder above."""
    return [(NAMES, place / "photos"), ([f"photos/{name}" for name in NAMES], place)]


def test_digests_outlast_a_change_of_the_data(place: Path, tmp_path: Path) -> None:
    before = read_data_identity(place / "run")
    assert before is not None and len(set(before.digests)) == COUNT
    data = album(tmp_path, NAMES[:4], place / "photos", range(4))
    write_data_identity(tmp_path, DataIdentity.of(data).after(before), data)
    renamed = album(tmp_path, [f"photos/{name}" for name in NAMES], place)
    assert find_training_images(tmp_path, renamed) == NAMES
