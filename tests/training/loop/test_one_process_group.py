"""A process group of one process: every collective is called, over NCCL where there is a GPU, and changes nothing.

``python -m tests.training.loop.test_one_process_group`` runs the test over NCCL without pytest.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.training.loop.two_processes_train import SmallNetwork
from torch import nn

import labelgap as lg
from labelgap.core.distributed import all_max, all_sum, gather_rows, is_distributed
from labelgap.training.loop.processes import broadcast_object, gather_objects


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_group_of_one_trains_as_no_group_does(backend: str, tmp_path: Path) -> None:
    if backend == "nccl" and not torch.cuda.is_available():
        pytest.skip("NCCL needs a GPU")
    device = "cuda" if backend == "nccl" else "cpu"
    alone = train(tmp_path / "alone", device)
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert is_distributed()
        values = torch.arange(6.0, device=device).reshape(3, 2).requires_grad_()
        total = (all_sum(values) * all_max(values) + gather_rows(values)).sum()
        (gradient,) = torch.autograd.grad(total, values)
        assert torch.equal(gradient, values.detach() + 1)
        assert broadcast_object({"a": 1}) == {"a": 1} and gather_objects("b") == ["b"]
        grouped = train(tmp_path / "grouped", device)
        assert lg.find_missing(grouped, folds=2, device=device, quiet=True).metadata["images"] == 30
    finally:
        dist.destroy_process_group()
    losses = [[record["loss"] for record in run.history[1:]] for run in (grouped, alone)]  # without epoch 0
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def train(out: Path, device: str) -> lg.Run:
    """Train a head and then a network with synchronized batch normalization."""
    data, network = lg.load("digits", train=30, val=6, test=6), SmallNetwork(nn.BatchNorm2d)
    settings: dict[str, Any] = {"linear_epochs": 1, "epochs": 1, "batch_size": 8, "device": device, "quiet": True}
    settings |= {"batchnorm": "sync", "precision": "float32"}
    return lg.fit(data, "role", {"expected_positives": 2.5}, network, "linear-init", out, **settings)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        test_a_group_of_one_trains_as_no_group_does("nccl", Path(folder))
    print("passed")
