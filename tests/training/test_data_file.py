"""A run knows its data: resume refuses others, and evaluate says what was trained on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import labelgap as lg
from labelgap.core.errors import RunError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.labels import LabelTable
from labelgap.training.checkpoint import TrainingState
from labelgap.training.loop.linear_trainer import LinearTrainer
from labelgap.training.run_folder import DATA_FILE, read_data_identity

FIT: dict[str, Any] = {"method": "an", "epochs": 3, "batch_size": 16, "device": "cpu", "quiet": True}
CLASSES = ("cat", "dog", "owl")


def small_data(seed: int = 0) -> Dataset:
    random = np.random.default_rng(seed)
    codes = (random.random((60, 3)) < 0.4).astype(np.int8)
    vectors = (random.normal(size=(60, 6)) + codes @ random.normal(size=(3, 6))).astype(np.float32)
    table = LabelTable.from_dense(codes, CLASSES, [f"{row}.jpg" for row in range(60)])
    rows = {"train": slice(0, 40), "val": slice(40, 50), "test": slice(50, 60)}
    parts = {
        name: Split(name, FeatureVectors(vectors[part]), table.select(np.arange(60)[part]))
        for name, part in rows.items()
    }
    return Dataset("small", parts["train"], parts["val"], parts["test"], backbone="features")


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


def test_a_run_that_was_resumed_on_other_data_can_be_stopped_and_resumed_again(tmp_path: Path) -> None:
    """Its trace, which is of other labels, is not missed."""
    settings = {**FIT, "epochs": 4, "out": tmp_path / "a"}
    fit_until(2, small_data(), **settings)
    fit_until(3, changed("labels"), resume=True, accept_changes=True, **settings)
    run = lg.fit(changed("labels"), resume=True, **settings)
    assert run.finished and len(run.history) == 4 and not run.trace


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        ("rows", {"method": "role", "options": {"expected_positives": 1.2}}, "role .* 1 image removed"),
        ("labels", {"folds": 2}, "1 image relabeled"),
    ],
)
def test_state_and_folds_are_of_their_data(kind: str, settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    no_val = {"val": None} if "folds" in settings else {}
    settings = {**FIT, **settings, "out": tmp_path / "a"}
    before, after = (replace(each, **no_val) for each in (small_data(), changed(kind)))
    fit_until(1, before, **settings)
    with pytest.raises(RunError, match=named):
        lg.fit(after, resume=True, accept_changes=True, **settings)
