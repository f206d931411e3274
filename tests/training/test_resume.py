"""A run that was broken off at an awkward moment goes on to what an unbroken one comes to."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.data.readers.shards.sample_shards import write_sample
from tests.killing import run_forked

import labelgap as lg
from labelgap.data.dataset import Dataset
from labelgap.data.decoding import EncodedImage
from labelgap.data.readers.shards import ShardImages
from labelgap.training.checkpoint import LAST, TrainingState, save_checkpoint
from labelgap.training.loop import network_trainer, trainer
from labelgap.training.loop.network_trainer import NetworkTrainer
from labelgap.training.loop.trainer import Trainer
from labelgap.training.progress import Reporter

OPTIONS: dict[str, dict[str, Any]] = {
    "ll-cp": {"delta_rel": 20},
    "role": {"expected_positives": 2.5},
    "role compact": {"expected_positives": 2.5, "storage": "compact", "kept_classes": 4},
    "imcl": {},
    "em-apl": {"warmup": 1},
}
STEPS = 3
"""Of an epoch: 12 images in batches of 4."""
EVERY_STEP = 1e-9
"""Minutes between checkpoints: no step is shorter."""


class Killed(BaseException):
    """Stands for a kill: nothing in a run may catch it."""


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return lg.load("digits", train=12, val=8, test=8)


def fit(data: Dataset, out: Path, method: str = "an", resume: bool = False, **settings: Any) -> lg.Run:
    options, name = OPTIONS.get(method, {}), method.split()[0]
    settings = {"epochs": 3, "batch_size": 4, "device": "cpu", "checkpoint_minutes": EVERY_STEP, **settings}
    return lg.fit(data, name, options, out=out, resume=resume, quiet=True, **settings)


@pytest.fixture(scope="module")
def whole(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(digits, tmp_path_factory.mktemp("runs") / "whole").path


def position(folder: Path) -> tuple[int, int]:
    """The complete epochs and the batches of the next one, after which a run resumes."""
    state = torch.load(folder / LAST, weights_only=True)["state"]
    return state["epoch"], state["partial"]["batches"]


def kill_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    left = iter(range(steps))

    def advance(self: Reporter, *_: object, **__: object) -> None:
        if next(left, None) is None:
            raise Killed

    monkeypatch.setattr(Reporter, "move_to", advance)


def assert_same(one: Path, other: Path) -> None:
    mine, theirs = (torch.load(folder / LAST, weights_only=True) for folder in (one, other))
    for part in ("network", "loss_fn"):
        assert mine[part].keys() == theirs[part].keys()
        for key, value in mine[part].items():
            torch.testing.assert_close(value, theirs[part][key], rtol=0, atol=0, equal_nan=True)
    for name in ("best.safetensors", "predictions.parquet", "traces.npz"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert lg.open_run(one).revisions == lg.open_run(other).revisions
    assert lg.open_run(one).metrics.get("test") == lg.open_run(other).metrics.get("test")
    losses = [[record["loss"] for record in lg.open_run(folder).history] for folder in (one, other)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("method", OPTIONS)
def test_what_a_method_remembers_survives_a_kill_in_the_middle_of_an_epoch(
    method: str, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = digits.observe(1, 2, seed=0)
    whole = fit(data, tmp_path / "whole", method, epochs=2, checkpoint_minutes=0)
    assert bool(len(whole.revisions)) == (method in ("ll-cp", "em-apl"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, STEPS + 1)
        fit(data, tmp_path / "broken", method, epochs=2)
    assert position(tmp_path / "broken") == (1, 1)
    fit(data, tmp_path / "broken", method, resume=True, epochs=2)
    assert_same(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize(("method", "epoch", "steps"), [("ll-cp", 1, 1), ("role", 2, 2 * STEPS + 1)])
def test_a_restart_after_a_divergence_survives_a_kill_before_or_after_it(
    method: str, epoch: int, steps: int, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(state: TrainingState, trained: int, *_: object) -> str | None:
        return "fell" if trained == epoch and not state.divergences else None

    data = digits.observe(1, 2, seed=0)
    monkeypatch.setattr(network_trainer, "describe_divergence", diverge)
    whole = fit(data, tmp_path / "whole", method)
    assert [record.get("lr_factor") for record in whole.history] == [None if epoch == 2 else 0.5] * 2 + [0.5]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, steps)
        fit(data, tmp_path / "broken", method)
    resumed = fit(data, tmp_path / "broken", method, resume=True)
    assert_same(tmp_path / "broken", tmp_path / "whole")
    assert [{**r, "seconds": 0} for r in resumed.history] == [{**r, "seconds": 0} for r in whole.history]


def test_a_process_killed_in_an_epoch_over_shards_resumes_without_reading_the_images_that_are_done(
    tmp_path: Path,
) -> None:
    write_sample(tmp_path / "photos", tmp_path / "shards")
    settings: dict[str, Any] = {"backbone": "small-cnn", "protocol": "end-to-end", "transform": "crop", "ema": 0.9}
    settings |= {"batch_size": 2, "accumulate": 2, "schedule": "cosine"}

    def save_and_die(folder: Path, state: TrainingState, *arguments: Any, **named: Any) -> None:
        save_checkpoint(folder, state, *arguments, **named)
        if state.partial is not None and (state.epoch, state.partial.batches) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)

    def train_until_killed() -> None:
        with patch.object(network_trainer, "save_checkpoint", save_and_die):
            fit(lg.load("shards", tmp_path / "shards"), tmp_path / "broken", workers=2, **settings)

    assert run_forked(train_until_killed) == -signal.SIGKILL
    data, read = lg.load("shards", tmp_path / "shards"), list[int]()
    original = ShardImages.encoded

    def encoded(self: ShardImages, row: int) -> EncodedImage:
        read.extend([row] if len(self) == 10 else [])
        return original(self, row)

    with patch.object(ShardImages, "encoded", encoded):
        fit(data, tmp_path / "broken", resume=True, workers=0, **settings)
    assert len(set(read[:6])) == 6 and len(read) == 6 + 10, "three of five batches, and an epoch"
    fit(data, tmp_path / "whole", workers=0, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


def test_a_ctrl_c_completes_its_step_and_saves_the_position(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"accumulate": 2, "protocol": "linear-init", "linear_epochs": 2, "checkpoint_minutes": 0}
    fit(digits, tmp_path / "whole", **settings)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    for method, batches in (("_backward", 2), ("_score_val", 3)):  # in the first batch of a step; after the last step
        original = getattr(NetworkTrainer, method)

        def interrupted(*arguments: Any, original: Any = original) -> Any:
            setattr(NetworkTrainer, original.__name__, original)
            os.kill(os.getpid(), signal.SIGINT)
            return original(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(NetworkTrainer, method, interrupted)
            run = fit(digits, tmp_path / "broken", resume=batches == 3, **settings)
        assert position(tmp_path / "broken") == (0, batches) and not run.finished
    signal.signal(signal.SIGINT, before)
    fit(digits, tmp_path / "broken", resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_ctrl_c_that_a_program_ignores_does_not_end_an_epoch_early(
    handler: Any, digits: Dataset, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = NetworkTrainer._backward, iter(range(STEPS))

    def interrupted(*arguments: Any) -> Any:
        if next(left, None) is not None:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    before = signal.signal(signal.SIGINT, handler)
    monkeypatch.setattr(NetworkTrainer, "_backward", interrupted)
    histories = list[int]()
    fit(digits, tmp_path / "run", on_epoch=lambda history: histories.append(history[-1]["epoch"]))
    assert signal.signal(signal.SIGINT, before) is handler and histories == [1, 2, 3]
    assert_same(tmp_path / "run", whole)


def test_a_ctrl_c_while_an_epoch_is_written_waits_until_it_is(
    digits: Dataset, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

    def interrupted(*arguments: Any, **named: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        save_checkpoint(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "save_checkpoint", interrupted)
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
