"""Checkpoints, every byte checked; and runs broken off at awkward moments end with the numbers of unbroken ones."""

from __future__ import annotations

import os
import random
import resource
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tests.data.readers.shards.sample_shards import write_sample
from tests.killing import run_forked
from tests.mutations import Calls, mutations
from torch import nn

import labelgap as lg
from labelgap.core.errors import RunError
from labelgap.data.dataset import Dataset
from labelgap.data.decoding import EncodedImage
from labelgap.data.readers.shards import ShardImages
from labelgap.training.checkpoint import (
    FORMAT,
    PREVIOUS,
    TrainingState,
    completed_epochs,
    load_checkpoint,
    save_checkpoint,
    save_weights,
)
from labelgap.training.loop import network_trainer, trainer
from labelgap.training.loop.network_trainer import NetworkTrainer
from labelgap.training.loop.trainer import Trainer
from labelgap.training.progress import Reporter
from labelgap.training.run_files import BEST, LAST
from labelgap.training.selection import EpochScore, Selection

OPTIONS: dict[str, dict[str, Any]] = {
    "ll-cp": {"delta_rel": 20},
    "role": {"expected_positives": 2.5},
    "role compact": {"expected_positives": 2.5, "storage": "compact", "kept_classes": 4},
    "imcl": {"dictionary": 12},
    "em-apl": {"warmup": 1},
}
STEPS = 3
"""Of an epoch: 12 images in batches of 4."""
EVERY_STEP = 1e-9
"""Minutes between checkpoints: no step is shorter."""


class Killed(BaseException):
    """Stands for a kill: nothing in a run may catch it."""


@pytest.fixture(scope="module")
def data() -> Dataset:
    return lg.load("digits", train=12, val=8, test=8).observe(1, 2, seed=0)


def fit(data: Dataset, out: Path, method: str = "an", resume: bool = False, **settings: Any) -> lg.Run:
    options, name = OPTIONS.get(method, {}), method.split()[0]
    settings = {"epochs": 3, "batch_size": 4, "device": "cpu", "checkpoint_minutes": EVERY_STEP, **settings}
    return lg.fit(data, name, options, out=out, resume=resume, quiet=True, **settings)


def break_off(steps: int, data: Dataset, out: Path, method: str = "an", **settings: Any) -> None:
    """Train, and end in the step after so many as a kill does."""
    with patch.object(Reporter, "move_to", side_effect=[*[None] * steps, Killed]), pytest.raises(Killed):
        fit(data, out, method, **settings)


@pytest.fixture(scope="module")
def whole(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(data, tmp_path_factory.mktemp("runs") / "whole").path


def position(folder: Path) -> tuple[int, int]:
    """The complete epochs and the batches of the next one, after which a run resumes."""
    state = torch.load(folder / LAST, weights_only=True)["state"]
    return state["epoch"], state["partial"]["batches"]


def assert_same(one: Path, other: Path) -> None:
    mine, theirs = (torch.load(folder / LAST, weights_only=True) for folder in (one, other))
    for part in ("network", "loss_fn"):
        torch.testing.assert_close(dict(mine[part]), dict(theirs[part]), rtol=0, atol=0, equal_nan=True)
    for name in (BEST, "predictions.parquet", "traces.npz"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    runs = lg.open_run(one), lg.open_run(other)
    assert runs[0].revisions == runs[1].revisions
    assert runs[0].metrics.get("test") == runs[1].metrics.get("test")
    untimed = [[{**record, "seconds": 0} for record in run.history] for run in runs]
    assert untimed[0] == untimed[1]


@pytest.mark.parametrize(("method", "head"), [*((method, "linear") for method in OPTIONS), ("imcl", "boostlu")])
def test_what_a_method_remembers_survives_a_kill(method: str, head: str, data: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 2, "head": head}
    whole = fit(data, tmp_path / "whole", method, checkpoint_minutes=0, **settings)
    assert bool(len(whole.revisions)) == (method in ("ll-cp", "em-apl"))
    break_off(STEPS + 1, data, tmp_path / "broken", method, **settings)
    assert position(tmp_path / "broken") == (1, 1)
    fit(data, tmp_path / "broken", method, resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize(("method", "epoch", "steps"), [("ll-cp", 1, 1), ("role", 2, 2 * STEPS + 1)])
def test_a_restart_after_a_divergence_survives_a_kill_before_or_after_it(
    method: str, epoch: int, steps: int, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(state: TrainingState, trained: int, *_: object) -> str | None:
        return "fell" if trained == epoch and not state.divergences else None

    monkeypatch.setattr(network_trainer, "describe_divergence", diverge)
    whole = fit(data, tmp_path / "whole", method)
    assert [record.get("lr_factor") for record in whole.history] == [None if epoch == 2 else 0.5] * 2 + [0.5]
    break_off(steps, data, tmp_path / "broken", method)
    fit(data, tmp_path / "broken", method, resume=True)
    assert_same(tmp_path / "broken", tmp_path / "whole")


def test_a_killed_process_resumes_without_reading_the_images_that_are_done(tmp_path: Path) -> None:
    write_sample(tmp_path / "photos", tmp_path / "shards")
    settings: dict[str, Any] = {"backbone": "small-cnn", "protocol": "end-to-end", "transform": "crop", "ema": 0.9}
    settings |= {"batch_size": 2, "accumulate": 2, "schedule": "cosine", "epochs": 2}

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
    assert len(set(read)) == len(read) == 6, "three of five batches"
    fit(data, tmp_path / "whole", workers=0, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


def test_a_ctrl_c_completes_its_step(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"accumulate": 2, "protocol": "linear-init", "checkpoint_minutes": 0}
    settings |= {"linear_epochs": 2, "epochs": 2}
    fit(data, tmp_path / "whole", **settings)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    for method, batches in (("_backward", 2), ("_score_val", 3)):  # in the first batch of a step; after the last step
        original = getattr(NetworkTrainer, method)

        def interrupted(*arguments: Any, original: Any = original) -> Any:
            setattr(NetworkTrainer, original.__name__, original)
            os.kill(os.getpid(), signal.SIGINT)
            return original(*arguments)

        with monkeypatch.context() as context:
            context.setattr(NetworkTrainer, method, interrupted)
            run = fit(data, tmp_path / "broken", resume=batches == 3, **settings)
        assert position(tmp_path / "broken") == (0, batches) and not run.finished
    signal.signal(signal.SIGINT, before)
    fit(data, tmp_path / "broken", resume=True, **settings)
    assert_same(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_ctrl_c_that_a_program_ignores_does_not_end_an_epoch_early(
    handler: Any, data: Dataset, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = NetworkTrainer._backward, iter(range(STEPS))

    def interrupted(*arguments: Any) -> Any:
        if next(left, None) is not None:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    before = signal.signal(signal.SIGINT, handler)
    monkeypatch.setattr(NetworkTrainer, "_backward", interrupted)
    histories = list[int]()
    fit(data, tmp_path / "run", on_epoch=lambda history: histories.append(history[-1]["epoch"]))
    assert signal.signal(signal.SIGINT, before) is handler and histories == [1, 2, 3]
    assert_same(tmp_path / "run", whole)


def test_a_ctrl_c_while_an_epoch_is_written_waits_until_it_is(data: Dataset, whole: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

    def interrupted(*arguments: Any, **named: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        save_checkpoint(*arguments, **named)

    with patch.object(trainer, "save_checkpoint", interrupted):
        stopped = fit(data, tmp_path / "broken")
    assert stopped.metrics["interrupted"] and stopped.metrics["epochs"] == stopped.metrics["best_epoch"] == 1
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    fit(data, tmp_path / "broken", resume=True)
    assert_same(tmp_path / "broken", whole)


def test_a_kill_between_checkpoint_and_best_weights_loses_neither(data: Dataset, whole: Path, tmp_path: Path) -> None:
    with patch.object(Trainer, "save_best", side_effect=Killed), pytest.raises(Killed):
        fit(data, tmp_path / "broken")
    assert not (tmp_path / "broken" / BEST).exists()
    fit(data, tmp_path / "broken", resume=True)
    assert_same(tmp_path / "broken", whole)


def test_a_ctrl_c_after_going_back_an_epoch_keeps_no_lost_weights(data: Dataset, tmp_path: Path) -> None:
    def scores(*values: float) -> Any:
        return patch.object(Selection, "score", side_effect=[EpochScore(value, 1) for value in values])

    settings: dict[str, Any] = {"epochs": 4, "checkpoint_minutes": 0}
    with scores(0.5, 0.4):
        two = fit(data, tmp_path / "two", epochs=2)
    with scores(0.5, 0.4, 0.9):
        break_off(3 * STEPS + 1, data, tmp_path / "broken", **settings)
    best = (tmp_path / "broken" / BEST).read_bytes()
    os.truncate(tmp_path / "broken" / LAST, 1000)
    with patch.object(Reporter, "move_to", side_effect=[None, KeyboardInterrupt]):
        stopped = fit(data, tmp_path / "broken", resume=True, **settings)
    assert (stopped.metrics["epochs"], stopped.metrics["best_epoch"]) == (2, 1)
    assert [line["epoch"] for line in stopped.history] == [1, 2] and len(stopped.trace["loss"]) == 2
    for name in (BEST, "predictions.parquet"):
        assert (stopped.path / name).read_bytes() == (two.path / name).read_bytes()
    with scores(0.9, 0.3):
        finished = fit(data, tmp_path / "broken", resume=True, **settings)
    assert finished.metrics["best_epoch"] == 3
    assert (finished.path / BEST).read_bytes() == best != (two.path / BEST).read_bytes()


def test_a_disk_that_is_full_in_the_middle_loses_nothing(data: Dataset, whole: Path, tmp_path: Path) -> None:
    out, before, left = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE), iter(range(STEPS + 1))

    def move_to(*_: object, **__: object) -> None:
        if next(left, None) is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))

    try:
        with patch.object(Reporter, "move_to", move_to), pytest.raises(lg.RunError) as caught:
            fit(data, out, checkpoint_minutes=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(out) in str(caught.value) and "--resume" in str(caught.value)
    assert not [path.name for path in out.rglob("*") if ".partial" in path.name] and completed_epochs(out) == 1
    fit(data, out, resume=True)
    assert_same(out, whole)


CPU = torch.device("cpu")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


class Counter:
    """The least that has a state."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, int], /) -> None:
        self.count = state_dict["count"]


def after(epoch: int, best_epoch: int | None = None) -> TrainingState:
    """The state after an epoch; the best one is the last unless given."""
    history: list[dict[str, Any]] = [{"epoch": each, "loss": 0.5, "seconds": 1.0} for each in range(1, epoch + 1)]
    return TrainingState(epoch=epoch, history=history, best_epoch=best_epoch or epoch, best_score=0.5)


def parts(value: float = 0.0, width: int = 3) -> dict[str, Any]:
    network = nn.Linear(width, 2)
    nn.init.constant_(network.weight, value)
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return {"network": network, "optimizer": optimizer, "average": Counter(int(value))}


def two_epochs(folder: Path) -> None:
    for epoch in (1, 2):
        save_checkpoint(folder, after(epoch), parts(epoch), CPU, fingerprint="this")


@pytest.mark.parametrize("kind", ["cpu", pytest.param(f"cuda:{max(torch.cuda.device_count() - 1, 0)}", marks=GPU)])
def test_random_numbers_continue_as_they_would_have(tmp_path: Path, kind: str) -> None:
    device = torch.device(kind)

    def draw() -> list[Any]:
        numbers = [torch.rand(3).tolist(), torch.rand(3, device=device).tolist()]
        return [*numbers, np.random.standard_normal(3).tolist(), [random.gauss(0, 1) for _ in range(3)]]

    np.random.standard_normal(), random.gauss(0, 1), torch.rand(5, device=device)
    save_checkpoint(tmp_path, after(1), parts(), device)
    expected = draw()
    random.seed(2), np.random.seed(2), torch.manual_seed(2)
    load_checkpoint(tmp_path, parts(), device)
    assert draw() == expected


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_is_never_another_error(tmp_path: Path) -> None:
    two_epochs(tmp_path)
    whole, before = (tmp_path / LAST).read_bytes(), (tmp_path / PREVIOUS).read_bytes()
    damaged = [whole[: int(share * len(whole))] for share in (0.0, 0.001, 0.5, 0.999)]
    for state in (Calls(os.mkdir, (str(tmp_path / "made"),)), {"epoch": 1}):
        torch.save({"format": FORMAT, "state": state}, tmp_path / LAST)
        damaged.append((tmp_path / LAST).read_bytes())
    for number, content in enumerate([*damaged, *mutations(whole, 30)]):
        (tmp_path / LAST).write_bytes(content)
        (tmp_path / PREVIOUS).write_bytes(before)
        said, found = list[str](), parts()
        epoch = load_checkpoint(tmp_path, found, CPU, fingerprint="this", log=said.append).epoch
        assert epoch == found["average"].count in ((1,) if number < len(damaged) else (1, 2))
        assert len(said) == 2 - epoch and all(LAST in each for each in said)
    assert not (tmp_path / "made").exists()


def test_the_whole_one_is_not_pushed_out_by_a_damaged_one_or_lost_between_two_renames(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, parts(), CPU) == TrainingState() and completed_epochs(tmp_path) == 0
    two_epochs(tmp_path)
    (tmp_path / LAST).write_bytes(b"not a checkpoint")
    (tmp_path / ".last-0123456789abcdef.partial.pt").write_bytes(b"of a killed writer")
    state = load_checkpoint(tmp_path, parts(), CPU)
    save_checkpoint(tmp_path, after(state.epoch + 1), parts(2.0), CPU)
    assert sorted(path.name for path in tmp_path.iterdir()) == [PREVIOUS, LAST]
    (tmp_path / LAST).write_bytes(b"nor this")
    assert load_checkpoint(tmp_path, parts(), CPU).epoch == 1
    two_epochs(tmp_path)
    (tmp_path / LAST).replace(tmp_path / PREVIOUS)
    said: list[str] = []
    assert load_checkpoint(tmp_path, parts(), CPU, log=said.append).epoch == 2 and not said


def test_where_both_are_damaged_the_way_out_is_named_and_nothing_is_removed(tmp_path: Path) -> None:
    two_epochs(tmp_path)
    save_weights(tmp_path, parts()["network"], 1)
    for name in (LAST, PREVIOUS):
        os.truncate(tmp_path / name, 100)
    with pytest.raises(RunError, match=r"last\.pt .*previous.*best\.safetensors"):
        load_checkpoint(tmp_path, parts(), CPU)
    assert (tmp_path / LAST).exists() and (tmp_path / PREVIOUS).exists()


def test_a_checkpoint_of_another_configuration_or_version_is_refused(tmp_path: Path) -> None:
    two_epochs(tmp_path)
    others: list[tuple[Any, str, str]] = [
        (parts(), "other", "configuration"),
        (parts(width=4), "this", "fit"),
        ({**parts(), "schedule": Counter()}, "this", "'schedule'"),
    ]
    for own, fingerprint, named in others:
        with pytest.raises(RunError, match=named):
            load_checkpoint(tmp_path, own, CPU, fingerprint=fingerprint)
    for found, shown in ((99, "99"), ("\x1b[2J", r"'\\x1b\[2J'")):
        torch.save({"format": found, "fingerprint": "", "state": {}}, tmp_path / LAST)
        with pytest.raises(RunError, match=f"format {shown}"):
            load_checkpoint(tmp_path, parts(), CPU)


def test_an_epoch_is_repeated_where_the_best_weights_are_damaged(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, after(2), parts(2.0), CPU)
    save_weights(tmp_path, parts(2.0)["network"], 2)
    save_checkpoint(tmp_path, after(3, best_epoch=2), parts(3.0), CPU)
    assert load_checkpoint(tmp_path, parts(), CPU).epoch == 3
    content = bytearray((tmp_path / BEST).read_bytes())
    content[-1] ^= 1
    (tmp_path / BEST).write_bytes(content)
    said: list[str] = []
    assert load_checkpoint(tmp_path, parts(), CPU, log=said.append).epoch == 2 and "best.safetensors" in said[0]
    save_checkpoint(tmp_path, after(4, best_epoch=3), parts(4.0), CPU)
    with pytest.raises(RunError, match=r"best\.safetensors"):
        (tmp_path / PREVIOUS).unlink()
        load_checkpoint(tmp_path, parts(), CPU)
