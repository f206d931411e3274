"""The head "attention" and several image sizes, from training to the exported network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.inference.export import export_onnx
from labelgap.training.plan import TrainingRequest, plan_training

QUICK: dict[str, Any] = {"device": "cpu", "quiet": True, "trace": "off", "batch_size": 8, "size": 32}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return lg.load("digits", train=24, val=12, test=12)


@pytest.fixture(scope="module")
def run(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> lg.Run:
    settings: dict[str, Any] = {"head": "attention", "average_sizes": "32,48", "average_flips": True, "epochs": 2}
    out = tmp_path_factory.mktemp("attention") / "a"
    return lg.fit(digits, "an", protocol="linear-init", linear_epochs=2, out=out, **settings, **QUICK)


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


def test_epochs_are_compared_at_one_size(run: lg.Run, digits: Dataset) -> None:
    best = max(run.history, key=lambda record: record["score"])
    assert best["epoch"] == run.metrics["best_epoch"]
    assert best["score"] == pytest.approx(run.metrics["val"]["map_one_size"])


def test_the_exported_network_averages_too(run: lg.Run, digits: Dataset, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    export_onnx(run, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).integers(0, 256, (2, 1, 32, 32), dtype=np.uint8)
    scores = session.run(["scores"], {"images": pixels})[0]
    np.testing.assert_allclose(scores, run.predict([np.squeeze(each) for each in pixels], device="cpu"), atol=1e-4)


def test_a_resumed_run_has_the_same_numbers(run: lg.Run, digits: Dataset, tmp_path: Path) -> None:
    settings = {"head": "attention", "average_sizes": [32, 48], "average_flips": True, "linear_epochs": 2, **QUICK}

    def stop(history: Sequence[Mapping[str, Any]]) -> None:
        if history[-1]["epoch"] == 1:
            raise KeyboardInterrupt

    given: dict[str, Any] = {"protocol": "linear-init", "out": tmp_path / "a", "epochs": 2, **settings}
    lg.fit(digits, "an", on_epoch=stop, **given)
    resumed = lg.fit(digits, "an", resume=True, **given)
    assert resumed.metrics["test"] == run.metrics["test"]


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
