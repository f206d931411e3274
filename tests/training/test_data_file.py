"""A run knows its data: resume refuses others, and images that it was trained on are recognized under any name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import labelgap as lg
from labelgap.core.errors import RunError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.identity import DataChanges, DataIdentity
from labelgap.data.images import FeatureVectors
from labelgap.labels import LabelTable
from labelgap.training.checkpoint import TrainingState
from labelgap.training.loop.linear_trainer import LinearTrainer
from labelgap.training.run_files import DATA_FILE, read_data_identity
from labelgap.training.run_folder import add_known_digests, find_training_images, write_data_identity

FIT: dict[str, Any] = {"method": "an", "epochs": 3, "batch_size": 16, "device": "cpu", "quiet": True}
CLASSES = ("cat", "dog", "owl")


def small_data(seed: int = 0) -> Dataset:
    random = np.random.default_rng(seed)
    codes = (random.random((60, 3)) < 0.4).astype(np.int8)
    vectors = (random.normal(size=(60, 6)) + codes @ random.normal(size=(3, 6))).astype(np.float32)
    table = LabelTable.from_dense(codes, CLASSES, [f"{row}.jpg" for row in range(60)])
    rows = {"train": slice(0, 40), "val": slice(40, 50), "test": slice(50, 60)}
    train, val, test = (
        Split(name, FeatureVectors(vectors[part]), table.select(np.arange(60)[part])) for name, part in rows.items()
    )
    return Dataset("small", train, val, test, backbone="features")


def fit_until(last: int, data: Dataset, **settings: Any) -> None:
    """Train a run and interrupt it after an epoch."""
    train_epoch = LinearTrainer.train_epoch

    def interrupted(self: LinearTrainer, state: TrainingState, epoch: int) -> None:
        if epoch > last:
            raise KeyboardInterrupt
        train_epoch(self, state, epoch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LinearTrainer, "train_epoch", interrupted)
        assert lg.fit(data, **settings).metrics["interrupted"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    fit_until(2, small_data(), out=folder, **FIT)
    return folder


def changed(kind: str) -> Dataset:
    """The data after one of the changes that used to be resumed without a word."""
    data = small_data()
    train, labels = data.train, data.train.labels
    assert isinstance(train.images, FeatureVectors)
    if kind == "labels":
        codes = labels.to_dense()
        codes[3] = 1 - codes[3]
        return replace(data, train=replace(train, labels=LabelTable.from_dense(codes, CLASSES, labels.images)))
    if kind == "features":
        return replace(data, train=replace(train, images=FeatureVectors(train.images.vectors[::-1].copy())))
    rows = np.arange(39)
    return replace(data, train=replace(train, images=train.images.select(rows), labels=labels.select(rows)))


@pytest.mark.parametrize(
    ("kind", "told"), [("labels", "1 image relabeled"), ("features", "40 images replaced"), ("rows", "1 image removed")]
)
def test_a_run_is_not_resumed_on_other_data_unless_asked_to(
    stopped: Path, tmp_path: Path, kind: str, told: str
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(stopped, folder)
    with pytest.raises(RunError, match=rf"{told}.*--accept-changes"):
        lg.fit(changed(kind), out=folder, resume=True, **FIT)
    run = lg.fit(changed(kind), out=folder, resume=True, accept_changes=True, **FIT)
    assert run.finished and not run.metrics["interrupted"]
    identity = read_data_identity(folder)
    assert identity is not None and len(identity.images) == (100 if kind == "features" else 60), "trained on before"
    assert run.count_training_images(small_data(), "all") == 40


def test_images_that_were_trained_on_are_counted_in_any_split(stopped: Path, tmp_path: Path) -> None:
    run, data = lg.open_run(stopped), small_data()
    assert data.test is not None
    assert [run.count_training_images(data, name) for name in ("train", "val", "test", "all")] == [40, 0, 0, 40]
    mixed = replace(data, test=replace(data.train, name="test"), train=replace(data.test, name="train"))
    assert run.count_training_images(mixed, "test") == 40
    copy = tmp_path / "a"
    shutil.copytree(stopped, copy)
    for name in (DATA_FILE, "manifest.json"):
        (copy / name).unlink()
    assert lg.open_run(copy).count_training_images(data, "train") is None


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        ("rows", {"method": "role", "options": {"expected_positives": 1.2}}, "role .* 1 image removed"),
        ("labels", {"folds": 2}, "1 image relabeled"),
    ],
)
def test_state_and_folds_are_of_their_data(kind: str, settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    no_val: dict[str, Any] = {"val": None} if "folds" in settings else {}
    settings = {**FIT, **settings, "out": tmp_path / "a"}
    before, after = (replace(each, **no_val) for each in (small_data(), changed(kind)))
    fit_until(1, before, **settings)
    with pytest.raises(RunError, match=named):
        lg.fit(after, resume=True, accept_changes=True, **settings)


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


def test_images_of_the_same_size_that_were_changed_or_exchanged_are_not_resumed_on(tmp_path: Path) -> None:
    """Also after the cache is gone, and in val: its images decide which epoch is the best."""
    names = NAMES[:12]
    for row, name in enumerate(names):
        write_photo(tmp_path / "photos" / name, row)
    splits = ["train"] * 6 + ["val"] * 3 + ["test"] * 3
    lines = [
        f"{name},{split},{row % 2},{row // 2 % 2}" for row, (name, split) in enumerate(zip(names, splits, strict=True))
    ]
    (tmp_path / "tags.csv").write_text("\n".join(["image,split,cat,dog", *lines]))

    def fit(**settings: Any) -> lg.Run:
        data = lg.load("csv", tmp_path / "tags.csv", images=tmp_path / "photos")
        options: dict[str, Any] = {"backbone": "small-cnn", "protocol": "linear", "epochs": 2, "batch_size": 4}
        return lg.fit(data, "an", out=tmp_path / "run", device="cpu", quiet=True, **options, **settings)

    def stop(history: Any) -> None:
        raise KeyboardInterrupt

    assert fit(on_epoch=stop).metrics["interrupted"]
    first, other = (tmp_path / "photos" / name for name in ("0.bmp", "1.bmp"))
    contents = first.read_bytes(), other.read_bytes()
    first.write_bytes(contents[1])
    other.write_bytes(contents[0])
    with pytest.raises(RunError, match="2 images replaced"):
        fit(resume=True)
    first.write_bytes(contents[0])
    other.write_bytes(contents[1])
    in_val = tmp_path / "photos" / "7.bmp"
    content = in_val.read_bytes()
    in_val.write_bytes(content[:-3] + bytes(255 - value for value in content[-3:]))
    with pytest.raises(RunError, match="1 image replaced"):
        fit(resume=True)
    run = fit(resume=True, accept_changes=True)
    assert run.finished and not run.metrics["interrupted"]


def test_an_image_that_was_trained_on_is_known_after_another_of_its_size_took_its_place(
    place: Path, tmp_path: Path
) -> None:
    before = read_data_identity(place / "run")
    assert before is not None
    shutil.copytree(place / "photos", tmp_path / "photos")
    write_photo(tmp_path / "photos" / "3.bmp", seed=100)
    changed = album(tmp_path, NAMES, tmp_path / "photos")
    now = add_known_digests(DataIdentity.of(changed), changed, before)
    assert before.changes(now) == DataChanges(replaced=1)
    write_data_identity(tmp_path, now.after(before), changed)
    assert find_training_images(tmp_path, changed) == NAMES
    assert find_training_images(tmp_path, album(tmp_path, NAMES, place / "photos")) == NAMES
