r"""Cost and derivative of element-wise losses together, a block of entries at a time.

Autograd keeps a buffer for every step of a formula and passes over memory twice for each. A *form* returns the cost of
a block of entries and its derivative in closed form; only the derivative is kept, one buffer as large as the logits,
and the backward pass multiplies it with the gradient of the loss. The formula itself stays in the pure function of the
method, which is what a compiler fuses and what the tests compare the form with. Then follow mixtures in this form, and
the log-sums of exponentials of which the two-way losses are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelgap.core.distributed import all_max, all_sum, world_size
from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.losses.base.mixture import SOFTPLUS_THRESHOLD, Mixture, is_plain, mixture_entries
from labelgap.losses.base.terms import LOWEST, Number, only_where, per_head, reduce, widen

Form = Callable[..., tuple[Tensor, ...]]
"""Takes a block of every input and of every constant; returns new tensors: the cost and its slope in each input."""

BLOCK_ENTRIES = {"cpu": 2**16, "cuda": 2**21}
"""Entries of a block by device: large enough for the calls to cost little; on a CPU its buffers stay in the cache."""
SMALL: Final = 2**16
"""Entries up to which calls cost more than memory, so that torch's own function of a few terms is the fastest."""
KNOWN, MODIFIED = 2, 3
"""Masks beside those of ABSENT and PRESENT: the entries in either of the two, and those that the loss modifies."""
SUMMED: Final = {"mean": 1, "sum": 2}
"""The numbers of torch's own reductions."""


class Fused(NamedTuple):
    """What ``fused`` evaluates, a block of rows at a time."""

    form: Form
    inputs: Sequence[Tensor]  # (…, B, K) each, all of one shape and float type
    constants: Sequence[Tensor] = ()  # what else has a row per image: labels, masks, weights, (…, B, K), (B, K), (B, 1)


@dataclass(frozen=True, eq=False)
class KernelForm:
    """What a kernel needs to know about a loss. Tensors are those of the loss itself."""

    family: str  # the name of a family of kernels
    options: tuple[float | Tensor, ...] = ()  # of the family; other options are another compiled kernel
    weights: tuple[float | Tensor, ...] = ()  # of a mixture: u + v, u and w of unknown, absent, present, large entries
    epoch: Tensor | None = None  # its number, int64; None where the cost does not depend on it
    share: Tensor | None = None  # of the unknown entries that are large, as share_ratio gives it
    wanted: int | None = None  # how many unknown entries are large, where no share says so

    @property
    def is_plain(self) -> bool:
        """Whether no option has one value per head."""
        return not any(isinstance(value, Tensor) for value in (*self.options, *self.weights)) and (
            self.share is None or self.share.ndim == 1
        )

    @property
    def selects(self) -> bool:
        """Whether some of the losses count as large."""
        return self.share is not None or self.wanted is not None


def is_fusible(eps: Number) -> bool:
    """Return whether a form may stand for the formula: not in a compiled loss, and without ε inside logarithms."""
    return not (isinstance(eps, Tensor) or eps or torch.compiler.is_compiling())


def fused(parts: Fused, reduction: str = "none") -> Tensor:
    """Return the cost of every entry ``(…, B, K)``, or their "sum" or "mean" over the global batch, ``(…)``.

    Its gradient is the slopes of the form. It can be differentiated once; a second time is an error.
    """
    form, inputs, constants = parts
    *heads, rows, classes = inputs[0].shape
    if heads:
        constants = [values.expand(*heads, *values.shape[-2:]) for values in constants]
    alone = world_size() == 1
    scale = None if reduction == "none" else 1.0 / max(rows * classes, 1) if reduction == "mean" and alone else 1.0

    def evaluate() -> tuple[Tensor, Sequence[Tensor]]:
        block = BLOCK_ENTRIES.get(inputs[0].device.type)
        if block is not None and inputs[0].numel() > block:
            return _in_blocks(form, scale, len(inputs), (*inputs, *constants), block)
        cost, *slopes = form(*inputs, *constants)
        return cost if scale is None else _total(cost, scale), slopes

    cost: Tensor = _Fused.apply(evaluate, scale, *inputs)  # type: ignore[no-untyped-call]
    if scale is None or alone:
        return cost
    total = all_sum(cost)
    return total if reduction == "sum" else total / all_sum(total.new_full((), rows * classes)).clamp(min=1)


def with_gradient(logits: Tensor, cost: Tensor, gradient: Tensor) -> Tensor:
    """Return a cost ``(…)`` whose derivative in the logits ``(…, B, K)`` was computed along with it."""
    result: Tensor = _Fused.apply(lambda: (cost.clone(), [gradient]), 1.0, logits)  # type: ignore[no-untyped-call]
    return result


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, evaluate: Callable[[], tuple[Tensor, Sequence[Tensor]]], scale: float | None, *inputs: Tensor
    ) -> Tensor:
        cost, slopes = evaluate()
        ctx.scale = scale
        ctx.save_for_backward(*slopes)
        return cost

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the slopes, in place where they are of no more use and the gradient is no batch of them."""
        refuse_second_derivative()
        gradient = gradients[0]
        if ctx.scale is not None:
            gradient = gradient if ctx.scale == 1.0 else gradient * ctx.scale
            gradient = gradient[..., None, None] if gradient.ndim else gradient
        transforms = torch._C._functorch
        batched = transforms.is_legacy_batchedtensor(gradient) or transforms.is_functorch_wrapped_tensor(gradient)
        several = is_retained() or batched
        multiply = Tensor.mul if several else Tensor.mul_
        slopes = zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        return None, None, *(multiply(slope, gradient) if needed else None for slope, needed in slopes)


def closed_gradient(cost: Tensor, logits: Tensor) -> Tensor | None:
    """Return the derivative of a cost in ``logits``, a leaf and all it depends on, if it was computed along; once."""
    node: Any = cost.grad_fn
    if not isinstance(node, vars(_Fused)["_backward_cls"]) or node.scale is None or cost._backward_hooks:
        return None
    if [getattr(source, "variable", None) is logits for source, _ in node.next_functions] != [True]:
        return None
    slope: Tensor = node.saved_tensors[0]
    return slope.mul_(node.scale)


def is_retained() -> bool:
    """Return whether the graph is kept for another backward pass; true where PyTorch does not tell."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return asked is None or bool(asked())


def _total(cost: Tensor, scale: float) -> Tensor:
    """Return the sum over the batch of each head, times ``scale``: 1, or what makes it the mean."""
    total = cost.sum() if cost.ndim == 2 else cost.sum(dim=(-2, -1))
    return total if scale == 1.0 else total * scale


def _in_blocks(
    form: Form, scale: float | None, count: int, tensors: Sequence[Tensor], block: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the cost, of every entry or summed, and the slopes in ``count`` inputs, by blocks of rows."""
    like = tensors[0]
    step = max(1, block * like.shape[-2] // like.numel())
    total = torch.empty_like(like) if scale is None else like.new_zeros(like.shape[:-2])
    found = [*([total] if scale is None else []), *(torch.empty_like(like) for _ in range(count))]
    targets = zip(*(torch.split(values, step, dim=-2) for values in found), strict=True)
    for parts, results in zip(
        zip(*(torch.split(values, step, dim=-2) for values in tensors), strict=True), targets, strict=True
    ):
        values = form(*parts)
        if scale is not None:
            total.add_(_total(values[0], 1.0))
            values = values[1:]
        for target, part in zip(results, values, strict=True):
            target.copy_(part)
    return (total, found[1:]) if scale is None else (total.mul_(scale), found)


def refuse_second_derivative() -> None:
    """Raise ``InputError`` in a backward pass that builds a graph of its own (``create_graph=True``)."""
    if torch.is_grad_enabled():
        raise InputError(
            "a loss can be differentiated once: its first derivative is computed in closed form. For second "
            "derivatives (create_graph=True) take the formula of the method in labelgap.functional."
        )


def with_heads(logits: Tensor, *numbers: Number) -> Tensor:
    """Give logits ``(B, K)`` the leading axes of numbers that have one value per head."""
    shapes = [number.shape for number in numbers if not isinstance(number, int | float)]
    if all(len(shape) <= logits.ndim - 2 for shape in shapes):
        return logits
    heads = torch.broadcast_shapes(logits.shape[:-2], *shapes)  # type: ignore[no-untyped-call]
    return logits.expand(*heads, *logits.shape[-2:])


def over_batch(value: Number, like: Tensor) -> Number:
    """Return a plain number as it is, and a tensor of shape ``(…)`` so that it broadcasts over its head's batch."""
    return value if isinstance(value, int | float) else per_head(value, like)


def mask_of(labels: Tensor, like: Tensor, code: int = PRESENT) -> Tensor:
    """Return 1 where a label has a state and 0 elsewhere, in the float type of ``like``: faster than a mask."""
    if labels.dtype != torch.int8:
        if code == KNOWN:
            return mask_of(labels, like, ABSENT).add_(mask_of(labels, like))
        return labels.detach().to(like.dtype, copy=True).eq_(code)
    target = torch.empty_like(labels, dtype=like.dtype)
    if code == KNOWN:  # as bytes without a sign unknown labels are above 1
        return torch.le(labels.view(torch.uint8), _scalar(PRESENT, torch.uint8), out=target)
    return torch.eq(labels, _scalar(code, torch.int8), out=target)


def as_float(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask as 1 and 0, in the float type of ``like``."""
    return mask.view(torch.uint8).to(like.dtype)


def linear(values: Tensor, slope: Number, offset: Number) -> Tensor:
    """Return ``slope · values + offset``, in one call for plain numbers on the CPU."""
    if isinstance(slope, Tensor) or isinstance(offset, Tensor) or not values.is_cpu:
        return values * slope + offset
    return torch.add(_scalar(float(offset), values.dtype), values, alpha=slope)


def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    """Return a number as a tensor, which is kept: making one in every call takes as long as thousands of entries."""
    if torch._C._len_torch_dispatch_stack():  # a mode such as that of fake tensors wants, and makes, one of its own
        return _new_scalar(value, dtype)
    return _kept_scalar(value, dtype)


def _new_scalar(value: float, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # a later call may keep it for its backward pass
        return torch.full((), value, dtype=dtype, device="cpu")  # the default device may be another


_kept_scalar = lru_cache(maxsize=1024)(_new_scalar)


def add_product(total: Tensor, first: Tensor, second: Tensor, factor: Number) -> Tensor:
    """Add ``first · second · factor`` in place; the factor is a plain number or broadcasts."""
    if isinstance(factor, Tensor):
        return total.addcmul_(first * factor, second)
    return total.addcmul_(first, second, value=factor)


def focused_form(
    logits: Tensor, gamma: Number, *, probability: Tensor | None = None, detach: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Return the focused log-likelihood g of a present label, and the derivative of its cost −g.

    .. math:: g = (1-p)^\gamma \ln p, \qquad -g' = (1-p)^\gamma \bigl(p - 1 + \gamma\,p \ln p\bigr),
        \quad -(1-p)^{\gamma+1} \text{ if the focus is detached}

    The cost is that of ``focused_cost``. ``gamma`` is a plain number or broadcasts over the logits. The logarithm is
    that of p, and x itself where p is too small for it. ``probability`` is p, where it is known.
    """
    probability = torch.sigmoid(logits) if probability is None else probability
    log, slope = _log(probability, logits), linear(probability, 1.0, -1.0)
    if not isinstance(gamma, Tensor) and gamma == 0:
        return log, slope
    squared = not isinstance(gamma, Tensor) and gamma == 2
    focus = slope.square() if squared else (log - logits).clamp_(max=0.0).mul_(gamma).exp_()
    if not detach:
        add_product(slope, probability, log, gamma)
    return log.mul_(focus), slope.mul_(focus)


def power_form(logits: Tensor, probability: Tensor, gamma: Number) -> Tensor:
    r"""Return :math:`p^\gamma`; ``gamma`` is a plain number or broadcasts over the logits."""
    if not isinstance(gamma, Tensor) and gamma in (0, 1, 2, 4):
        square = probability.square() if gamma > 1 else probability
        return torch.ones_like(probability) if gamma == 0 else square.square_() if gamma == 4 else square
    return _log(torch.sigmoid(logits), logits).mul_(gamma).exp_()


def _log(probability: Tensor, logits: Tensor) -> Tensor:
    r"""Return :math:`\ln p`, to the precision of p: with one exponential, and finite for logits of −10,000."""
    return torch.minimum(probability.clamp(min=torch.finfo(logits.dtype).tiny).log_(), logits)


def fused_mixture(
    logits: Tensor,
    labels: Tensor,
    mixture: Mixture,
    *,
    modified: Tensor | None = None,
    eps: Number = 0.0,
    reduction: str = "none",
) -> Tensor:
    """Return what ``mixture_entries`` returns, reduced and faster; entries that are ``modified`` are unknown."""
    exact, expected, estimate = reduction == "none", mixture.expected_positives, mixture.label_estimate
    if not is_fusible(eps) or mixture.soft is not None or (exact and (expected is not None or estimate is not None)):
        return reduce(mixture_entries(logits, labels, mixture, modified=modified, eps=eps), reduction)
    logits, plain = widen(logits), mixture.plain_rows
    simple = not exact and expected is None and estimate is None and plain is not None
    if simple and logits.ndim == 2 and 0 < logits.numel() <= SMALL and world_size() == 1:
        columns = _target_columns(plain)
        if columns is not None:
            both, target = _weights(columns, logits, labels, modified)
            if not isinstance(target, Tensor):
                target = torch.full_like(logits, target, requires_grad=False)
            if isinstance(both, Tensor):
                weight: Tensor | None = both
            else:
                weight = None if both == 1 else _scalar(both, logits.dtype).to(logits.device)
            return torch.binary_cross_entropy_with_logits(logits, target, weight, None, SUMMED[reduction])
    if plain is None or isinstance(expected, Tensor):
        numbers = [weight for row in mixture.rows for weight in row]
        logits = with_heads(logits, *numbers, 0.0 if expected is None else expected)
    constants = [labels] if modified is None else [labels, modified]
    inputs = [logits] if estimate is None else [logits, estimate.logits]
    form = _form(mixture, logits, exact) if estimate is None else _estimate_form(mixture, logits)
    if expected is None:
        return fused(Fused(form, inputs, constants), reduction)
    rows, classes = logits.shape[-2:]
    host = logits.ndim == 2 and logits.is_cpu  # plain numbers are faster
    with torch.no_grad():  # e = (P − κ) / K of each input, P positives per image of the global batch; 0 without images
        probabilities = [torch.sigmoid(values) for values in inputs]
        measured = [*(all_sum(p.sum(dim=(-2, -1))) for p in probabilities), all_sum(logits.new_full((), rows))]
        *totals, count = [float(value) for value in measured] if host else measured
        images, some = (
            (max(count, 1), min(count, 1)) if isinstance(count, float) else (count.clamp(min=1), count.clamp(max=1))
        )
        expected = expected.to(logits.dtype) if isinstance(expected, Tensor) else expected
        excess = [(total / images - expected) / classes * some for total in totals]
        penalty = sum(e * e for e in excess) * mixture.expected_weight
        steep = [over_batch(2.0 * mixture.expected_weight * e, logits) for e in excess]

    def penalized(*parts: Tensor) -> tuple[Tensor, ...]:
        """Add to the slopes what the penalty has, as part of a mean: 2 w e p (1 − p)."""
        count = len(steep)
        inputs, probabilities, constants = parts[:count], parts[count : 2 * count], parts[2 * count :]
        cost, *slopes = form(*inputs, *constants, probabilities=probabilities)
        for slope, p, factor in zip(slopes, probabilities, steep, strict=True):
            _add(slope, torch.addcmul(p, p, p, value=-1.0), factor)
        return cost, *slopes

    cost = fused(Fused(penalized, inputs, [*probabilities, *constants]), reduction)
    return cost + (penalty if reduction == "mean" else penalty * all_sum(logits.new_full((), rows * classes)))


def mixed(
    logits: Tensor,
    both: Number,
    present: Number,
    entropy: Number = 0.0,
    *,
    probability: Tensor | None = None,
    exact: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Return the cost of a block and its derivative in the logits, as new tensors.

    .. math:: \ell = u\,(-\ln p) + v\,(-\ln(1-p)) + w\,H(p) = (u+v+w)\,(\max(x, 0) - \ln c) - (u + w\,p)\,x,
        \qquad c = \max(p, 1-p)

    A sum over many entries takes the logarithm of c, to the precision of p; a single entry takes
    :math:`\ln c = -\ln(1 + e^{-|x|})`, so that a label that is almost certainly right costs little, but not nothing.

    ``both`` is u + v, ``present`` u and ``entropy`` w: plain numbers, or what broadcasts over the logits. A
    ``probability`` p that is known is not overwritten. ``exact`` makes the cost of every single entry exact.
    """
    p = torch.sigmoid(logits) if probability is None else probability
    rest = linear(p, -1.0, 1.0)
    log = logits.abs().neg_().exp_().log1p_().neg_() if exact else torch.maximum(p, rest).log_()
    cost, total, pull = logits.relu(), both, None
    if isinstance(entropy, Tensor) or entropy:
        total, pull = both + entropy, (p * entropy).mul_(logits)
    if isinstance(total, Tensor) or total != 1:
        cost.mul_(total)
    slope = p * both if probability is not None or isinstance(both, Tensor) or both != 1 else p
    if isinstance(present, Tensor) or present:
        slope.sub_(present)
        _add(cost, logits, present, -1.0)
    if pull is not None:
        slope.addcmul_(pull, rest, value=-1.0)
        cost.sub_(pull)
    return _add(cost, log, total, -1.0), slope  # ln c last: it is small beside terms that cancel


def _add(total: Tensor, values: Tensor, factor: Number, sign: float = 1.0) -> Tensor:
    """Add values times a factor and a sign, in place."""
    if isinstance(factor, Tensor):
        return total.addcmul_(values, factor, value=sign)
    return total.add_(values, alpha=sign * factor)


Column = tuple[Number, list[tuple[int, Number]]]
"""The weight of unknown entries, and what the entries of each mask have in addition."""


def _columns(mixture: Mixture, like: Tensor) -> tuple[Column, ...]:
    """Return the weights u + v, u and w."""
    if mixture.plain_rows is not None:
        return _plain_columns(mixture.plain_rows)
    rows = mixture.rows if mixture.modified is not None else mixture.rows[:3]
    return _columns_of([tuple(over_batch(weight, like) for weight in row) for row in rows])


def _columns_of(rows: Sequence[tuple[Number, ...]]) -> tuple[Column, ...]:
    columns = list(zip(*((u + v, u, w) for u, v, w in rows), strict=True))
    has_known = any(isinstance(b, float) and is_plain(c, b) and not is_plain(a, b) for a, b, c, *_ in columns)
    found = []
    for unknown, absent, present, *modified in columns:
        more: list[tuple[int, Number]] = [(ABSENT, absent - unknown), (PRESENT, present - unknown)]
        if has_known:  # that mask is needed anyway
            more = [(KNOWN, absent - unknown), (PRESENT, present - absent)]
        more += [(MODIFIED, weight - unknown) for weight in modified]
        found.append((unknown, [(mask, weight) for mask, weight in more if not is_plain(weight, 0)]))
    return tuple(found)


_plain_columns = lru_cache(maxsize=256)(_columns_of)
"""The same for plain numbers, which are the same in every step."""


@lru_cache(maxsize=256)
def _target_columns(rows: Sequence[tuple[float, float, float]]) -> tuple[Column, ...] | None:
    """Return the weights and targets of a mixture that is a cross-entropy, u + v and u / (u + v); None of others."""
    targets = [u / (u + v) if u + v else 0.0 for u, v, _ in rows]
    halves = tuple((target, u + v - target, 0.0) for target, (u, v, _) in zip(targets, rows, strict=True))
    return None if any(w for _, _, w in rows) else _plain_columns(halves)[:2]


def _weights(columns: tuple[Column, ...], like: Tensor, labels: Tensor, modified: Tensor | None) -> list[Number]:
    """Return the weights of a block's entries; plain numbers where all entries have the same."""
    masks: dict[int, Tensor] = {} if modified is None else {MODIFIED: as_float(modified, like)}
    found = []
    for total, terms in columns:
        for number, weight in terms:
            mask = masks.get(number)
            if mask is None:
                mask = masks[number] = mask_of(labels, like, number)
            if isinstance(total, Tensor) or isinstance(weight, Tensor) or total:
                total = linear(mask, weight, total)
            else:
                total = mask if weight == 1 else mask * weight
        found.append(total)
    return found


def _form(mixture: Mixture, like: Tensor, exact: bool) -> Form:
    columns = _columns(mixture, like)

    def form(
        logits: Tensor, labels: Tensor, modified: Tensor | None = None, *, probabilities: tuple[Tensor, ...] = ()
    ) -> tuple[Tensor, ...]:
        weights = _weights(columns, logits, labels, modified)
        return mixed(logits, *weights, probability=probabilities[0] if probabilities else None, exact=exact)

    return form


def _estimate_form(mixture: Mixture, like: Tensor) -> Form:
    """Classifier and estimate teach each other: ``weight`` times the teacher's p is added to u and taken from v."""
    assert mixture.label_estimate is not None
    columns, weight = _columns(mixture, like)[:2], mixture.label_estimate.weight

    def form(
        logits: Tensor, estimate: Tensor, labels: Tensor, *, probabilities: tuple[Tensor, ...] = ()
    ) -> tuple[Tensor, ...]:
        both, present = _weights(columns, logits, labels, None)
        p, q = probabilities or (torch.sigmoid(logits), torch.sigmoid(estimate))
        from_q, from_p = (torch.add(present, teacher, alpha=weight) for teacher in (q, p))
        certain_p, certain_q = (torch.maximum(values, linear(values, -1.0, 1.0)) for values in (p, q))
        log = certain_p.mul_(certain_q).log_()
        cost = logits.relu().add_(estimate.relu()).mul_(both)
        cost = cost.addcmul_(logits, from_q, value=-1.0).addcmul_(estimate, from_p, value=-1.0)
        return _add(cost, log, both, -1.0), (p * both).sub_(from_q), (q * both).sub_(from_p)

    return form


CLASSES: Final = -1
IMAGES: Final = -2
LEAST_EXPONENT: Final = -87.0
"""Just above the smallest normal float32: on x86 an exponential that underflows takes 30 to 80 times as long."""
CLOSE: Final = 80.0
"""Exponents that differ by less have exponentials, and sums of them, that float32 holds."""


def fused_contrasts(
    logits: Tensor,
    masks: tuple[Tensor, Tensor],
    axes: Sequence[int],
    numbers: tuple[Number, Number, Number],
    reduction: str,
) -> Tensor:
    r"""Return the sum over axes of the mean contrast, or of its "sum"; see ``labelgap.losses.two_way.contrast``.

    ``masks`` are those of the positives and of the negatives, ``numbers`` :math:`T_P`, :math:`T_N` and ε. An entry is a
    positive, a negative or neither, so one exponential per entry and axis serves both sums, relative to the largest
    exponents m; a is 1 over the number of images, or classes, that have a positive:

    .. math:: S_P = \sum_p e^{-x_p/T_P - m_P}, \quad S_N = \sum_n e^{x_n/T_N - m_N}, \quad
        g = T_N (\ln S_N + m_N) + T_P (\ln S_P + m_P) + \varepsilon, \qquad \ell = \sum_g a\,\ln(1 + e^g)

    .. math:: \frac{d\ell}{dx_n} = \sum_{g \ni n} a\,\sigma(g) \frac{e^{x_n/T_N - m_N}}{S_N}, \quad
        \frac{d\ell}{dx_p} = -\sum_{g \ni p} a\,\sigma(g) \frac{e^{-x_p/T_P - m_P}}{S_P}
    """
    logits = with_heads(logits, *numbers)
    with torch.no_grad():
        cost, gradient = _contrasts(logits, masks, axes, numbers, reduction)
    return with_gradient(logits, cost, gradient if world_size() == 1 else gradient.mul_(world_size()))


def _contrasts(
    x: Tensor, masks: tuple[Tensor, Tensor], axes: Sequence[int], numbers: tuple[Number, ...], reduction: str
) -> tuple[Tensor, Tensor]:
    """Return the cost and its derivative in the logits x."""
    t_pos, t_neg, bias = (over_batch(number, x) for number in numbers)
    is_pos, is_neg = (as_float(mask, x) for mask in masks)
    slopes, least = linear(is_pos, -1.0 / t_pos - 1.0 / t_neg, 1.0 / t_neg), torch.finfo(x.dtype).tiny
    ends = _close_ends(x, numbers)
    if ends is None:
        exponents = x * slopes
        sides = [only_where(mask, exponents) for mask in masks]
    else:  # one exponential per entry serves all axes
        low, high = ends
        start, more = -high / float(t_neg), low / float(t_pos) + high / float(t_neg)
        offset = torch.add(x.new_full((), start), is_pos, alpha=more)
        weights = torch.addcmul(offset, x, slopes).exp_()
        of_pos, of_neg = weights * is_pos, weights.mul_(is_neg)
    costs: list[Tensor] = []
    gradient: Any = 0.0
    shares: list[Any] = [0.0, 0.0]
    for axis in axes:
        if ends is None:
            top_pos, top_neg = (_largest(values, axis) for values in sides)
            weights = (exponents - torch.lerp(top_neg, top_pos, is_pos)).clamp_(LEAST_EXPONENT, 0.0).exp_()
            of_pos, of_neg = weights * is_pos, weights.mul_(is_neg)
            shift: Number = top_neg * t_neg + top_pos * t_pos + bias
        else:
            shift = high - low + bias
        sums = [part.sum(dim=axis, keepdim=True) for part in (of_pos, of_neg)]
        sums = sums if axis == CLASSES else [all_sum(part) for part in sums]
        found = sums[0] != 0  # NaN is found
        counts = (found & (sums[1] != 0)).to(x.dtype)
        sum_pos, sum_neg = (part.clamp(min=least) for part in sums)
        gap = _add(sum_neg.log() * t_neg, sum_pos.log(), t_pos).add_(shift)
        if reduction == "mean":
            number = found.sum(dim=(-2, -1), keepdim=True)
            counts = counts / (all_sum(number) if axis == CLASSES else number).clamp(min=1)
        part = (softplus(gap, threshold=SOFTPLUS_THRESHOLD) * counts).sum(dim=(-2, -1))
        costs.append(all_sum(part) if axis == CLASSES else part)
        pull = gap.sigmoid_() * counts
        if ends is None:
            gradient = (of_neg * (pull / sum_neg)).sub_(of_pos * (pull / sum_pos)).add_(gradient)
        else:
            shares = [share + pull / part for share, part in zip(shares, (sum_pos, sum_neg), strict=True)]
    cost = costs[0] if len(costs) == 1 else costs[0] + costs[1]
    return cost, gradient if ends is None else of_neg.mul_(shares[1]).sub_(of_pos.mul_(shares[0]))


def _close_ends(x: Tensor, numbers: tuple[Number, ...]) -> tuple[float, float] | None:
    """Return the lowest and the highest logit of one head on the CPU, if no exponential between them underflows."""
    if x.ndim > 2 or any(isinstance(number, Tensor) for number in numbers) or not (x.is_cpu and x.numel()):
        return None
    low, high = (float(end) for end in x.aminmax())
    return (low, high) if world_size() == 1 and (high - low) / min(numbers[:2]) < CLOSE else None


def _largest(values: Tensor, axis: int) -> Tensor:
    """Return the largest values along an axis, of the global batch; 0 where all are ``LOWEST``."""
    empty = not values.shape[axis]
    top = values.sum(dim=axis, keepdim=True) + LOWEST if empty else values.amax(dim=axis, keepdim=True)
    top = all_max(top) if axis == IMAGES else top
    return torch.where(top <= LOWEST / 2, 0.0, top)
