r"""Convex problems on fixed features: the coordinates that make them easy, and what solves them there.

A head on the principal components :math:`z = V^\top (f - \mu) / \sigma` is a head on the features :math:`f` themselves:

.. math:: W z + b = W' f + b', \qquad W' = (W V^\top) / \sigma, \qquad b' = b - W' \mu

so what is stored are :math:`W'` and :math:`b'`. In these coordinates the curvature of a logistic loss is nearly
diagonal. ``StackedNewton`` divides by a bound of it, for heads of any loss and early stopping; ``fit_logistic_path``
solves logistic regression for many penalties to the end, by L-BFGS, 13 times as fast.
"""

from __future__ import annotations

import math
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.cache import cache_folder
from labelgap.core.errors import InputError
from labelgap.core.files import make_folder
from labelgap.core.system import format_bytes
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.losses.base.state import free_memory
from labelgap.losses.base.terms import widest_float
from labelgap.training.heads.optimizers import StackedOptimizer, StackedParameter

LARGE_VALUES = 1 << 28
BLOCK_VALUES = 1 << 24
"""Features of more values than the first are read, and changed, so many values at a time."""
HISTORY: Final = 10
"""Pairs of steps and changes of the gradient that L-BFGS keeps."""
_SLOPE_SHARE: Final = 0.1
"""A line search ends where the slope is at most this share of the initial one."""
_TRIALS: Final = 20
_REFRESH: Final = 25
"""Iterations after which logits, to which steps are added, are computed anew."""
_PATIENCE: Final = 60
"""A problem ends where its gradient has not become smaller in so many iterations: its precision is exhausted."""
_STRIDES: Final = (8, 4, 2, 1)
"""Every eighth penalty is solved first; those between start from their neighbors."""
_NEVER: Final = -1e4
"""The bias of a class that no training image shows."""


@dataclass(frozen=True, eq=False)
class FeatureBasis:
    """A linear change of coordinates of features. It uses no labels: heads of several folds may share it."""

    mean: Tensor  # (D,)
    scale: Tensor  # (D,), the standard deviation; 1 where it is 0
    components: Tensor | None  # (D, R) orthonormal columns; None where the coordinates are the standardized features
    variances: Tensor  # (R,), the mean square of each coordinate

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        features: Tensor,
        *,
        standardize: bool = True,
        center: bool = False,
        rotate: bool = False,
        rank_tolerance: float = 1e-6,
    ) -> FeatureBasis:
        """Return the coordinates of features ``(N, D)``: in float64 where they are, else in float32.

        ``standardize`` also divides by the standard deviation, ``center`` only subtracts the mean. ``rotate`` takes the
        principal components, without those of a smaller share of the largest variance than ``rank_tolerance``.
        """
        values = features.detach().to(torch.float64 if features.dtype == torch.float64 else torch.float32)
        if _is_large(values):
            return cls._fit_by_blocks(values, standardize, center, rotate, rank_tolerance)
        mean, scale = values.new_zeros(values.shape[1]), values.new_ones(values.shape[1])
        if standardize:
            mean, deviation = values.mean(dim=0), values.std(dim=0, correction=0)
            constant = deviation <= 1e-6 * mean.abs()
            scale = torch.where(constant, torch.ones_like(deviation), deviation)
        elif center:
            mean = values.mean(dim=0)
        standardized = (values - mean) / scale
        if not rotate:
            return cls(mean, scale, None, standardized.square().mean(dim=0))
        return cls(mean, scale, *_principal_components(standardized, rank_tolerance))

    @classmethod
    def _fit_by_blocks(
        cls, values: Tensor, standardize: bool, center: bool, rotate: bool, tolerance: float
    ) -> FeatureBasis:
        """Return what ``fit`` does, of features that are read twice, and of which no copy is made."""
        (count, width), wide = values.shape, torch.float64
        mean, squares = values.new_zeros(width, dtype=wide), values.new_zeros(width, dtype=wide)
        scale = torch.ones_like(mean)
        if standardize or center:
            for block in _blocks(values):
                mean += block.sum(dim=0, dtype=wide) / count
        if standardize or not rotate:
            for block in _blocks(values):
                squares += (block.to(wide) - mean).square().sum(dim=0) / count
        if standardize:
            deviation = squares.sqrt()
            scale = torch.where(deviation <= 1e-6 * mean.abs(), torch.ones_like(deviation), deviation)
        shift, factor = mean.to(values.dtype), scale.to(values.dtype)
        if not rotate:
            return cls(shift, factor, None, (squares / scale.square()).to(values.dtype))
        gram = torch.zeros(width, width, dtype=wide)
        for block in _blocks(values):
            standardized = (block.to(wide) - mean) / scale
            gram += standardized.t() @ standardized
        variances, vectors = _largest(gram / count, tolerance)
        return cls(shift, factor, vectors.to(values.dtype).contiguous(), variances.to(values.dtype))

    def apply(self, features: Tensor) -> Tensor:
        """Return the coordinates ``(N, R)`` of features ``(N, D)``, on the device and in the type of the features.

        Those of large features are written to a file that is removed with them, and stay in memory as far as there is
        room.
        """
        if not _is_large(features):
            return self._apply(features)
        shape = len(features), len(self.variances)
        make_folder(cache_folder())
        with tempfile.NamedTemporaryFile(dir=cache_folder()) as file:
            memory = torch.from_file(file.name, shared=True, size=math.prod(shape), dtype=features.dtype)
        result = memory.view(shape)
        for block, coordinates in zip(_blocks(features), torch.split(result, _block_rows(features)), strict=True):
            coordinates.copy_(self._apply(block))
        return result

    def _apply(self, features: Tensor) -> Tensor:
        coordinates = (features - self.mean.to(features)) / self.scale.to(features)
        return coordinates if self.components is None else coordinates @ self.components.to(features)

    def to_features(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights ``(…, K, D)`` and biases ``(…, K)`` on features of heads ``(…, K, R)`` on coordinates."""
        weight = weight if self.components is None else weight @ self.components.to(weight).t()
        weight = weight / self.scale.to(weight)
        return weight, bias - weight @ self.mean.to(weight)

    def from_features(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return heads on coordinates for heads on features; what no component can express is left out."""
        bias = bias + weight @ self.mean.to(weight)
        weight = weight * self.scale.to(weight)
        return (weight if self.components is None else weight @ self.components.to(weight)), bias


def _principal_components(values: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return orthonormal directions ``(D, R)`` and the mean squares ``(R,)`` of values ``(N, D)`` along them."""
    images, width = values.shape
    wide = values.to(widest_float(values.device))
    gram = wide @ wide.t() if images < width else wide.t() @ wide
    squares, vectors = _largest(gram, tolerance)
    if images < width:
        vectors = wide.t() @ (vectors / squares.sqrt())
    return vectors.to(values.dtype).contiguous(), (squares / images).to(values.dtype)


def _largest(gram: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of more than a share of the largest, descending, and their vectors."""
    squares, vectors = torch.linalg.eigh(gram)
    kept = squares > tolerance * squares[-1].clamp(min=torch.finfo(squares.dtype).tiny)
    return squares[kept].flip(0), vectors[:, kept].flip(1)


def _is_large(features: Tensor) -> bool:
    """Return whether features are read by blocks: those in main memory, or in a file, of more than a gigabyte."""
    return features.ndim == 2 and features.device.type == "cpu" and features.numel() > LARGE_VALUES


def _blocks(features: Tensor) -> tuple[Tensor, ...]:
    return torch.split(features, _block_rows(features))


def _block_rows(features: Tensor) -> int:
    return max(1, BLOCK_VALUES // features.shape[1])


class StackedNewton(StackedOptimizer):
    r"""Newton's method with a bound in the place of the Hessian, accelerated.

    The Hessian of a logistic loss is at most a quarter of the second moments of the features (Böhning and Lindsay,
    1988), which is diagonal in their principal components. With :math:`h` that bound and :math:`\lambda` the decay,

    .. math:: \theta_t = y - \eta\, \frac{g(y) + \lambda y}{h + \lambda}, \qquad
        y \leftarrow \theta_t + \beta_t (\theta_t - \theta_{t-1})

    with Nesterov's :math:`\beta_t`, which starts again from 0 for a head whose gradient points against its last
    step (O'Donoghue and Candès, 2015). The gradient must be that of all images; the parameters are the weights and the
    biases of all heads, and ``variances`` those of ``FeatureBasis``.
    """

    def __init__(self, parameters: Sequence[StackedParameter], active: Tensor, variances: Tensor, classes: int) -> None:
        super().__init__(parameters, active)
        if len(parameters) != 2:
            raise InputError("optimizer='newton' is for losses without parameters of their own: use 'adam'.")
        weights = variances.to(parameters[0].values) / (4 * classes)
        bounds = weights.repeat(classes), weights.new_full((classes,), 1 / (4 * classes))
        self.scales = [
            rates / (bound + (0.0 if decay is None else decay))
            for rates, bound, decay in zip(self.rates, bounds, self.decays, strict=True)
        ]
        self.previous = [parameter.values.clone() for parameter in parameters]
        self.ages = torch.ones(len(parameters[0].slots), dtype=parameters[0].values.dtype, device=active.device)

    def state(self) -> dict[str, Tensor]:
        """Return the last iterates, and the age of each head's momentum."""
        return {"ages": self.ages, **{f"previous {number}": values for number, values in enumerate(self.previous)}}

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update all parameters; the heads are in the same order in each."""
        decayed = self.decayed(gradients)
        updated = [
            parameter.values - gradient * scale
            for parameter, gradient, scale in zip(self.parameters, decayed, self.scales, strict=True)
        ]
        moves = [new - old for new, old in zip(updated, self.previous, strict=True)]
        against = sum((gradient * move).flatten(1).sum(dim=1) for gradient, move in zip(decayed, moves, strict=True))
        ages = torch.where(torch.as_tensor(against) > 0, torch.ones_like(self.ages), self.ages)
        following = (1 + (1 + 4 * ages.square()).sqrt()) / 2
        beta, active = (ages - 1) / following, self.active.index_select(0, self.slots[0])
        self.ages.copy_(torch.where(active, following, self.ages))
        for parameter, new, move, old in zip(self.parameters, updated, moves, self.previous, strict=True):
            changed = active[:, None]
            parameter.values.copy_(torch.where(changed, new + beta[:, None] * move, parameter.values))
            old.copy_(torch.where(changed, new, old))


@dataclass(frozen=True, eq=False)
class LogisticPath:
    """The solutions of logistic regression for L penalties."""

    penalties: tuple[float, ...]
    basis: FeatureBasis
    weight: Tensor  # (L, K, R) on the coordinates
    bias: Tensor  # (L, K)
    gradient: NDArray[np.float64]  # (L,) largest norm of the gradient of a problem, over the number of images
    iterations: NDArray[np.int64]  # (L,) of the slowest problem
    converged: NDArray[np.bool_]  # (L,) whether all problems of a penalty converged

    def logits(self, features: Tensor) -> list[Tensor]:
        """Return the logits ``(N, K)`` of images for every penalty."""
        inputs = self.basis.apply(features.to(self.weight))
        return [torch.addmm(bias, inputs, weight.t()) for weight, bias in zip(self.weight, self.bias, strict=True)]

    def head(self, number: int) -> tuple[Tensor, Tensor]:
        """Return weights ``(K, D)`` and biases ``(K,)`` of a penalty, on the features themselves."""
        return self.basis.to_features(self.weight[number], self.bias[number])


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
    r"""Fit logistic regressions with an L2 penalty, for many penalties together.

    .. math:: \min_{W, b}\; \sum_n \ell(W f_n + b,\, y_n) + \tfrac{\lambda}{2} \lVert W \rVert^2

    The loss is summed over images and the bias is not penalized: λ is 1/C of scikit-learn's ``LogisticRegression``. A
    single-label data set is one multinomial problem (softmax) for each λ; of a multi-label one every class is a binary
    problem (sigmoid), from which the unknown labels are left out.

    ``labels`` are ``(N,)`` class numbers of a single-label data set with K ``classes``, by default one more than the
    largest number, or ``(N, K)`` label codes of a multi-label one. A problem ends where the norm of its gradient, over
    N, is at most the ``tolerance``.
    """
    _check(features, labels, penalties)
    inputs = features.detach().to(device, dtype)
    basis = FeatureBasis.fit(inputs, standardize=False, center=True, rotate=True, rank_tolerance=1e-12)
    inputs = torch.cat([basis.apply(inputs), inputs.new_ones(len(inputs), 1)], dim=1)
    stack = _single_label(labels, classes, inputs) if labels.ndim == 1 else _multi_label(labels, inputs)
    order = np.argsort(penalties)
    found, norms, iterations = _solve_path(stack, inputs, np.asarray(penalties)[order], tolerance, max_iterations)
    back = np.argsort(order)
    found, norms, iterations = found[torch.from_numpy(back).to(found.device)], norms[back], iterations[back]
    width = labels.shape[1] if labels.ndim == 2 else classes or int(labels.max()) + 1
    weight = inputs.new_zeros(len(penalties), width, inputs.shape[1] - 1)
    bias = inputs.new_full((len(penalties), width), 0.0 if labels.ndim == 2 else _NEVER)
    weight[:, stack.classes], bias[:, stack.classes] = found[..., :-1], found[..., -1]
    if labels.ndim == 1:  # a constant in all logits changes nothing
        bias[:, stack.classes] -= bias[:, stack.classes].mean(dim=1, keepdim=True)
    return LogisticPath(tuple(map(float, penalties)), basis, weight, bias, norms, iterations, norms <= tolerance)


class _ConvexLoss:
    r"""Cross-entropy of logits ``(P, K, N)``: of a softmax over the classes, :math:`\sum_n (\ln \sum_k e^{x_{kn}} -
    x_{y_n n})`, or of a sigmoid, with K = 1, over the known labels, :math:`\sum_n w_n (\ln(1 + e^{x_n}) - y_n x_n)`.

    All derivatives are functions of the probabilities p, which are therefore computed once at each point; those along a
    direction of the logits need no product with the features. ``targets`` y are 1 where the label is present, of one
    problem under a softmax and of each, ``(P, 1, N)``, under a sigmoid; ``known`` is None where all labels are.
    """

    def __init__(self, targets: Tensor, known: Tensor | None = None, *, softmax: bool = False) -> None:
        self.targets, self.known, self.softmax = targets, known, softmax

    def _weighted(self, values: Tensor) -> Tensor:
        return values if self.known is None else values.mul_(self.known)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1) if self.softmax else torch.sigmoid(logits)

    def gradient(self, p: Tensor) -> Tensor:
        """Return the derivatives in the logits, p − y."""
        return self._weighted(p - self.targets)

    def directional(self, p: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and second derivative along a direction, ``(P,)`` each."""
        if self.softmax:
            weighted = p * direction
            mean = weighted.sum(dim=1)
            first = (mean - (self.targets * direction).sum(dim=1)).sum(dim=1)
            return first, (weighted.mul_(direction).sum(dim=1) - mean.square()).sum(dim=1)
        first = (self.gradient(p) * direction).sum(dim=(1, 2))
        second = self._weighted(torch.addcmul(p, p, p, value=-1)).mul_(direction) * direction
        return first, second.sum(dim=(1, 2))

    def curvature(self, p: Tensor) -> Tensor:
        """Return the sum over images of the second derivative in each logit, p (1 − p)."""
        return self._weighted(torch.addcmul(p, p, p, value=-1)).sum(dim=2)

    def select(self, problems: Tensor) -> _ConvexLoss:
        """Return the loss of some problems."""
        if self.softmax:
            return self
        return _ConvexLoss(self.targets[problems], None if self.known is None else self.known[problems])


class _Stack(NamedTuple):
    """The problems of one penalty: their loss, the initial biases ``(p, r)``, and the classes of their logits."""

    loss: _ConvexLoss
    bias: Tensor
    classes: Tensor


def _single_label(labels: NDArray[np.integer], classes: int | None, inputs: Tensor) -> _Stack:
    """Return the multinomial problem over the classes that occur."""
    present, targets = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        raise InputError("all training images show the same class: there is nothing to distinguish.")
    if present[0] < 0 or (classes is not None and present[-1] >= classes):
        raise InputError(f"class numbers go from 0 to K - 1, not from {present[0]} to {present[-1]}.")
    bias = torch.from_numpy(np.log(np.bincount(targets) / len(targets))).to(inputs)
    shown = torch.from_numpy(targets == np.arange(len(present))[:, None]).to(inputs)
    index = torch.from_numpy(present.astype(np.int64)).to(inputs.device)
    return _Stack(_ConvexLoss(shown[None], softmax=True), bias[None], index)


def _multi_label(labels: NDArray[np.integer], inputs: Tensor) -> _Stack:
    """Return a binary problem for each class that is known to be present in one image and absent in another."""
    present, absent = (np.count_nonzero(labels == state, axis=0) for state in (PRESENT, ABSENT))
    classes = np.flatnonzero((present > 0) & (absent > 0))
    if not len(classes):
        raise InputError("no class is known to be present in one training image and absent in another.")
    codes = torch.from_numpy(np.ascontiguousarray(labels.T[classes])).to(inputs.device)[:, None]
    known = None if bool((codes != UNKNOWN).all()) else (codes != UNKNOWN).to(inputs.dtype)
    odds = torch.from_numpy(np.log(present[classes] / absent[classes])).to(inputs)
    index = torch.from_numpy(classes).to(inputs.device)
    return _Stack(_ConvexLoss((codes == PRESENT).to(inputs.dtype), known), odds[:, None], index)


def _solve_path(
    stack: _Stack, inputs: Tensor, penalties: NDArray[np.float64], tolerance: float, max_iterations: int
) -> tuple[Tensor, NDArray[np.float64], NDArray[np.int64]]:
    """Solve the problems of rising penalties: some first, then those between, which start from their neighbors.

    Returns parameters ``(L, p · r, R + 1)``, the largest norm of a gradient and the most iterations of each penalty.
    """
    count, (each, rows), width = len(penalties), stack.bias.shape, inputs.shape[1]
    parameters = inputs.new_zeros(count, each * rows, width)
    parameters[:, :, -1] = stack.bias.flatten()
    norms, iterations, solved = np.zeros(count), np.zeros(count, dtype=np.int64), list[int]()
    for stride in _STRIDES:
        left = [number for number in range(0, count, stride) if number not in solved]
        for number in left:
            if near := [each for each in (number - stride, number + stride) if each in solved]:
                parameters[number] = parameters[near].mean(dim=0)
        step = max(1, _penalties_at_once(len(left), stack, inputs))
        for numbers in (left[first : first + step] for first in range(0, len(left), step)):
            values = torch.from_numpy(penalties[numbers]).to(inputs).repeat_interleave(each)
            penalty = values[:, None, None].expand(-1, 1, width).clone()
            penalty[:, :, -1] = 0.0
            loss = stack.loss.select(torch.arange(each, device=inputs.device).repeat(len(numbers)))
            start = parameters[numbers].view(-1, rows, width)
            found, norm, steps = _minimize(_Problems(loss, inputs, penalty, start), tolerance, max_iterations)
            parameters[numbers] = found.view(-1, each * rows, width)
            norms[numbers] = norm.view(-1, each).amax(dim=1).cpu().numpy()
            iterations[numbers] = steps.view(-1, each).amax(dim=1).cpu().numpy()
        solved += left
    return parameters, norms, iterations


def _penalties_at_once(count: int, stack: _Stack, inputs: Tensor) -> int:
    """Return how many penalties are solved together: all of them, or as many as fit into half of the free memory."""
    size = inputs.element_size() * (6 * len(inputs) + (2 * HISTORY + 8) * inputs.shape[1])
    needed, free = stack.bias.numel() * size, free_memory(inputs.device)
    if needed > free:
        raise InputError(
            f"one penalty takes {format_bytes(needed)}, and {format_bytes(free)} are free: take fewer images."
        )
    return min(count, free // 2 // needed)


def _check(features: Tensor, labels: NDArray[np.integer], penalties: Sequence[float]) -> None:
    if features.ndim != 2 or labels.ndim not in (1, 2) or len(labels) != len(features) or len(labels) < 2:
        raise InputError(f"features {tuple(features.shape)} and labels {labels.shape}: a row for each image is needed.")
    if not len(penalties) or not all(0 < value < math.inf for value in penalties):
        raise InputError(f"penalties {list(penalties)}: give finite numbers above 0.")
    if not bool(features.isfinite().all()):
        raise InputError("some features are not finite.")


def _minimize(problems: _Problems, tolerance: float, max_iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """Solve problems until the norm of each gradient, over the number of images, is at most the tolerance.

    Returns the parameters ``(P, r, R)``, those norms ``(P,)``, and the iterations ``(P,)``.
    """
    found = problems.parameters.clone()
    best, age = found.new_full((len(found),), torch.inf), found.new_zeros(len(found))
    norms, iterations = best.clone(), torch.zeros(len(found), dtype=torch.int64, device=found.device)
    for iteration in range(max_iterations + 1):
        norm = problems.gradient.flatten(1).norm(dim=1) / len(problems.features)
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
    return found, norms, iterations


class _Pair(NamedTuple):
    """A step ``(P, Q)``, the change of the gradient over it, and one over their product; 0 where it is not used."""

    step: Tensor
    change: Tensor
    weight: Tensor


class _Problems:
    r"""L-BFGS for many penalized problems at once (Liu and Nocedal, 1989): those that have not ended.

    Every problem has parameters, a history, a line search and an end of its own; what they share is the product with
    the features, which is one matrix product for all. With logits :math:`x = \theta z`,

    .. math:: f(\theta) = \ell(x) + \tfrac12 \sum_j \lambda_j \theta_j^2, \qquad
        \nabla f = \frac{\partial \ell}{\partial x}\, z + \lambda\, \theta

    Logits are linear in the parameters, so an iteration takes two products whatever its line search: that of the
    direction with the features, and that of the new derivatives. In principal components the diagonal
    :math:`h\, s_j^2 + \lambda_j`, with h the mean second derivative of the loss and :math:`s_j^2` the sum of squares of
    a feature, is close to the Hessian, and its inverse takes the place of the identity that L-BFGS usually starts from.
    ``penalties`` are ``(P, 1, R)``, 0 for a parameter that is not penalized; the initial parameters ``(P, r, R)``.
    """

    def __init__(self, loss: _ConvexLoss, features: Tensor, penalties: Tensor, start: Tensor) -> None:
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
        weight = torch.where(product > smallest, 1 / product, torch.zeros_like(product))
        self.history.append(_Pair(step, difference, weight))

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
