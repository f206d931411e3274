r"""L-BFGS for many penalized problems at once (Liu and Nocedal, 1989).

Every problem has parameters, a history, a line search and an end of its own; what they share is the product with the
features, which is one matrix product for all problems that have not converged. With logits :math:`x = \theta z`,

.. math:: f(\theta) = \ell(x) + \tfrac12 \sum_j \lambda_j \theta_j^2, \qquad
    \nabla f = \frac{\partial \ell}{\partial x}\, z + \lambda\, \theta

Logits are linear in the parameters, so an iteration takes two products whatever its line search: that of the direction
with the features, and that of the new derivatives. The features should be principal components. Then the diagonal
:math:`h\, s_j^2 + \lambda_j`, with h the mean second derivative of the loss and :math:`s_j^2` the sum of squares of a
feature, is close to the Hessian, and its inverse takes the place of the identity that L-BFGS usually starts from.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from labelgap.training.logistic.objectives import LogitLoss

HISTORY: Final = 10
"""Pairs of steps and changes of the gradient that are kept."""
_SLOPE_SHARE: Final = 0.1
"""A line search ends where the slope is at most this share of the initial one."""
_TRIALS: Final = 20
_REFRESH: Final = 25
"""Iterations after which logits, to which steps are added, are computed anew."""
_PATIENCE: Final = 60
"""A problem ends where its gradient has not become smaller in so many iterations: its precision is exhausted."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """The minima of problems.

    Attributes:
        parameters: ``(P, r, R)``
        gradient: ``(P,)`` norm of the gradient, over the number of images.
        iterations: ``(P,)``
        converged: ``(P,)`` whether that norm is at most the tolerance.
    """

    parameters: Tensor
    gradient: Tensor
    iterations: Tensor
    converged: Tensor


class _Pair(NamedTuple):
    """A step ``(P, Q)``, the change of the gradient over it, and one over their product; 0 where it is not used."""

    step: Tensor
    change: Tensor
    weight: Tensor


@torch.no_grad()
def minimize(
    loss: LogitLoss,
    features: Tensor,
    penalties: Tensor,
    start: Tensor,
    *,
    tolerance: float,
    max_iterations: int,
) -> Minimum:
    """Minimize penalized losses, each to the same tolerance.

    Args:
        loss: of P problems.
        features: ``(N, R)``
        penalties: ``(P, 1, R)`` λ of each parameter; 0 for one that is not penalized.
        start: ``(P, r, R)`` initial parameters.
        tolerance: a problem has converged where the norm of its gradient, over N, is at most this.
        max_iterations: of a problem.
    """
    problems = _Problems(loss, features, penalties, start)
    images, best = len(features), torch.full((len(start),), torch.inf, dtype=start.dtype, device=start.device)
    found, age = start.clone(), torch.zeros_like(best)
    norms, iterations = best.clone(), torch.zeros(len(start), dtype=torch.int64, device=start.device)
    for iteration in range(max_iterations + 1):
        norm = problems.gradient.flatten(1).norm(dim=1) / images
        age = torch.where(norm < best, torch.zeros_like(age), age + 1)
        best = torch.minimum(norm, best)
        ended = ~(norm > tolerance) | (age > _PATIENCE) | (iteration == max_iterations)
        if bool(ended.any()):
            rows = problems.number[ended]
            found[rows], norms[rows], iterations[rows] = problems.parameters[ended], norm[ended], iteration
            left = (~ended).nonzero()[:, 0]
            if not len(left):
                break
            problems.keep(left)
            best, age = best[left], age[left]
        problems.step(refresh=(iteration + 1) % _REFRESH == 0)
    return Minimum(found, norms, iterations, norms <= tolerance)


class _Problems:
    """The problems that have not ended."""

    def __init__(self, loss: LogitLoss, features: Tensor, penalties: Tensor, start: Tensor) -> None:
        self.loss, self.penalties, self.parameters = loss, penalties, start.clone()
        self.features, self.transposed = features, features.t().contiguous()
        self.number = torch.arange(len(start), device=start.device)
        self.squares = features.square().sum(dim=0)
        self.history: deque[_Pair] = deque(maxlen=HISTORY)
        self.logits = self._product(self.parameters)
        self.p = loss.probabilities(self.logits)
        self.gradient = self._gradient()

    def _product(self, parameters: Tensor) -> Tensor:
        rows = parameters.flatten(0, 1) @ self.transposed
        return rows.view(*parameters.shape[:2], -1)

    def _gradient(self) -> Tensor:
        slopes = self.loss.gradient(self.p)
        product = (slopes.flatten(0, 1) @ self.features).view_as(self.parameters)
        return product.addcmul_(self.penalties, self.parameters)

    def keep(self, rows: Tensor) -> None:
        """Leave all but some problems out."""
        for name in ("number", "penalties", "parameters", "logits", "p", "gradient"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        self.loss = self.loss.select(rows)
        kept = [_Pair(*(part.index_select(0, rows) for part in pair)) for pair in self.history]
        self.history = deque(kept, maxlen=HISTORY)

    def step(self, *, refresh: bool) -> None:
        """Make one iteration of every problem."""
        direction = self._direction()
        change = self._product(direction)
        length = self._line_search(direction, change)[:, None, None]
        direction.mul_(length)
        self.parameters.add_(direction)
        if refresh:
            self.logits = self._product(self.parameters)
            self.p = self.loss.probabilities(self.logits)
        else:
            self.logits.addcmul_(change, length)
        before, self.gradient = self.gradient, self._gradient()
        step, difference = direction.flatten(1), (self.gradient - before).flatten(1)
        product = (step * difference).sum(dim=1)
        smallest = torch.finfo(product.dtype).eps * step.norm(dim=1) * difference.norm(dim=1)
        usable = product > smallest
        self.history.append(_Pair(step, difference, torch.where(usable, 1 / product, torch.zeros_like(product))))

    def _direction(self) -> Tensor:
        """Return the direction of L-BFGS, ``(P, r, R)``; always one of descent."""
        curvature = (self.loss.curvature(self.p) / len(self.features)).clamp(min=1e-9)
        diagonal = (curvature[:, :, None] * self.squares).add_(self.penalties).flatten(1)
        gradient = self.gradient.flatten(1)
        q, shares = gradient.clone(), list[Tensor]()
        for step, change, weight in reversed(self.history):
            shares.append(weight * (step * q).sum(dim=1))
            q.addcmul_(change, shares[-1][:, None], value=-1)
        q.div_(diagonal)
        if self.history:
            _, change, weight = self.history[-1]
            scaled = (change.square() / diagonal).sum(dim=1) * weight
            q.mul_(torch.where(scaled > 0, 1 / scaled, torch.ones_like(scaled))[:, None])
        for (step, change, weight), share in zip(self.history, reversed(shares), strict=True):
            q.addcmul_(step, (share - weight * (change * q).sum(dim=1))[:, None])
        descends = (q * gradient).sum(dim=1, keepdim=True) > 0
        return torch.where(descends, q, gradient / diagonal).neg_().view_as(self.parameters)

    def _line_search(self, direction: Tensor, change: Tensor) -> Tensor:
        """Return the step lengths ``(P,)`` at which the slope is nearly 0: Newton's method, within a bracket.

        The probabilities become those at the end of the step.
        """
        flat, penalized = direction.flatten(1), (self.penalties * direction).flatten(1)
        linear, quadratic = (penalized * self.parameters.flatten(1)).sum(dim=1), (penalized * flat).sum(dim=1)
        initial = (self.gradient.flatten(1) * flat).sum(dim=1)
        length = torch.ones_like(initial)
        low, high = torch.zeros_like(length), torch.full_like(length, torch.inf)
        rows = torch.arange(len(length), device=length.device)
        for trial in range(_TRIALS):
            every = len(rows) == len(length)
            loss = self.loss if every else self.loss.select(rows)
            logits, ahead = (part if every else part.index_select(0, rows) for part in (self.logits, change))
            t = length[rows]
            p = loss.probabilities(torch.addcmul(logits, ahead, t[:, None, None]))
            self.p = p if every else self.p.index_copy_(0, rows, p)
            first, second = loss.directional(p, ahead)
            first, second = first + linear[rows] + t * quadratic[rows], second + quadratic[rows]
            low[rows], high[rows] = torch.where(first < 0, t, low[rows]), torch.where(first < 0, high[rows], t)
            left = first.abs() > _SLOPE_SHARE * initial[rows].abs()
            if trial == _TRIALS - 1 or not bool(left.any()):
                break
            newton, bottom, top = t - first / second, low[rows], high[rows]
            middle = torch.where(top.isinf(), 4 * t, (bottom + top) / 2)
            inside = (newton > bottom) & (newton < top) & (newton < 10 * t)
            length[rows] = torch.where(left, torch.where(inside, newton, middle), t)
            rows = rows[left]
        return length
