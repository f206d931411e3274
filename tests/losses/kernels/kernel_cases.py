"""Where kernels can run in a test, and what they are compared with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from tests.losses.batches import forward, prepared
from tests.losses.reference import Batch
from torch import Tensor

from labelgap.losses import Loss, methods
from labelgap.losses.base.loss import LogLoss
from labelgap.losses.kernels import dispatch

CUDA = torch.cuda.is_available()
INTERPRETED = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if CUDA else "cpu"
REASON = (
    None if (CUDA and find_spec("triton") is not None) or INTERPRETED else "kernels need a GPU, or TRITON_INTERPRET=1"
)
METHODS = ["iu", "bce", "iun", "an", "bce-ls", "an-ls", "ls", "n-ls", "wan", "dw", "l1r", "l2r"]
METHODS += ["em", "entmin", "focal", "asl", "hill", "splc", "ll-r", "ll-ct", "gr", "csl"]
"""All methods that have a kernel."""
assert set(METHODS) <= set(methods())


@contextmanager
def kernels_for_any_size() -> Iterator[set[Any]]:
    """Take kernels for the smallest batch, on the device of the tests; yields what has been computed by one."""
    with patch.multiple(dispatch, DEVICES={DEVICE}, LEAST_ENTRIES=1, _failed=False, _known=set()):
        yield dispatch._known


def has_kernel(name: str, batch: Batch, options: Mapping[str, Any]) -> bool:
    """Whether a method has a kernel with these options."""
    made = prepared(name, batch, options, dtype=torch.float32)
    rows, classes = batch.labels.shape
    return isinstance(made, LogLoss) and made.usable_kernel_form(rows, classes) is not None


def kernel_loss(name: str, batch: Batch, options: Mapping[str, Any]) -> Loss:
    """A loss at the epoch of the batch, on the device of the tests."""
    return prepared(name, batch, options, dtype=torch.float32).to(DEVICE)


def loss_and_gradient(made: Loss, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss of a batch in float32 and its gradient, times the number of entries where the loss is a mean."""
    logits = torch.from_numpy(batch.logits).float().to(DEVICE).requires_grad_()
    loss = forward(made, batch, logits)
    torch.autograd.backward(loss)
    assert logits.grad is not None
    return loss.detach().cpu(), logits.grad.cpu() * (logits.numel() if made.reduction == "mean" else 1)
