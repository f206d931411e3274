"""Detect losses, weights and scores that are not finite, without a synchronization in every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import RunError
from labelgap.training.loop.distributed import gather_all


class DivergenceError(RunError):
    """Numbers of a training are not finite; ``problem`` says which, without what is saved and what to try."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.problem = message.partition(": ")[0]


class NanGuard:
    """Records on the device whether a loss was not finite, in which step first, and on which images.

    Args:
        names: of the training images, by row.
        batch_size: the largest number of rows in a batch.
        device: of the losses.
    """

    def __init__(self, names: Sequence[str], batch_size: int, device: torch.device) -> None:
        self.names = names
        self.failed = torch.zeros((), dtype=torch.bool, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.rows = torch.full((batch_size,), len(names), dtype=torch.int64, device=device)

    def update(self, loss: Tensor, index: Tensor, step: int) -> None:
        """Record the loss of a step, counted from 1 within the epoch."""
        bad = ~torch.isfinite(loss.detach())
        first = bad & ~self.failed
        self.step.add_(first * step)  # a number inside of torch.where would be copied to the device, which waits for it
        padded = torch.full_like(self.rows, len(self.names))
        padded[: len(index)] = index
        self.rows.copy_(torch.where(first, padded, self.rows))
        self.failed |= bad

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the optimizer skip its next step if a loss was not finite; fused kernels read the flag on the device."""
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.found_inf = self.failed.float()  # type: ignore[attr-defined]

    def check(self, epoch: int) -> None:
        """Raise if a loss was not finite, in all processes if it was in one. This waits for the device."""
        (failed,) = gather_all(self.failed[None])
        if not bool(failed.any()):
            return
        step, rows = gather_all(self.step[None], self.rows[None])
        first = int(step[failed].min())
        names = [self.names[row] for row in rows[failed & (step == first)].flatten().tolist() if row < len(self.names)]
        remedy = "a lower learning rate (--lr), or a limit on the gradient (--clip 1)"
        raise DivergenceError(divergence_message(first, epoch, names, remedy))


@torch.no_grad()
def are_finite(weights: Iterable[Tensor]) -> bool:
    """Return whether all weights are finite. This waits for the device."""
    norms = [weight.detach().float().norm() for weight in weights if weight.is_floating_point()]
    return not norms or bool(torch.stack(norms).isfinite().all())


def check_weights(weights: Iterable[Tensor], epoch: int) -> None:
    """Raise if weights are not finite after the last steps of an epoch, whose effect no loss has shown yet."""
    if not are_finite(weights):
        raise DivergenceError(_not_finite("the weights", epoch))


def check_scores(logits: NDArray[np.float32], epoch: int) -> None:
    """Raise if the scores of val are not finite, although the weights are."""
    if not np.isfinite(logits).all():
        raise DivergenceError(_not_finite("the scores of val", epoch))


def _not_finite(what: str, epoch: int) -> str:
    return (
        f"{what} are not finite after epoch {epoch}: training has diverged, and {_saved(epoch)}. Try a lower learning "
        "rate, in a new --out."
    )


def divergence_message(step: int, epoch: int, images: Sequence[str], remedy: str) -> str:
    """Return the message about a loss that is not finite: the step, its images, what is saved, and what to try.

    Example:
        >>> divergence_message(2, 1, ["a.jpg"], "a lower rate").partition(":")[0]
        'the loss was not a finite number in step 2 of epoch 1 (images a.jpg)'
    """
    shown = ", ".join(images[:3]) + (" …" if len(images) > 3 else "")
    return (
        f"the loss was not a finite number in step {step} of epoch {epoch} (images {shown}): training has diverged. "
        f"That step was skipped, and {_saved(epoch)}. Try {remedy}, in a new --out."
    )


def _saved(epoch: int) -> str:
    return f"the last good state is that of epoch {epoch - 1}" if epoch > 1 else "no epoch is complete"
