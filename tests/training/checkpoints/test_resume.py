"""A run that was broken off at an awkward moment goes on to what an unbroken one comes to."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import labelgap as lg
from labelgap.data.dataset import Dataset
from labelgap.training.checkpoints.checkpoint import LAST, save_checkpoint
from labelgap.training.loop import epoch_end, network_trainer
from labelgap.training.loop.trainer import Trainer
from labelgap.training.progress import Reporter

OPTIONS: dict[str, dict[str, Any]] = {
    "ll-cp": {"delta_rel": 20},
    "role": {"expected_positives": 2.5},
    "em-apl": {"warmup": 1},
    "curriculum": {"strategy": "proportion", "theta": 0.2},
}
STEPS = 3
"""Of an epoch: 12 images in batches of 4."""


class Killed(BaseException):
    """Stands for a kill: nothing in a run may catch it."""


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return lg.load("digits", train=12, val=8, test=8)


def fit(data: Dataset, out: Path, method: str = "an", resume: bool = False) -> lg.Run:
    options = OPTIONS.get(method, {})
    return lg.fit(data, method, options, out=out, epochs=3, batch_size=4, device="cpu", resume=resume, quiet=True)


@pytest.fixture(scope="module")
def whole(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(digits, tmp_path_factory.mktemp("runs") / "whole").path


def kill_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    left = iter(range(steps))

    def advance(self: Reporter, *_: object, **__: object) -> None:
        if next(left, None) is None:
            raise Killed

    monkeypatch.setattr(Reporter, "advance", advance)


def assert_same(one: Path, other: Path) -> None:
    mine, theirs = (torch.load(folder / LAST, weights_only=True) for folder in (one, other))
    for part in ("network", "loss_fn"):
        assert mine[part].keys() == theirs[part].keys()
        for key, value in mine[part].items():
            torch.testing.assert_close(value, theirs[part][key], rtol=0, atol=0, equal_nan=True)
    for name in ("best.safetensors", "predictions.parquet", "traces.npz"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert lg.open_run(one).revisions == lg.open_run(other).revisions
    assert lg.open_run(one).metrics["test"] == lg.open_run(other).metrics["test"]


@pytest.mark.parametrize("method", OPTIONS)
def test_what_a_method_remembers_survives_a_kill_in_the_middle_of_an_epoch(
    method: str, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = digits.observe(1, 2, seed=0)
    whole = fit(data, tmp_path / "whole", method)
    assert bool(len(whole.revisions)) == (method != "role")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 2 * STEPS + 1)
        fit(data, tmp_path / "broken", method)
    fit(data, tmp_path / "broken", method, resume=True)
    assert_same(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize("method", ["ll-cp", "role"])
def test_a_restart_from_the_best_epoch_survives_a_kill_in_the_next_one(
    method: str, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = digits.observe(1, 2, seed=0)
    monkeypatch.setattr(network_trainer, "describe_divergence", lambda state, epoch, *_: "fell" if epoch == 2 else None)
    whole = fit(data, tmp_path / "whole", method)
    assert [record.get("lr_factor") for record in whole.history] == [None, None, 0.5]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 2 * STEPS + 1)
        fit(data, tmp_path / "broken", method)
    resumed = fit(data, tmp_path / "broken", method, resume=True)
    assert_same(tmp_path / "broken", tmp_path / "whole")
    assert [{**r, "seconds": 0} for r in resumed.history] == [{**r, "seconds": 0} for r in whole.history]


def test_a_ctrl_c_while_an_epoch_is_written_waits_until_it_is(
    digits: Dataset, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

    def interrupted(*arguments: Any, **named: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        save_checkpoint(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(epoch_end, "save_checkpoint", interrupted)
        stopped = fit(digits, tmp_path / "broken")
    assert stopped.metrics["interrupted"] and stopped.metrics["epochs"] == stopped.metrics["best_epoch"] == 1
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    fit(digits, tmp_path / "broken", resume=True)
    assert_same(tmp_path / "broken", whole)


def test_a_kill_between_the_checkpoint_and_the_best_weights_loses_neither(
    digits: Dataset, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "save_best", killed)
        fit(digits, tmp_path / "broken")
    assert not (tmp_path / "broken" / "best.safetensors").exists()
    fit(digits, tmp_path / "broken", resume=True)
    assert_same(tmp_path / "broken", whole)


def test_a_run_without_its_trace_cannot_be_resumed_and_says_so(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, STEPS + 1)
        fit(digits, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "traces.parts")
    with pytest.raises(lg.RunError, match=r"traces\.parts"):
        fit(digits, tmp_path / "run", resume=True)
