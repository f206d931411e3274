"""Values and gradients of the kernels against the losses without them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor

import labelgap as lg
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.losses.base.loss import LogLoss
from labelgap.losses.kernels import disabled, triton_kernels

METHODS: Final = [
    *("an", "an-ls", "bce", "bce-ls", "n-ls", "wan", "dw", "em", "entmin"),
    *("focal", "hill", "splc", "asl", "gr", "ll-r", "ll-ct", "csl"),
]
"""The methods that have a kernel; `ls`, `iu`, `iun`, `l1r` and `l2r` have the costs of some of them."""
EPOCHS: Final = 10
TOLERANCE: Final = 3e-6
"""Of the mean loss, relative where it is above 1, and of the slope of an entry."""
BORDERLINE: Final = 1e-6
"""`splc`: an entry whose probability is this close to τ may be on either side of it, as p is rounded."""
SHAPE: Final = (37, 53)
BLOCK: Final = 256
"""Entries of a block in the interpreter, so that a batch has several."""
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


Function = Callable[[Tensor, Tensor], Tensor]


def as_kernel(loss_fn: LogLoss) -> Function:
    """Return the kernel of a loss, whatever the size of a batch."""

    def function(logits: Tensor, labels: Tensor) -> Tensor:
        form = loss_fn.usable_kernel_form(logits.shape[0], logits.shape[1])
        assert form is not None, f"{loss_fn.name} has no kernel"
        return triton_kernels.evaluate(form, logits, labels, loss_fn.reduction)

    return function


def without_kernel(loss_fn: LogLoss) -> Function:
    """Return a loss that never takes a kernel."""

    def function(logits: Tensor, labels: Tensor) -> Tensor:
        with disabled():
            loss: Tensor = loss_fn(logits, labels)
        return loss

    return function


def make_loss(method: str, classes: int, device: str, epoch: int, **options: Any) -> LogLoss:
    """Return a loss in some epoch of ten."""
    loss_fn = lg.loss(method, **options)
    assert isinstance(loss_fn, LogLoss)
    table = lg.LabelTable.from_dense(torch.zeros(1, classes, dtype=torch.int8).numpy())
    loss_fn.to(device).prepare(table, epochs=EPOCHS, seed=0)
    loss_fn.eval().set_epoch(epoch)  # no training: this epoch does not end
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


def value_and_slopes(function: Function, logits: Tensor, labels: Tensor, incoming: float) -> tuple[Tensor, Tensor]:
    """Return the mean loss and its gradient as float64, the latter times the number of entries."""
    logits = logits.clone().requires_grad_()
    loss = function(logits, labels)
    (gradient,) = torch.autograd.grad(loss * incoming, logits)
    return loss.detach().double(), gradient.double() * (logits.numel() / incoming)


def compare(errors: Errors, loss_fn: LogLoss, logits: Tensor, labels: Tensor, incoming: float) -> None:
    """Compare one batch; ``incoming`` is the gradient that arrives at the loss."""
    ours = without_kernel(loss_fn)
    results = [
        value_and_slopes(function, logits.to(dtype), labels, incoming)
        for function, dtype in ((as_kernel(loss_fn), torch.float32), (ours, torch.float32), (ours, torch.float64))
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
    errors, logits = Errors(), make_logits(SHAPE, device)
    cases = [(5, states, incoming) for states, incoming in zip(STATES.values(), (1.0, -3.0, 0.5), strict=True)]
    cases += [(epoch, STATES["all"], 1.0) for epoch in (1, EPOCHS) if method in CHANGING]
    for options, (epoch, states, incoming) in product(OPTIONS.get(method, [{}]), cases):
        loss_fn = make_loss(method, SHAPE[1], device, epoch, **options)
        compare(errors, loss_fn, logits, make_labels(SHAPE, device, states), incoming)
    if device == "cuda":
        loss_fn = make_loss(method, LARGE[1], device, 5)
        compare(errors, loss_fn, make_logits(LARGE, device), make_labels(LARGE, device, STATES["all"]), 1.0)
    return errors


def check(methods: list[str], device: str) -> Iterator[tuple[str, Errors]]:
    """Yield the worst errors of every method."""
    with patch.object(triton_kernels, "BLOCK", BLOCK if device == "cpu" else triton_kernels.BLOCK):
        for method in methods:
            yield method, check_method(method, device)
