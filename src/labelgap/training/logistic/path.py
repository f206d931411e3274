r"""Logistic regression with an L2 penalty for a path of penalties, solved together.

.. math:: \min_{W, b}\; \sum_n \ell(W f_n + b,\, y_n) + \tfrac{\lambda}{2} \lVert W \rVert^2

The loss is summed over images and the bias is not penalized, so that λ is 1/C of scikit-learn's ``LogisticRegression``.
A single-label data set is one multinomial problem (softmax) for each λ; of a multi-label one every class is a binary
problem (sigmoid), from which the unknown labels are left out. All are solved in the principal components of the
features: a rotation does not change the penalty, and a shift changes only the bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.system import format_bytes
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.losses.base.state import free_memory
from labelgap.training.heads.basis import FeatureBasis
from labelgap.training.logistic.lbfgs import HISTORY, minimize
from labelgap.training.logistic.objectives import BinaryLoss, LogitLoss, MultinomialLoss

_RANK_TOLERANCE: Final = 1e-12
_STRIDES: Final = (8, 4, 2, 1)
"""Every eighth penalty is solved first."""
_NEVER: Final = -1e4
"""The bias of a class that no training image shows."""


@dataclass(frozen=True, eq=False)
class LogisticPath:
    """The solutions for every penalty.

    Attributes:
        penalties: L values of λ.
        basis: the coordinates of the features.
        weight: ``(L, K, R)`` on the coordinates.
        bias: ``(L, K)``
        gradient: ``(L,)`` largest norm of the gradient of a problem, over the number of images.
        iterations: ``(L,)`` of the slowest problem.
        converged: ``(L,)`` whether all problems of a penalty converged.
    """

    penalties: tuple[float, ...]
    basis: FeatureBasis
    weight: Tensor
    bias: Tensor
    gradient: NDArray[np.float64]
    iterations: NDArray[np.int64]
    converged: NDArray[np.bool_]

    def logits(self, features: Tensor) -> list[Tensor]:
        """Return the logits ``(N, K)`` of images for every penalty."""
        inputs = self.basis.apply(features.to(self.weight))
        return [torch.addmm(bias, inputs, weight.t()) for weight, bias in zip(self.weight, self.bias, strict=True)]

    def head(self, number: int) -> tuple[Tensor, Tensor]:
        """Return weights ``(K, D)`` and biases ``(K,)`` of a penalty, on the features themselves."""
        return self.basis.to_features(self.weight[number], self.bias[number])


class _Stack(NamedTuple):
    """The problems of one penalty: their loss, the initial biases ``(p, r)``, and the classes of their logits."""

    loss: LogitLoss
    bias: Tensor
    classes: Tensor


@torch.no_grad()
def fit_logistic_path(
    features: Tensor,
    labels: NDArray[np.integer],
    penalties: Sequence[float],
    *,
    classes: int | None = None,
    tolerance: float = 1e-5,
    max_iterations: int = 1000,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LogisticPath:
    """Fit logistic regressions with many penalties.

    Args:
        features: ``(N, D)``
        labels: ``(N,)`` class numbers of a single-label data set, or ``(N, K)`` label codes of a multi-label one.
        penalties: values of λ, above 0.
        classes: K of a single-label data set; one more than the largest number when None.
        tolerance: where a problem ends: the norm of its gradient, over N, is at most this.
        max_iterations: of a problem.
        device: of the computation.
        dtype: float32 or float64.

    Example:
        >>> path = fit_logistic_path(torch.tensor([[0.0], [1.0], [2.0]]), np.array([0, 0, 1]), [1e-2, 1e2])
        >>> [logits.argmax(dim=1).tolist() for logits in path.logits(torch.tensor([[0.0], [2.0]]))]
        [[0, 1], [0, 0]]
    """
    _check(features, labels, penalties, dtype)
    target = torch.device(device)
    inputs = features.detach().to(target, dtype)
    basis = FeatureBasis.fit(inputs, standardize=False, center=True, rotate=True, rank_tolerance=_RANK_TOLERANCE)
    inputs = torch.cat([basis.apply(inputs), inputs.new_ones(len(inputs), 1)], dim=1)
    stack = _single_label(labels, classes, inputs) if labels.ndim == 1 else _multi_label(labels, inputs)
    order = np.argsort(penalties)
    solver = _PathSolver(stack, inputs, [float(penalties[number]) for number in order], tolerance, max_iterations)
    solver.solve()
    found = solver.parameters[torch.from_numpy(np.argsort(order)).to(target)]
    width = labels.shape[1] if labels.ndim == 2 else classes or int(labels.max()) + 1
    weight = inputs.new_zeros(len(penalties), width, inputs.shape[1] - 1)
    bias = inputs.new_full((len(penalties), width), 0.0 if labels.ndim == 2 else _NEVER)
    weight[:, stack.classes], bias[:, stack.classes] = found[..., :-1], found[..., -1]
    if labels.ndim == 1:  # a constant in all logits changes nothing
        bias[:, stack.classes] -= bias[:, stack.classes].mean(dim=1, keepdim=True)
    back = np.argsort(order)
    reports = solver.gradient[back], solver.iterations[back], solver.converged[back]
    return LogisticPath(tuple(map(float, penalties)), basis, weight, bias, *reports)


class _PathSolver:
    """Solves the problems of rising penalties: some first, then those between, which start from their neighbors.

    Args:
        stack: the problems of one penalty.
        inputs: ``(N, R + 1)`` coordinates of the images, and a 1.
        penalties: L, rising.
        tolerance: see ``fit_logistic_path``, as ``max_iterations``.

    Attributes:
        parameters: ``(L, p · r, R + 1)``
    """

    def __init__(
        self, stack: _Stack, inputs: Tensor, penalties: Sequence[float], tolerance: float, max_iterations: int
    ) -> None:
        self.stack, self.inputs, self.penalties = stack, inputs, penalties
        self.limits = {"tolerance": tolerance, "max_iterations": max_iterations}
        self.parameters = inputs.new_zeros(len(penalties), stack.bias.numel(), inputs.shape[1])
        self.parameters[:, :, -1] = stack.bias.flatten()
        self.gradient, self.iterations = np.zeros(len(penalties)), np.zeros(len(penalties), dtype=np.int64)
        self.converged = np.zeros(len(penalties), dtype=bool)
        self.solved: list[int] = []

    def solve(self) -> None:
        """Solve all problems."""
        for stride in _STRIDES:
            left = [number for number in range(0, len(self.penalties), stride) if number not in self.solved]
            step = max(1, _penalties_at_once(len(left), self.stack, self.inputs))
            for number in left:
                self._start_between(number)
            for first in range(0, len(left), step):
                self._solve(left[first : first + step])

    def _start_between(self, number: int) -> None:
        """Start a problem from the solutions for smaller and larger penalties: a polynomial in the logarithm.

        It is a cubic one through the four nearest where the next smaller and the next larger penalty are solved.
        """
        below, above = (sorted(each for each in self.solved if (each < number) == side) for side in (True, False))
        if not below or not above:
            if below or above:
                self.parameters[number] = self.parameters[below[-1] if below else above[0]]
            return
        each_side = 2 if above[0] - below[-1] == 2 else 1
        logs, near = np.log(self.penalties), np.array(below[-each_side:] + above[:each_side])
        near = near[np.unique(logs[near], return_index=True)[1]]
        self.parameters[number] = 0.0
        for each in near:
            others = near[near != each]
            share = np.prod((logs[number] - logs[others]) / (logs[each] - logs[others]))
            self.parameters[number].add_(self.parameters[each], alpha=float(share))

    def _solve(self, numbers: list[int]) -> None:
        """Solve the problems of some penalties together."""
        count, (each, rows), (_, width) = len(numbers), self.stack.bias.shape, self.inputs.shape
        index = torch.tensor(numbers, device=self.inputs.device)
        values = torch.tensor([self.penalties[number] for number in numbers]).to(self.inputs).repeat_interleave(each)
        penalty = values[:, None, None].expand(-1, 1, width).clone()
        penalty[:, :, -1] = 0.0
        loss = self.stack.loss.select(torch.arange(each, device=self.inputs.device).repeat(count))
        start = self.parameters[index].view(count * each, rows, width)
        found = minimize(loss, self.inputs, penalty, start, **self.limits)  # type: ignore[arg-type]
        self.parameters[index] = found.parameters.view(count, each * rows, width)
        self.gradient[numbers] = found.gradient.view(count, each).amax(dim=1).cpu().numpy()
        self.iterations[numbers] = found.iterations.view(count, each).amax(dim=1).cpu().numpy()
        self.converged[numbers] = found.converged.view(count, each).all(dim=1).cpu().numpy()
        self.solved += numbers


def _single_label(labels: NDArray[np.integer], classes: int | None, inputs: Tensor) -> _Stack:
    """Return the multinomial problem over the classes that occur."""
    present, targets = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        raise InputError("all training images show the same class: there is nothing to distinguish.")
    if present[0] < 0 or (classes is not None and present[-1] >= classes):
        raise InputError(f"class numbers go from 0 to K - 1, not from {present[0]} to {present[-1]}.")
    shares = np.bincount(targets) / len(targets)
    bias = torch.from_numpy(np.log(shares)).to(inputs)
    index = torch.from_numpy(targets.astype(np.int64)).to(inputs.device)
    return _Stack(MultinomialLoss(index), bias[None], torch.from_numpy(present.astype(np.int64)).to(inputs.device))


def _multi_label(labels: NDArray[np.integer], inputs: Tensor) -> _Stack:
    """Return a binary problem for each class that is known to be present in one image and absent in another."""
    present, absent = (np.count_nonzero(labels == state, axis=0) for state in (PRESENT, ABSENT))
    classes = np.flatnonzero((present > 0) & (absent > 0))
    if not len(classes):
        raise InputError("no class is known to be present in one training image and absent in another.")
    codes = torch.from_numpy(np.ascontiguousarray(labels.T[classes])).to(inputs.device)
    known = None if bool((codes != UNKNOWN).all()) else (codes != UNKNOWN).to(inputs.dtype)
    odds = torch.from_numpy(np.log(present[classes] / absent[classes])).to(inputs)
    index = torch.from_numpy(classes).to(inputs.device)
    return _Stack(BinaryLoss((codes == PRESENT).to(inputs.dtype), known), odds[:, None], index)


def _penalties_at_once(count: int, stack: _Stack, inputs: Tensor) -> int:
    """Return how many penalties are solved together: all of them, or as many as fit into half of the free memory."""
    rows = stack.bias.numel()
    needed = rows * inputs.element_size() * (6 * len(inputs) + (2 * HISTORY + 8) * inputs.shape[1])
    free = free_memory(inputs.device)
    if free is None or count * needed <= free // 2:
        return count
    if needed > free:
        raise InputError(
            f"{rows:,} classes × {inputs.shape[1]:,} features × {len(inputs):,} images take {format_bytes(needed)} for "
            f"one penalty, and {format_bytes(free)} are free: take fewer images, or a machine with more memory."
        )
    return max(1, int(free // 2 // needed))


def _check(features: Tensor, labels: NDArray[np.integer], penalties: Sequence[float], dtype: torch.dtype) -> None:
    if features.ndim != 2 or labels.ndim not in (1, 2) or len(labels) != len(features) or len(labels) < 2:
        raise InputError(f"features {tuple(features.shape)} and labels {labels.shape}: a row for each image is needed.")
    if not len(penalties) or not all(0 < value < math.inf for value in penalties):
        raise InputError(f"penalties {list(penalties)}: give finite numbers above 0.")
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype={dtype}: torch.float32 or torch.float64.")
    if not bool(features.isfinite().all()):
        raise InputError("some features are not finite.")
