"""Values and gradients of the kernels against the losses themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import torch
from benchmarks.loss_kernels.passes import METHODS, kernel_of
from torch import Tensor

import labelgap as lg
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.losses.base.loss import Loss

__all__ = ["EPOCHS", "TOLERANCE", "Errors", "check", "make_loss", "make_logits"]

EPOCHS: Final = 10
TOLERANCE: Final = 3e-6
"""Of the mean loss, relative where it is above 1, and of the slope of an entry."""
BORDERLINE: Final = 1e-6
"""`splc`: an entry whose probability is this close to τ may be on either side of it, as p is rounded."""
SHAPE: Final = (37, 53)
LARGE: Final = (288, 5000)
"""On a GPU as well."""
CHANGING: Final = frozenset({"splc", "gr", "ll-r", "ll-ct"})
"""Methods that change with the epochs."""
STATES: Final = {"all": (UNKNOWN, ABSENT, PRESENT), "unknown": (UNKNOWN,), "known": (ABSENT, PRESENT)}
OPTIONS: Final[dict[str, list[dict[str, Any]]]] = {
    "focal": [{}, {"gamma": 1.5}],
    "asl": [{}, {"gamma_pos": 1.0, "gamma_neg": 4.0, "margin": 0.0}, {"gamma_neg": 0.0}, {"gamma_neg": 2.5}],
    "gr": [{}, {"q2": 0.6, "q3": 0.3}],
    "ll-r": [{}, {"delta_rel": 3.0}, {"delta_rel": 0.01234567891}],
    "ll-ct": [{}, {"delta_rel": 90.0}],
    "csl": [{}, {"likelihood_topk": 1000}],
}


@dataclass
class Errors:
    """The worst errors of a method: of the mean loss, and of a slope; against float64 as well.

    Attributes:
        value: against the loss in float32.
        slope: against its gradient in float32.
        slope_float64: against its gradient in float64.
        cases: how many were compared.
        borderline: entries that were left out.
    """

    value: float = 0.0
    slope: float = 0.0
    slope_float64: float = 0.0
    cases: int = 0
    borderline: int = 0

    @property
    def accepted(self) -> bool:
        """Whether all errors are within the tolerance; false where one is not a number."""
        return self.value <= TOLERANCE and self.slope <= TOLERANCE


def make_loss(method: str, classes: int, device: str, epoch: int, **options: Any) -> Loss:
    """Return a loss in some epoch of ten."""
    loss_fn: Loss = lg.loss(method, **options)
    table = lg.LabelTable.from_dense(torch.zeros(1, classes, dtype=torch.int8).numpy())
    loss_fn.to(device).prepare(table, epochs=EPOCHS, seed=0)
    loss_fn.set_epoch(epoch)
    return loss_fn


def make_logits(shape: tuple[int, int], device: str) -> Tensor:
    """Return logits with many ties, both zeros, and logits that are very sure."""
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3 - 1
    logits[::3] = (logits[::3] * 4).round() / 4
    logits[0, :6] = torch.tensor([40.0, -40.0, 1e4, -1e4, 0.0, -0.0])
    return logits.to(device)


def make_labels(shape: tuple[int, int], device: str, states: tuple[int, ...]) -> Tensor:
    chosen = torch.randint(len(states), shape, generator=torch.Generator().manual_seed(1))
    return torch.tensor(states, dtype=torch.int8)[chosen].to(device)


def value_and_slopes(
    function: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor, incoming: float
) -> tuple[Tensor, Tensor]:
    """Return the mean loss and its gradient as float64, the latter times the number of entries."""
    logits = logits.clone().requires_grad_()
    loss = function(logits, labels)
    (gradient,) = torch.autograd.grad(loss * incoming, logits)
    return loss.detach().double(), gradient.double() * (logits.numel() / incoming)


def compare(errors: Errors, loss_fn: Loss, logits: Tensor, labels: Tensor, incoming: float, block: int) -> None:
    """Compare one batch; ``incoming`` is the gradient that arrives at the loss."""
    kernel = replace(kernel_of(loss_fn, *logits.shape), block=block)
    results = [
        value_and_slopes(function, logits.to(dtype), labels, incoming)
        for function, dtype in ((kernel, torch.float32), (loss_fn, torch.float32), (loss_fn, torch.float64))
    ]
    counted = torch.ones_like(logits, dtype=torch.bool)
    if loss_fn.name == "splc":
        counted = (torch.sigmoid(logits.double()) - loss_fn.tau).abs() > BORDERLINE  # type: ignore[operator]
        errors.borderline += int((~counted).sum())
    (value, slopes), (our_value, our_slopes), (_, exact_slopes) = results
    found = {
        "value": (value - our_value) / our_value.abs().clamp(min=1.0),
        "slope": (slopes - our_slopes)[counted],
        "slope_float64": (slopes - exact_slopes)[counted],
    }
    for name, error in found.items():
        worst = float(error.abs().max())
        setattr(errors, name, worst if math.isnan(worst) else max(getattr(errors, name), worst))
    errors.cases += 1


def check_method(method: str, device: str) -> Errors:
    """Compare a method in all label states, with other options, and in the first and last epoch where that matters."""
    errors, logits, block = Errors(), make_logits(SHAPE, device), 256 if device == "cpu" else 2048
    cases = [(5, states, incoming) for states, incoming in zip(STATES.values(), (1.0, -3.0, 0.5), strict=True)]
    cases += [(epoch, STATES["all"], 1.0) for epoch in (1, EPOCHS) if method in CHANGING]
    for options, (epoch, states, incoming) in product(OPTIONS.get(method, [{}]), cases):
        loss_fn = make_loss(method, SHAPE[1], device, epoch, **options)
        compare(errors, loss_fn, logits, make_labels(SHAPE, device, states), incoming, block)
    if device == "cuda":
        loss_fn = make_loss(method, LARGE[1], device, 5)
        compare(errors, loss_fn, make_logits(LARGE, device), make_labels(LARGE, device, STATES["all"]), 1.0, block)
    return errors


def check(methods: list[str], device: str) -> Iterator[tuple[str, Errors]]:
    """Yield the worst errors of every method."""
    for method in methods or METHODS:
        yield method, check_method(method, device)
