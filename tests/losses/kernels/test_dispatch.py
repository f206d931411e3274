"""Which losses take kernels, on any machine: no GPU and no Triton is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import batch_of, prepared, some_labels, some_logits
from tests.losses.kernels.kernel_cases import METHODS, has_kernel
from torch import Tensor

from labelgap.losses import EntropyMaximization, LargeLossCorrection, Mixture, MixtureLoss, loss, methods
from labelgap.losses.base.loss import LogLoss
from labelgap.losses.kernels import disabled, dispatch
from labelgap.losses.kernels.dispatch import are_taken

PROJECT = Path(__file__).resolve().parents[3]
CUDA = torch.device("cuda")
LARGE = 288 * 5000


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_is_installed", lambda: True)
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)


def usable(made: Any) -> bool:
    assert isinstance(made, LogLoss)
    return made.usable_kernel_form(8, 20) is not None


@pytest.mark.usefixtures("installed")
def test_kernels_are_for_large_float32_batches_on_a_gpu_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not are_taken(torch.device("cpu"), torch.float32, LARGE)
    assert not are_taken(CUDA, torch.float64, LARGE)
    assert not are_taken(CUDA, torch.float32, 256 * 80)
    assert not are_taken(CUDA, torch.float32, 2**31)
    with disabled():
        assert not are_taken(CUDA, torch.float32, LARGE)
    assert are_taken(CUDA, torch.float32, LARGE)
    with monkeypatch.context() as patch:
        patch.setenv("LABELGAP_KERNELS", "0")
        assert not are_taken(CUDA, torch.float32, LARGE)
    monkeypatch.setattr(dispatch, "world_size", lambda: 2)
    assert not are_taken(CUDA, torch.float32, LARGE)


def test_these_methods_have_a_kernel() -> None:
    random = np.random.default_rng(0)
    batch = batch_of(some_labels("partial", (8, 20), random), some_logits("moderate", (8, 20), random))
    options = {name: {"expected_positives": 2.0} for name in ("epr", "role")}
    assert sorted(name for name in methods() if has_kernel(name, batch, options.get(name, {}))) == sorted(METHODS)


def test_options_that_no_kernel_knows() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("em", {"eps": 1e-5}),
        ("em", {"reduction": "none"}),
        ("em", {"alpha": torch.tensor([0.1, 0.2])}),
        ("asl", {"detach_focus": True}),
        ("asl", {"margin": torch.tensor([0.1, 0.2])}),
        ("ll-r", {"base": "all"}),
        ("ll-r", {"delta_rel": torch.tensor([0.1, 0.2])}),
        ("csl", {"mode": "ignore"}),
        ("csl", {"priors": [0.1] * 20}),
        ("csl", {"likelihood_topk": torch.tensor([1, 2])}),
    ]
    for name, options in cases:
        assert usable(loss(name)) and not usable(loss(name, **options)), (name, options)


def test_a_subclass_that_changes_the_formula_takes_no_kernel() -> None:
    class OwnWeights(MixtureLoss):
        declared = Mixture(unknown=(0.0, 0.5, 0.0))

    class OwnEntries(EntropyMaximization):
        def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
            return logits**2

    class OwnChoice(LargeLossCorrection):
        def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
            return labels < 0

    assert usable(OwnWeights()) and not usable(OwnEntries()) and not usable(OwnChoice())
    assert not usable(loss("ll-ct-abs"))


@pytest.mark.usefixtures("installed")
def test_where_kernels_cannot_start_the_loss_is_computed_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no driver of Triton; and where Triton is not installed, there is nothing to start at all."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("in the interpreter a CPU has kernels")
    for name, value in {"DEVICES": {"cpu"}, "LEAST_ENTRIES": 1, "_failed": False}.items():
        monkeypatch.setattr(dispatch, name, value)
    random = np.random.default_rng(0)
    batch = batch_of(some_labels("partial", (8, 20), random), some_logits("moderate", (8, 20), random))
    made, logits = prepared("em", batch, {}, dtype=torch.float32), torch.from_numpy(batch.logits).float()
    labels = torch.from_numpy(batch.labels)
    with disabled():
        expected = made(logits, labels)
    with pytest.warns(UserWarning, match="LABELGAP_KERNELS=0"):
        assert torch.equal(made(logits, labels), expected)
    assert torch.equal(made(logits, labels), expected)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is the interpreter")
def test_kernels_agree_with_the_references_in_the_interpreter() -> None:
    files = ["tests/losses/kernels/test_kernels.py", "tests/training/heads/test_engine_devices.py"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", *files]
    found = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    passed = re.search(r"(\d+) passed", found.stdout)  # those that need a GPU are skipped
    assert found.returncode == 0 and passed is not None and int(passed[1]) > 50, found.stdout
