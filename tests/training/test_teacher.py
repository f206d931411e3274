"""A run that follows a finished one: its targets, what is refused, and a killed run that lost its teacher."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from tests.killing import run_forked

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.core.tensors import read_tensors
from labelgap.data.dataset import Split, as_image_source

PARTS = {"train": 60, "val": 40, "test": 20}


def fabrics(classes: Sequence[str] = ("rows", "columns", "checks")) -> lg.Dataset:
    """Small images of woven patterns, one or several over each other."""
    random, splits = np.random.default_rng(0), []
    row, column = np.indices((24, 24)) // 2 % 2
    patterns = np.stack([row, column, row ^ column])
    for name, count in PARTS.items():
        truth = random.random((count, 3)) < 0.5
        truth[~truth.any(axis=1), 0] = True
        values = 60 * np.einsum("nk,khw->nhw", truth, patterns) + 60 * random.random((count, 24, 24))
        table = lg.LabelTable.from_dense(truth.astype(np.int8), classes, [f"{name}{row}.png" for row in range(count)])
        splits.append(Split(name, as_image_source(values.astype(np.uint8)), table))
    train, val, test = splits
    return lg.Dataset("fabrics", train, val, test, backbone="small-cnn", protocol="end-to-end", flip=False)


def fit(data: lg.Dataset, out: Path, **settings: Any) -> lg.Run:
    return lg.fit(data, out=out, quiet=True, **{"batch_size": 10, "device": "cpu", "lr": 0.01, **settings})


@pytest.fixture(scope="module")
def data() -> lg.Dataset:
    return fabrics().observe(positives=1, negatives=0)


@pytest.fixture(scope="module")
def teacher(data: lg.Dataset, tmp_path_factory: pytest.TempPathFactory) -> lg.Run:
    return fit(data, tmp_path_factory.mktemp("teacher") / "run", method="an", epochs=8)


def test_unknown_labels_have_the_calibrated_probabilities_of_the_teacher(
    data: lg.Dataset, teacher: lg.Run, tmp_path: Path
) -> None:
    run = fit(data, tmp_path / "run", teacher=teacher.path, epochs=8)
    assert (run.config.method, run.config.options) == ("bce-ls", {"smoothing": 0.05})
    stored = teacher.metrics["calibration"]
    chance = expit(stored["scale"] * teacher.logits(data.train.images) + np.array(stored["offset"]))
    target = read_tensors(run.path / "teacher.safetensors")[0]["target"].numpy()
    np.testing.assert_allclose(target, 0.05 + 0.9 * chance, atol=1e-5)
    unknown = data.train.labels.to_dense() == lg.UNKNOWN
    distance, before = (np.abs(each.predict(data.train) - target)[unknown].mean() for each in (run, teacher))
    assert distance < 0.7 * before


def test_a_killed_run_goes_on_without_its_teacher(data: lg.Dataset, teacher: lg.Run, tmp_path: Path) -> None:
    whole = fit(data, tmp_path / "whole", teacher=teacher.path, epochs=3)
    copy = shutil.copytree(teacher.path, tmp_path / "teacher")

    def die(history: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    settings: dict[str, Any] = {"teacher": copy, "epochs": 3}
    assert run_forked(lambda: fit(data, tmp_path / "killed", on_epoch=die, **settings)) == -signal.SIGKILL
    shutil.rmtree(copy)
    resumed = fit(data, tmp_path / "killed", resume=True, **settings)
    assert data.test is not None
    np.testing.assert_array_equal(resumed.logits(data.test.images), whole.logits(data.test.images))


def test_a_teacher_that_says_nothing_is_refused(data: lg.Dataset, teacher: lg.Run, tmp_path: Path) -> None:
    assert data.val is not None
    train = replace(data.train, name="val")
    unsplit: dict[str, Any] = {"method": "an", "protocol": "linear", "backbone": "small-cnn", "epochs": 1}
    blind = fit(replace(data, val=data.val.select(np.arange(3))), tmp_path / "blind", method="an", epochs=1)
    for given, settings, message in (
        (fabrics(), {}, "no label of train is unknown"),
        (data, {"method": "two-way"}, "two-way takes no soft labels.*--teacher"),
        (fabrics(("row", "columns", "checks")), {}, "does not know the class row; it has rows"),
        (data, {"teacher": blind.path}, "has no calibration"),
        (replace(data, val=train), {}, "was trained on 60 images of val"),
        (replace(data, val=None), unsplit, "was trained on 60 images of train, and cross-validation"),
    ):
        with pytest.raises(InputError, match=message):
            fit(given, tmp_path / "run", **{"teacher": teacher.path, **settings})
