"""Passes replayed from a CUDA graph train as eager ones do.

On a machine with a GPU and without hypothesis: ``pytest --noconftest tests/training/loop/test_graphed_step.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import labelgap as lg
import labelgap.training.cuda_graphs as cuda_graphs
from labelgap.losses import ElementwiseLoss, Loss
from labelgap.models import InputSpec, as_backbone
from labelgap.training.checkpoint import TrainingState
from labelgap.training.cuda_graphs import WARMUP_STEPS, GraphedStep, StepResult, host_state, why_not_captured
from labelgap.training.loop.divergence import NanGuard
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.loop.network_trainer import NetworkTrainer
from labelgap.training.loop.trainer import TrainingContext
from labelgap.training.network import build_classifier
from labelgap.training.plan import TrainingRequest, plan_training
from labelgap.training.progress import Reporter

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")
BATCH = 4


class Replayed:
    """Stands for a CUDA graph on a CPU: a replay computes anew, and fills the same tensors."""

    def __init__(self, work: Callable[[], StepResult], network: nn.Module) -> None:
        self.work, self.network, self.replays = work, network, 0
        self.result = work()
        self.gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]

    def replay(self) -> None:
        self.replays += 1
        self.network.zero_grad(set_to_none=True)
        for place, found in zip(self.result, self.work(), strict=True):
            place.copy_(found)
        for place, parameter in zip(self.gradients, self.network.parameters(), strict=True):
            place.copy_(parameter.grad)  # type: ignore[arg-type]


Capture = Callable[[nn.Module, Callable[[], StepResult]], tuple[Any, StepResult]]


def train_by_steps(capture: Capture | None) -> tuple[Tensor, list[float], GraphedStep]:
    """Train a linear layer on batches of which the third is smaller."""
    torch.manual_seed(0)
    network, log = nn.Linear(3, 2), list[str]()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    disabled = None if capture is not None else "eager"
    step = GraphedStep([network], torch.device("cpu"), batch_size=BATCH, disabled=disabled, log=log.append)
    step.warmup_steps = WARMUP_STEPS

    def compute(inputs: Tensor, labels: Tensor, index: Tensor) -> StepResult:
        logits = network(inputs)
        loss = nn.functional.mse_loss(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), logits.detach()

    losses = []
    with patch.object(cuda_graphs, "capture_graph", lambda work, _: capture and capture(network, work)):
        for number in range(6):
            size = BATCH - (number == 2)
            loss, logits = step(compute, torch.randn(size, 3), torch.randn(size, 2), torch.arange(size))
            assert logits.shape == (size, 2)
            losses.append(float(loss))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    assert len(log) == (step.disabled not in (None, "eager"))
    return network.weight.detach(), losses, step


def test_full_batches_are_replayed_and_where_a_capture_fails_training_continues() -> None:
    def capture(network: nn.Module, work: Callable[[], StepResult]) -> tuple[Replayed, StepResult]:
        graph = Replayed(work, network)
        return graph, graph.result

    def fail(_: nn.Module, work: Callable[[], StepResult]) -> tuple[None, StepResult]:
        work()
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    expected, losses, _ = train_by_steps(None)
    for way in (capture, fail):
        weight, found, step = train_by_steps(way)
        assert torch.equal(weight, expected) and found == losses
        if way is capture:
            assert isinstance(step.graph, Replayed) and step.graph.replays == 5
            step.end_epoch()
        assert step.graph is None, "what a loss reads may change between epochs"
        assert step.disabled == (None if way is capture else "operation not permitted when stream is capturing")


class Counts(nn.Linear):
    """Does something else in every call, by a number that a replay would not change."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(inputs) * self.calls


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), None),
        (nn.Sequential(Counts(3, 2)), "a step changes"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout()), "a step changes"),  # on a CPU it draws from the host's numbers
    ],
)
def test_a_step_in_which_the_host_has_a_part_is_not_captured(layer: nn.Module, reason: str | None) -> None:
    def compute(inputs: Tensor, labels: Tensor, index: Tensor) -> StepResult:
        logits = layer(inputs)
        return logits.sum().detach(), logits.detach()

    step = GraphedStep([layer], torch.device("cpu"), batch_size=BATCH)
    step.warmup_steps = 1
    with patch.object(GraphedStep, "_warm_up", lambda _, compute, *batch: compute(*batch)):
        step(compute, torch.ones(BATCH, 3), torch.ones(BATCH, 2), torch.arange(BATCH))
    assert (step.disabled or "").startswith(reason or "") and (step.disabled is None) == (reason is None)


@pytest.mark.parametrize(
    ("method", "captured"),
    [("an", True), ("ll-r", True), ("em-apl", True), ("gr", True), ("role", False), ("ll-cp", False)],
)
def test_a_loss_that_changes_in_every_step_is_not_captured(method: str, captured: bool) -> None:
    table, cuda = lg.LabelTable.from_dense([[1, 0], [-1, 1]]), torch.device("cuda")
    loss_fn = lg.loss(method, **({"expected_positives": 1.0} if method == "role" else {}))
    loss_fn.prepare(table)
    loss_fn.set_epoch(2)
    assert (why_not_captured(loss_fn, cuda, accumulate=1) is None) == captured
    assert why_not_captured(loss_fn, cuda, accumulate=2) is not None
    assert why_not_captured(loss_fn, torch.device("cpu"), accumulate=1) is not None
    before = host_state([loss_fn])
    loss_fn(torch.zeros(2, 2, requires_grad=True), table.batch(torch.arange(2)), index=torch.arange(2)).backward()
    assert host_state([loss_fn]) == before or not captured


class SmallNetwork(nn.Sequential):
    """Batch statistics and random numbers: what a graph must keep as an eager step does."""

    input_spec = InputSpec(16, (0.5,) * 3, (0.5,) * 3)

    def __init__(self) -> None:
        norm, shuffle = nn.BatchNorm2d(8), nn.Dropout(0.3)
        super().__init__(nn.Conv2d(3, 8, 3, 2), norm, nn.ReLU(), shuffle, nn.Conv2d(8, 8, 3))


class Waits(ElementwiseLoss):
    """Cannot be captured: it waits for the device."""

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.softplus(logits) * (1.0 if bool(logits.isfinite().all()) else 0.0)


def gpu_trainer(folder: Path, method: str | Loss, **settings: Any) -> NetworkTrainer:
    """Return a trainer whose 10 full batches an epoch are followed by a smaller one."""
    random, device = np.random.default_rng(0), torch.device("cuda", 0)
    images = lg.data.ArrayImages(random.integers(0, 256, (43, 16, 16, 3), np.uint8))
    table = lg.LabelTable.from_dense(random.integers(-1, 2, (43, 5)).astype(np.int8))
    data = lg.Dataset("random", lg.data.Split("train", images, table))
    torch.manual_seed(0)
    training: Any = {"batch_size": BATCH, "epochs": 3, "optimizer": "sgd", "clip": 1.0, "ema": 0.9, **settings}
    backbone = as_backbone(SmallNetwork())
    options: dict[str | Loss, dict[str, Any]] = {"em-apl": {"warmup": 1}, "role": {"expected_positives": 1.5}}
    request = TrainingRequest(
        method, options.get(method, {}), backbone=backbone, protocol="end-to-end", training=training
    )
    plan = plan_training(data, request, device)
    config, selection, loss_fn = plan.config, plan.selection, plan.loss
    loss_fn.to(device).prepare(table, epochs=3, seed=0)
    network = build_classifier(config, None, backbone=backbone).to(device)
    inputs = ImageInputs(images, network.backbone, device, True, 0, 0, config.transform).store(device)
    folder.mkdir()
    context = TrainingContext(folder, data, config, selection, network, device, 0, Reporter(quiet=True))
    return NetworkTrainer(context, loss_fn, {"train": inputs})


@needs_cuda
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("method", ["an", "ll-r", "em-apl", Waits()])
def test_captured_and_eager_trainings_end_alike(tmp_path: Path, method: str | Loss, precision: str) -> None:
    ends = []
    for kind in ("graph", "eager"):
        trainer = gpu_trainer(tmp_path / kind, method, precision=precision, transform="augment", lr=1e-2)
        step = trainer.graphed_step
        step.always, step.disabled = True, step.disabled or (None if kind == "graph" else "eager")
        losses = []
        torch.cuda.manual_seed(1)
        for epoch in (1, 2, 3):
            losses.append(trainer._train(TrainingState(), epoch))
            trainer._revise_labels()
        assert (kind == "graph" and not isinstance(method, Waits)) == (step.disabled is None), step.disabled
        assert step.lasting == (method in ("an", "ll-r"))
        assert (step.graph is not None) == (kind == "graph" and step.lasting), "a graph of one epoch is released"
        ends.append((losses, [value.clone() for value in trainer.network.state_dict().values()], trainer))
        step.release()
        torch.cuda.empty_cache()  # refused during a capture: one that failed has ended
    atol = 1e-4 if precision == "float32" else 1e-2
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=1e-3, atol=atol)
    for found, expected in zip(ends[0][1], ends[1][1], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=atol)


@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("method", ["an", "role"])
def test_no_step_waits_for_the_gpu(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = gpu_trainer(tmp_path / "run", method, transform="augment")
    trainer.graphed_step.always = True
    trainer._train(TrainingState(), 1)
    monkeypatch.setattr(NanGuard, "check", lambda *_: None)
    trainer.network.train()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer._train_steps(TrainingState(), 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
