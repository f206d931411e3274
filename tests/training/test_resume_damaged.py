"""A run with a damaged checkpoint, or on a full disk, ends with the numbers of an unbroken one."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training.test_resume import Killed, assert_same

import labelgap as lg
from labelgap.cli.main import main
from labelgap.data.dataset import Dataset
from labelgap.training.checkpoint import BEST, LAST, completed_epochs
from labelgap.training.progress import Reporter
from labelgap.training.selection import EpochScore, Selection

METHODS: dict[str, dict[str, Any]] = {"role": {"ema": 0.9, "schedule": "cosine", "warmup": 1}}

STEPS = 3
"""Of an epoch: 12 images in batches of 4."""


@pytest.fixture(scope="module")
def data() -> Dataset:
    return lg.load("digits", train=12, val=8, test=8).observe(1, 2, seed=0)


def fit(data: Dataset, out: Path, method: str = "an", *, epochs: int = 4, resume: bool = False, **more: Any) -> lg.Run:
    return lg.fit(data, method, out=out, epochs=epochs, batch_size=4, device="cpu", resume=resume, quiet=True, **more)


def stop_after(patch: pytest.MonkeyPatch, steps: int, how: Callable[[], BaseException] = Killed) -> None:
    """End a training by an error in the step after so many."""
    left = iter(range(steps))

    def advance(self: Reporter, *_: object, **__: object) -> None:
        if next(left, None) is None:
            raise how()

    patch.setattr(Reporter, "move_to", advance)


@pytest.mark.parametrize("method", METHODS)
def test_an_epoch_is_trained_again_where_its_checkpoint_is_cut_short(
    method: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = METHODS[method]
    if method == "role":
        settings = {**settings, "options": {"expected_positives": 2.5}}
    fit(data, tmp_path / "whole", method, **settings)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        stop_after(patch, 3 * STEPS + 1)
        fit(data, tmp_path / "broken", method, **settings)
    for share in (0.2, 0.95):
        path = tmp_path / "broken" / LAST
        os.truncate(path, int(share * path.stat().st_size))
        with monkeypatch.context() as patch, pytest.raises(Killed):
            stop_after(patch, STEPS + 1)
            fit(data, tmp_path / "broken", method, resume=True, **settings)
        assert completed_epochs(tmp_path / "broken") == 3
    fit(data, tmp_path / "broken", method, resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


def scripted(patch: pytest.MonkeyPatch, *values: float) -> None:
    left = iter(values)
    patch.setattr(Selection, "score", lambda self, scores: EpochScore(next(left), 1))


def test_a_ctrl_c_after_going_back_an_epoch_does_not_keep_the_weights_of_the_lost_one(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        scripted(patch, 0.5, 0.4)
        two = fit(data, tmp_path / "two", epochs=2)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        scripted(patch, 0.5, 0.4, 0.9)
        stop_after(patch, 3 * STEPS + 1)
        fit(data, tmp_path / "broken")
    best = (tmp_path / "broken" / BEST).read_bytes()
    os.truncate(tmp_path / "broken" / LAST, 1000)
    with monkeypatch.context() as patch:
        stop_after(patch, 1, KeyboardInterrupt)
        stopped = fit(data, tmp_path / "broken", resume=True)
    assert (stopped.metrics["epochs"], stopped.metrics["best_epoch"]) == (2, 1)
    assert [line["epoch"] for line in stopped.history] == [1, 2] and len(stopped.trace["loss"]) == 2
    assert (tmp_path / "broken" / BEST).read_bytes() == (two.path / BEST).read_bytes() != best
    assert (stopped.path / "predictions.parquet").read_bytes() == (two.path / "predictions.parquet").read_bytes()
    with monkeypatch.context() as patch:
        scripted(patch, 0.9, 0.3)
        finished = fit(data, tmp_path / "broken", resume=True)
    assert finished.metrics["best_epoch"] == 3 and (finished.path / BEST).read_bytes() == best


def train(data: Dataset, out: Path, patch: pytest.MonkeyPatch, *more: str) -> int:
    """Run ``labelgap train`` on these data, and return its exit code."""
    words = ["train", "digits", "--method", "an", "--epochs", "3", "--batch-size", "4", "--device", "cpu", "--out"]
    patch.setattr("labelgap.load", lambda *_, **__: data)
    patch.setattr(sys, "argv", ["labelgap", *words, str(out), *more])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_a_disk_that_is_full_in_the_middle_loses_nothing(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, before, left = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE), iter(range(STEPS + 1))

    def advance(self: Reporter, *_: object, **__: object) -> None:
        if next(left, None) is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))

    with monkeypatch.context() as patch:
        patch.setattr(Reporter, "move_to", advance)
        try:
            code = train(data, out, patch)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err.splitlines()[-1]
    assert code == 2
    assert said.startswith(f"labelgap: the disk is full: {out}") and "could not be written (file too large)" in said
    assert "epoch is 1;" in said and said.endswith("--resume.")
    assert not [path.name for path in out.rglob("*") if ".partial" in path.name] and completed_epochs(out) == 1
    with monkeypatch.context() as patch:
        assert train(data, out, patch, "--resume") == 0
    for name in ("report.html", "MODEL_CARD.md"):
        (out / name).unlink()
    fit(data, tmp_path / "whole", epochs=3)
    assert_same(out, tmp_path / "whole")
