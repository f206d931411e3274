"""Checkpoints: two generations, every byte checked, and only for the run that wrote them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.mutations import mutations
from torch import nn

from labelgap.core.errors import RunError
from labelgap.core.tensors import read_tensor_metadata
from labelgap.training.checkpoint import (
    BEST,
    FORMAT,
    LAST,
    PREVIOUS,
    PREVIOUS_BEST,
    Stateful,
    TrainingState,
    completed_epochs,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
)

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


def test_everything_comes_back_by_its_name(tmp_path: Path) -> None:
    written, found = parts(2.0), parts()
    history = [{"epoch": 1, "loss": float("nan"), "seconds": 1.0, "score": None}]
    save_checkpoint(tmp_path, TrainingState(epoch=1, history=history, best_epoch=1), written, CPU, fingerprint="this")
    state = load_checkpoint(tmp_path, found, CPU, fingerprint="this")
    assert (state.epoch, state.best_epoch, state.best_score) == (1, 1, None) and len(state.history) == 1
    assert torch.equal(found["network"].weight, written["network"].weight)
    mine, theirs = (each["optimizer"].state_dict()["state"][0] for each in (found, written))
    assert torch.equal(mine["exp_avg"], theirs["exp_avg"]) and mine["step"] == theirs["step"]
    assert found["average"].count == 2 and isinstance(found["average"], Stateful)


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


class Evil:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder / "made"),)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_is_never_another_error(tmp_path: Path) -> None:
    two_epochs(tmp_path)
    whole, before = (tmp_path / LAST).read_bytes(), (tmp_path / PREVIOUS).read_bytes()
    damaged = [whole[: int(share * len(whole))] for share in (0.0, 0.001, 0.5, 0.999)]
    for state in (Evil(tmp_path), {"epoch": 1}):
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


def noted(path: Path) -> str:
    return read_tensor_metadata(path)["epoch"]


def test_the_best_weights_of_an_epoch_that_is_undone_give_way_to_those_before(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, after(3, 1), parts(3.0), CPU)
    save_weights(tmp_path, parts(1.0)["network"], 1)
    save_checkpoint(tmp_path, after(4, 4), parts(4.0), CPU)
    save_weights(tmp_path, parts(4.0)["network"], 4)
    assert (noted(tmp_path / BEST), noted(tmp_path / PREVIOUS_BEST)) == ("4", "1")
    assert load_checkpoint(tmp_path, parts(), CPU).best_epoch == 4 and noted(tmp_path / BEST) == "4"
    os.truncate(tmp_path / LAST, 50)
    assert load_checkpoint(tmp_path, parts(), CPU).best_epoch == 1 and noted(tmp_path / BEST) == "1"
    found = parts()["network"]
    load_weights(tmp_path, found)
    assert torch.equal(found.weight, parts(1.0)["network"].weight)


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
