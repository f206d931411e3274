"""The protocols, heads and their settings in real, small trainings, and what they leave of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.models import create_backbone
from labelgap.training import features
from labelgap.training.checkpoint import TrainingState
from labelgap.training.features import extract_features
from labelgap.training.loop.linear_trainer import LinearTrainer
from labelgap.training.loop.network_trainer import NetworkTrainer
from labelgap.training.plan import TrainingRequest, plan_training
from labelgap.training.run_files import HANDOFF_FILE
from labelgap.training.selection import EpochScore, Selection

QUICK: dict[str, Any] = {"device": "cpu", "quiet": True, "trace": "off", "batch_size": 8}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return lg.load("digits", train=32, val=16, test=12)


def weights(run: lg.Run) -> dict[str, torch.Tensor]:
    return load_file(run.path / "best.safetensors")


def test_linear_init_starts_the_network_with_the_head_of_the_linear_phase(tmp_path: Path, digits: Dataset) -> None:
    still: dict[str, Any] = {"lr": 1e-12, "backbone_lr": 1e-12, "epochs": 1, "average_flips": True}
    with patch.object(features, "extract_features", wraps=extract_features) as extract:
        run = lg.fit(digits, "an", protocol="linear-init", out=tmp_path / "a", linear_epochs=3, **still, **QUICK)
    assert extract.call_args.kwargs["average_flips"] is False, "the setting is the network's: features take no longer"
    first = load_file(run.path / "linear" / "best.safetensors")
    assert torch.allclose(first["head.weight"], weights(run)["head.weight"], atol=1e-9)
    assert run.config.linear_epochs == 3
    assert [record["epoch"] for record in run.history] == [0, 1] and run.finished


@pytest.mark.parametrize("flips", [False, True])
def test_a_head_on_a_random_backbone_predicts_as_it_was_measured(flips: bool, tmp_path: Path, digits: Dataset) -> None:
    settings = {"backbone": "small-cnn", "protocol": "linear", "epochs": 3, **QUICK}
    run = lg.fit(digits, "an", out=tmp_path / "a", average_flips=flips, **settings)
    torch.manual_seed(99)
    measured = run.metrics["test"]["map"]
    assert run.evaluate(digits, device="cpu", resamples=0)["map"] == pytest.approx(measured), "from the cache"
    assert digits.test is not None
    opened = lg.open_run(run.path)
    assert opened.model.average_flips is flips
    assert lg.average_precision(opened.predict(digits.test, device="cpu"), digits.test.labels.to_dense()) == (
        pytest.approx(measured)
    )
    if flips:
        plain = lg.fit(digits, "an", out=tmp_path / "b", **settings)
        assert not torch.allclose(weights(run)["head.weight"], weights(plain)["head.weight"], atol=1e-6)


def test_a_head_on_weights_of_a_file_does_not_need_the_file_again(tmp_path: Path, digits: Dataset) -> None:
    file = tmp_path / "backbone.safetensors"
    save_file({name: value.clone() for name, value in create_backbone("small-cnn").state_dict().items()}, file)
    run = lg.fit(digits, "an", protocol="linear", weights=file, out=tmp_path / "a", epochs=1, **QUICK)
    file.unlink()
    again = lg.open_run(run.path).evaluate(digits, "test", device="cpu", resamples=0)
    assert again["map"] == pytest.approx(run.metrics["test"]["map"], abs=1e-6)


def test_role_hands_over_the_estimate_of_the_epoch_kept(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three epochs is the best: its head used to come with the estimate of the third."""
    scores = iter([0.9, 0.5, 0.4, 0.3, 0.3])
    monkeypatch.setattr(Selection, "score", lambda self, logits: EpochScore(next(scores), 10))
    still: dict[str, Any] = {"lr": 1e-12, "backbone_lr": 1e-12, "epochs": 1}
    options = {"expected_positives": 2.0}
    quick = {**QUICK, "linear_epochs": 3, **still}
    handed: list[dict[str, torch.Tensor]] = []
    handoff_state = LinearTrainer.handoff_state

    def record(self: LinearTrainer, best_epoch: int) -> dict[str, torch.Tensor]:
        handed.append(handoff_state(self, best_epoch))
        return handed[-1]

    monkeypatch.setattr(LinearTrainer, "handoff_state", record)
    run = lg.fit(digits, "role", options, protocol="linear-init", out=tmp_path / "a", **quick)
    assert not (run.path / "linear" / HANDOFF_FILE).exists(), "a finished run does not need it"
    (kept,) = [state["label_probabilities"] for state in handed]
    last = torch.load(run.path / "linear" / "last.pt", weights_only=True)["engine"]["losses"][0]["phi"]
    used = torch.load(run.path / "last.pt", weights_only=True)["loss_fn"]["phi"]
    assert not torch.allclose(kept, torch.sigmoid(last), atol=1e-4)
    assert torch.allclose(kept, torch.sigmoid(used), atol=1e-5)


@pytest.mark.parametrize(("last", "rates"), [(1, {}), (2, {"lr": 1e30, "backbone_lr": 1e30})])
def test_a_run_killed_after_its_linear_phase_ends_as_an_unbroken_one(
    tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch, last: int, rates: dict[str, float]
) -> None:
    """Before the first epoch of the network, and after one that diverged: the linear head is the best epoch."""
    settings: dict[str, Any] = {"protocol": "linear-init", "linear_epochs": 2, "epochs": 2, **rates, **QUICK}
    whole = lg.fit(digits, "em", out=tmp_path / "whole", **settings)
    train_epoch = NetworkTrainer.train_epoch

    def killed(self: NetworkTrainer, state: TrainingState, epoch: int) -> None:
        if epoch == last:
            raise RuntimeError("killed")
        train_epoch(self, state, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(NetworkTrainer, "train_epoch", killed)
        with pytest.raises(RuntimeError, match="killed"):
            lg.fit(digits, "em", out=tmp_path / "broken", **settings)
    resumed = lg.fit(digits, "em", out=tmp_path / "broken", resume=True, **settings)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name])
    assert [{**r, "seconds": 0} for r in resumed.history] == [{**r, "seconds": 0} for r in whole.history]
    assert bool(rates) == (whole.metrics["divergences"] == 2)


def test_accumulated_batches_make_the_step_of_one_large_batch(tmp_path: Path, digits: Dataset) -> None:
    """The backbone stands still, so that batch norm is not in the way, and SGD shows every gradient."""
    settings: dict[str, Any] = {"epochs": 1, "optimizer": "sgd", "momentum": 0.0, "lr": 0.05, "backbone_lr": 1e-12}
    settings = {**QUICK, **settings, "select": "last", "protocol": "end-to-end"}
    whole, parts = (
        lg.fit(digits, "an", out=tmp_path / str(count), **{**settings, "batch_size": 32 // count, "accumulate": count})
        for count in (1, 4)
    )
    found, expected = (weights(run)["head.bias"] for run in (parts, whole))
    assert float((expected - found).abs().max()) < 0.05 * float(expected.abs().max())


def test_a_method_that_looks_across_the_batch_refuses_parts_of_it(tmp_path: Path, digits: Dataset) -> None:
    with pytest.raises(InputError, match="allow-micro-batch"):
        lg.fit(digits, "ll-r", out=tmp_path / "a", epochs=1, accumulate=2, **QUICK)
    run = lg.fit(digits, "ll-r", out=tmp_path / "b", epochs=1, accumulate=2, allow_micro_batch=True, **QUICK)
    assert run.finished and run.config.accumulate == 2


def test_bf16_gives_nearly_the_same_training(tmp_path: Path) -> None:
    digits = lg.load("digits", train=4, val=2, test=4)  # convolutions in bf16 are very slow on some CPUs
    settings: dict[str, Any] = {"epochs": 1, "select": "last", **QUICK}
    exact, rough = (
        lg.fit(digits, "an", out=tmp_path / precision, precision=precision, **settings)
        for precision in ("float32", "bf16")
    )
    assert rough.config.precision == "bf16"
    assert rough.history[0]["loss"] == pytest.approx(exact.history[0]["loss"], rel=0.02)
    scores = rough.predict(digits.test.images, device="cpu")  # type: ignore[union-attr]
    assert len(np.unique(scores)) > 0.9 * scores.size, "logits are not rounded to bf16, which would tie ranks"


SMALL: dict[str, Any] = {**QUICK, "size": 32}


@pytest.fixture(scope="module")
def run(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> lg.Run:
    settings: dict[str, Any] = {"head": "attention", "average_sizes": "32,48", "average_flips": True, "epochs": 2}
    out = tmp_path_factory.mktemp("attention") / "a"
    return lg.fit(digits, "an", protocol="linear-init", linear_epochs=2, out=out, **settings, **SMALL)


def test_a_run_is_measured_at_all_its_sizes_and_at_one(run: lg.Run, digits: Dataset) -> None:
    measured = run.metrics["test"]
    again = lg.open_run(run.path)
    assert (again.config.head, again.config.average_sizes) == ("attention", [32, 48])
    how: dict[str, Any] = {"device": "cpu", "resamples": 0}
    several, one = again.evaluate(digits, **how), again.evaluate(digits, average_sizes=[], **how)
    assert [several["map"], one["map"]] == pytest.approx([measured["map"], measured["map_one_size"]])
    assert (several["average_sizes"], one["average_sizes"]) == ([32, 48], [])
    assert digits.test is not None
    mean = [again.logits(digits.test.images, device="cpu", average_sizes=[size]) for size in (32, 48)]
    logits = again.logits(digits.test.images, device="cpu")
    np.testing.assert_allclose(logits, np.mean(mean, axis=0), atol=1e-5)
    assert again.model.average_sizes == (32, 48)


@pytest.mark.parametrize(
    ("request_", "head", "epochs"),
    [
        ({"backbone": "efficientnet-lite0", "protocol": "linear-init"}, "attention", 12),
        ({"backbone": "efficientnet-lite0", "protocol": "linear-init", "head": "linear"}, "linear", 20),
        ({"backbone": "small-cnn", "protocol": "end-to-end"}, "linear", 10),
        ({"protocol": "linear", "preset": "cole2021"}, "linear", 25),
        ({"backbone": "efficientnet-lite0", "preset": "kim2022"}, "linear", 10),
    ],
)
def test_what_is_the_default(digits: Dataset, request_: dict[str, Any], head: str, epochs: int) -> None:
    plan = plan_training(digits, TrainingRequest(method="an", **request_))
    assert (plan.config.head, plan.config.epochs) == (head, epochs)
    if head == "attention":  # a run that was started by an earlier version goes on with its own head
        stored = plan.config.model_copy(update={"head": "linear"})
        assert plan_training(digits, TrainingRequest(method="an", **request_), stored=stored).config.head == "linear"


@pytest.mark.parametrize(
    "given",
    [
        {"head": "attention", "protocol": "linear"},
        {"protocol": "linear", "training": {"average_sizes": [32]}},
        {"protocol": "end-to-end", "training": {"attention_weight": 0.1}},
        {"protocol": "end-to-end", "training": {"average_sizes": "32,many"}},
        {"protocol": "end-to-end", "training": {"average_sizes": [8]}},
    ],
)
def test_what_does_not_fit_together_is_refused(digits: Dataset, given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        plan_training(digits, replace(TrainingRequest(method="an", backbone="small-cnn"), **given))
