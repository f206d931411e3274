"""A training that diverges: how that is noticed, without a synchronization in every step, and what follows.

It has diverged when a loss, a weight or a score is not finite, and by ``describe_divergence``. A network then halves
its rates and restarts from the best epoch; after ``MAX_HALVINGS`` halvings the next divergence ends the training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from labelgap.core.errors import RunError
from labelgap.training.checkpoint import TrainingState
from labelgap.training.loop.processes import gather_all
from labelgap.training.selection import EpochScore

MAX_HALVINGS: Final = 3
MAX_FALL: Final = 0.2
"""A fifth: scores of good trainings dip by less in their first epochs, and networks that diverge lose far more."""
MAX_GROWTH: Final = 10.0
"""A loss falls, or rises a little where its targets change; one that is ten times the first has left the minimum."""


class DivergenceError(RunError):
    """Numbers of a training are not finite; ``problem`` says which, without what is saved and what to try."""

    def __init__(self, problem: str, epoch: int, remedy: str = "a lower learning rate") -> None:
        super().__init__(problem, epoch, remedy)
        self.problem = problem

    def __str__(self) -> str:
        problem, epoch, remedy = self.args
        saved = f"the last good state is that of epoch {epoch - 1}" if epoch > 1 else "no epoch is complete"
        return f"{problem}: training has diverged, and {saved}. Try {remedy}, in a new --out."


class NanGuard:
    """Records on the device whether a loss was not finite, in which step first, and on which of the named images."""

    def __init__(self, names: Sequence[str], batch_size: int, device: torch.device) -> None:
        self.names = names
        self.failed = torch.zeros((), dtype=torch.bool, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.rows = torch.full((batch_size,), len(names), dtype=torch.int64, device=device)

    def update(self, loss: Tensor, index: Tensor, step: int) -> None:
        """Record the loss of a step, counted from 1 within the epoch."""
        if loss.device.type == "cpu" and math.isfinite(float(loss)):
            return
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
        raise DivergenceError(describe_step(first, epoch, names), epoch, remedy)


@torch.no_grad()
def are_finite(weights: Iterable[Tensor]) -> bool:
    """Return whether all weights are finite. This waits for the device."""
    norms = [weight.detach().float().norm() for weight in weights if weight.is_floating_point()]
    return not norms or bool(torch.stack(norms).isfinite().all())


def check_finite(what: str, finite: bool, epoch: int) -> None:
    """Raise where scores are not finite, or weights after the last steps of an epoch, which no loss has shown yet."""
    if not finite:
        raise DivergenceError(f"{what} are not finite after epoch {epoch}", epoch)


def describe_step(step: int, epoch: int, images: Sequence[str]) -> str:
    """Return in which step a loss was not finite, and its first images."""
    shown = ", ".join(images[:3]) + (" …" if len(images) > 3 else "")
    return f"the loss was not a finite number in step {step} of epoch {epoch} (images {shown})"


def describe_divergence(state: TrainingState, epoch: int, loss: float, score: EpochScore | None) -> str | None:
    """Return what happened where the score fell clearly below the linear head's, or the loss exploded; None else.

    A loss alone does not count: there are methods whose loss is negative, or that change its targets on the way.
    """
    first = next((record for record in state.history if "score" in record), None)
    if score is None or first is None:
        return None
    fell, start = f"the val score fell to {100 * score.value:.1f}", f"{100 * first['score']:.1f}"
    if first["epoch"] == 0 and score.value < (1 - MAX_FALL) * first["score"]:
        return f"epoch {epoch}: {fell}, below the linear head's {start}"
    good = (record["loss"] for record in state.history if not record.get("restarted"))
    earlier = next((value for value in good if value is not None), None)
    if earlier is None or not 0 < MAX_GROWTH * earlier < loss or score.value >= first["score"]:
        return None
    rose = f"the loss rose from {earlier:.3g} to {loss:.3g}"
    return f"epoch {epoch}: {rose}, and {fell}, below the {start} of epoch {first['epoch']}"


def describe_restart(state: TrainingState, *, last: bool) -> str:
    """Return what follows from a divergence that the state has counted; ``last``: in the last epoch."""
    best = f"epoch {state.best_epoch}"
    if not state.history:
        return "rates halved, epoch 1 starts again"
    if state.divergences > MAX_HALVINGS:
        return f"the rates were halved {MAX_HALVINGS} times before, so training ends, and {best} is kept"
    return f"{best} is kept" if last else f"rates halved, restarted from {best}"


class RestartPoint:
    """What training restarts from besides ``best.safetensors``; a checkpoint saves the state of the loss.

    The state is that of the best epoch: pseudo-labels or corrections by a network that diverged do not count. The
    weights are those of the network before its first epoch, until a file has those of the best one.
    """

    def __init__(self, loss_fn: nn.Module, network: nn.Module) -> None:
        self.update(loss_fn)
        self.weights: dict[str, Tensor] | None = _copy(network.state_dict())

    def update(self, loss_fn: nn.Module) -> None:
        """Take the state of the loss; the weights of the epoch are in ``best.safetensors``."""
        self.loss_state, self.weights = _copy(loss_fn.state_dict()), None

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state of the loss."""
        return self.loss_state

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Restore the state of the loss; the weights are those that it was made with."""
        self.loss_state = _copy(state_dict)


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def halve_rates(optimizer: torch.optim.Optimizer, scheduler: LambdaLR, step: int) -> None:
    """Halve the rate of every group, with the schedule at ``step``, and forget momentum and gradients."""
    optimizer.state.clear()
    optimizer.zero_grad(set_to_none=True)
    scheduler.last_epoch = step
    scheduler.base_lrs = [rate / 2 for rate in scheduler.base_lrs]
    for group, rate, factor in zip(optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group["initial_lr"], group["lr"] = rate, rate * factor(step)
