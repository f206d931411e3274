"""``fit`` with a loss object and a module: recorded by class, resumed, reopened, audited; and what is said if not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import softplus

import labelgap as lg
from labelgap.core import trust
from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Dataset
from labelgap.losses import ElementwiseLoss, LargeLossRejection
from labelgap.models import InputSpec
from labelgap.training.plan import TrainingRequest, plan_training
from labelgap.training.rerun import train_command, train_script

QUICK: dict[str, Any] = {"device": "cpu", "quiet": True, "trace": "off", "batch_size": 16, "epochs": 2}


class Weighted(ElementwiseLoss):
    """Unknown labels count as absent, with a weight."""

    def __init__(self, weight: float = 0.5, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = weight

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (labels == 1) * softplus(-logits) + self.weight * (labels != 1) * softplus(logits)


class Tiny(nn.Module):
    """A convolution for the digits."""

    input_spec = InputSpec(size=32, mean=(0.5,), std=(0.25,), channels=1)

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, width, 5, 4), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps


class NeedsArguments(Tiny):
    """A module whose class alone does not make it."""

    def __init__(self, width: int) -> None:
        super().__init__(width)


def test_objects_train_like_their_class_and_are_not_changed(digits: Dataset, tmp_path: Path) -> None:
    loss_fn, network = Weighted(weight=0.25), Tiny()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    adam: dict[str, Any] = {"optimizer": "adam", "lr": 1e-2, "protocol": "end-to-end", **QUICK}
    run = lg.fit(digits, loss_fn, backbone=network, out=tmp_path / "a", **adam)
    assert run.config.method == f"{__name__}:Weighted" and run.config.options == {"weight": 0.25, "reduction": "mean"}
    assert run.config.backbone == f"{__name__}:Tiny" and train_command(run.config) is None
    assert train_script(run.config).startswith(f"import {__name__}\nimport labelgap as lg\n")
    assert (run.config.transform, run.config.average_flips) == ("resize", False), "digits may not be mirrored"
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert run.history[1]["loss"] < run.history[0]["loss"]
    registered = plan_training(digits, TrainingRequest(method=LargeLossRejection(5))).config
    assert registered.method == "ll-r" and registered.options["delta_rel"] == 5
    again = lg.fit(digits, run.config.method, {"weight": 0.25}, network, out=tmp_path / "b", **adam)
    assert [each["loss"] for each in again.history] == [each["loss"] for each in run.history]


def test_a_run_of_objects_resumes_to_itself(digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Tiny()
    settings: dict[str, Any] = {"protocol": "end-to-end", **QUICK}
    whole = lg.fit(digits, Weighted(), backbone=network, out=tmp_path / "whole", **settings)
    from labelgap.training.loop.network_trainer import NetworkTrainer

    train_epoch = NetworkTrainer.train_epoch

    def stopped(self: NetworkTrainer, state: Any, epoch: int) -> None:
        if epoch == 2:
            raise RuntimeError("killed")
        train_epoch(self, state, epoch)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(NetworkTrainer, "train_epoch", stopped)
        lg.fit(digits, Weighted(), backbone=network, out=tmp_path / "broken", **settings)
    other = Tiny()  # whatever its weights are, the run has those that it was started with
    resumed = lg.fit(digits, Weighted(), backbone=other, out=tmp_path / "broken", resume=True, **settings)
    mine, theirs = (load_file(run.path / "best.safetensors") for run in (resumed, whole))
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    with pytest.raises(RunError, match="another options"):
        lg.fit(digits, Weighted(0.1), backbone=network, out=tmp_path / "whole", resume=True, **settings)


def test_a_run_of_objects_is_reopened_with_the_same_scores_and_audited_where_their_classes_are_loaded(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert digits.test is not None
    scores = lg.fit(digits, Weighted(), backbone=Tiny(), protocol="linear", out=tmp_path / "a", **QUICK).predict(
        digits.test, device="cpu"
    )
    run = lg.open_run((tmp_path / "a").rename(tmp_path / "moved"))
    assert np.array_equal(run.predict(digits.test, device="cpu"), scores)
    assert len(lg.find_missing(run, folds=2, data=digits, device="cpu", quiet=True))
    monkeypatch.setattr(trust, "_GIVEN", {})  # as in another user's process, which has neither made nor imported them
    monkeypatch.setattr(trust, "_used_file", lambda: tmp_path / "used_classes.txt")
    monkeypatch.delitem(sys.modules, __name__)
    run = lg.open_run(run.path)
    assert run.metrics["epochs"] == 2, "what needs no code is there"
    with pytest.raises(RunError, match=rf"{__name__}:Tiny .*import {__name__}"):
        run.predict(digits.test, device="cpu")
    with pytest.raises(RunError, match=rf"{__name__}:(Weighted|Tiny)"):
        lg.find_missing(run, folds=2, data=digits, device="cpu", quiet=True)


def test_a_module_whose_class_needs_arguments_is_passed_again(digits: Dataset, tmp_path: Path) -> None:
    assert digits.test is not None
    network = NeedsArguments(4)
    run = lg.fit(digits, "an", backbone=network, protocol="linear", out=tmp_path / "a", **QUICK)
    scores = run.predict(digits.test, device="cpu")
    with pytest.raises(RunError, match="backbone=network"):
        lg.open_run(run.path).predict(digits.test, device="cpu")
    reopened = lg.open_run(run.path, backbone=NeedsArguments(4))
    assert np.array_equal(reopened.predict(digits.test, device="cpu"), scores)
    with pytest.raises(RunError, match="NeedsArguments"):
        lg.open_run(run.path, backbone=Tiny()).predict(digits.test, device="cpu")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"method": Weighted(), "options": {"weight": 1}}, "options"),
        ({"method": "an", "backbone": Tiny(), "weights": "none"}, "weights"),
        ({"method": "an", "backbone": nn.Linear(3, 3)}, "backbone"),
    ],
)
def test_what_does_not_fit_is_refused(digits: Dataset, tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        lg.fit(digits, out=tmp_path / "a", quiet=True, **settings)
    assert not list(tmp_path.iterdir())
