"""Watching over a loss without waiting for the device: a step whose loss is not a number is skipped and remembered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from labelgap.core.errors import RunError

__all__ = ["NanGuard", "check_weights", "divergence_message"]


class NanGuard:
    """Keeps, on the device, whether a loss was not a finite number, in which step first, and on which images.

    Args:
        names: of the training images, by row.
        batch_size: the most rows of a batch.
        device: where losses are.
    """

    def __init__(self, names: Sequence[str], batch_size: int, device: torch.device) -> None:
        self.names = names
        self.bad = torch.zeros((), dtype=torch.bool, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.rows = torch.full((batch_size,), len(names), dtype=torch.int64, device=device)

    def look(self, loss: Tensor, index: Tensor, step: int) -> None:
        """Look at the loss of a step, counted from 1 within the epoch."""
        now = ~torch.isfinite(loss.detach())
        first = now & ~self.bad
        self.step.copy_(torch.where(first, step, self.step))
        padded = torch.full_like(self.rows, len(self.names))
        padded[: len(index)] = index
        self.rows.copy_(torch.where(first, padded, self.rows))
        self.bad |= now

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimiser's next step do nothing if a loss was bad; fused kernels look at the flag themselves."""
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.found_inf = self.bad.float()  # type: ignore[attr-defined]

    def check(self, epoch: int) -> None:
        """Stop the run if a loss was bad. This waits for the device, so it is asked seldom."""
        if not bool(self.bad):
            return
        names = [self.names[row] for row in self.rows.tolist() if row < len(self.names)]
        way_out = "a lower learning rate (--lr), or a limit on the gradient (--clip 1)"
        raise RunError(divergence_message(int(self.step), epoch, names, way_out))


@torch.no_grad()
def check_weights(weights: Iterable[Tensor], epoch: int) -> None:
    """Stop the run if the last steps of an epoch, which no loss has looked at, have spoilt the weights.

    Without this an epoch could be kept of which nothing can go on.
    """
    norms = [weight.detach().float().norm() for weight in weights if weight.is_floating_point()]
    if norms and not bool(torch.stack(norms).isfinite().all()):
        kept = f"the last good state is that of epoch {epoch - 1}" if epoch > 1 else "no epoch was done"
        raise RunError(
            f"the weights are not finite numbers after epoch {epoch}: the training has diverged, and {kept}. Try a "
            "lower learning rate, in a new --out."
        )


def divergence_message(step: int, epoch: int, images: Sequence[str], way_out: str) -> str:
    """Say in which step the loss was no number, on which images, what is kept, and what to try.

    Example:
        >>> divergence_message(2, 1, ["a.jpg"], "a lower rate").partition(":")[0]
        'the loss was not a finite number in step 2 of epoch 1 (images a.jpg)'
    """
    shown = ", ".join(images[:3]) + (" …" if len(images) > 3 else "")
    kept = f"the last good state is that of epoch {epoch - 1}" if epoch > 1 else "no epoch was done"
    return (
        f"the loss was not a finite number in step {step} of epoch {epoch} (images {shown}): the training has "
        f"diverged. That step was not taken, and {kept}. Try {way_out}, in a new --out."
    )
