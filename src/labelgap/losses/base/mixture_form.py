r"""Mixtures with their derivative in closed form, block by block (see ``labelgap.losses.base.fused``).

.. math:: \ell = u\,(-\ln p) + v\,(-\ln(1-p)) + w\,H(p) = (u+v+w)\,(\max(x, 0) - \ln c) - (u + w\,p)\,x

.. math:: c = \max(p, 1-p), \qquad \frac{d\ell}{dx} = (u+v)\,p - u - w\,x\,p\,(1-p)

A sum over many entries takes the logarithm of c, to the precision of p; a single entry takes
:math:`\ln c = -\ln(1 + e^{-|x|})`, so that a label that is almost certainly right costs little, but not nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from labelgap.core.distributed import all_sum, world_size
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.losses.base.fused import Form, Fused, fused, is_fusible, linear, mask_of, over_batch, with_heads
from labelgap.losses.base.mixture import Mixture, mixture_entries
from labelgap.losses.base.terms import Number, constant, equals, on_host, reduce, widen

KNOWN, MODIFIED = 2, 3
"""Masks beside those of ABSENT and PRESENT: the entries in either of the two, and those that the loss modifies."""
Column = tuple[Number, list[tuple[int, Number]]]
"""The weight of unknown entries, and what the entries of each mask have in addition."""


def fused_mixture(
    logits: Tensor,
    labels: Tensor,
    mixture: Mixture,
    *,
    modified: Tensor | None = None,
    eps: Number = 0.0,
    reduction: str = "none",
) -> Tensor:
    """Return what ``mixture_entries`` returns, reduced and faster; entries that are ``modified`` are unknown.

    Example:
        >>> fused_mixture(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), Mixture(unknown=(0.0, 0.5, 0.0)))
        tensor([[0.6931, 0.6931, 0.3466]])
    """
    exact, expected, estimate = reduction == "none", mixture.expected_positives, mixture.label_estimate
    if not is_fusible(eps) or (exact and (expected is not None or estimate is not None)):
        return reduce(mixture_entries(logits, labels, mixture, modified=modified, eps=eps), reduction)
    logits = widen(logits)
    if mixture.plain_rows is None or isinstance(expected, Tensor):
        numbers = [weight for row in mixture.rows for weight in row]
        logits = with_heads(logits, *numbers, 0.0 if expected is None else expected)
    constants = [labels] if modified is None else [labels, modified]
    inputs = [logits] if estimate is None else [logits, estimate.logits]
    form = _form(mixture, logits, exact) if estimate is None else _estimate_form(mixture, logits)
    if expected is None:
        return fused(Fused(form, inputs, constants), reduction)
    with torch.no_grad():
        probabilities = [torch.sigmoid(values) for values in inputs]
        excess = _excess(probabilities, expected)
        penalty = sum(e * e for e in excess) * mixture.expected_weight
    steep = [over_batch(2.0 * mixture.expected_weight * e, logits) for e in excess]
    cost = fused(Fused(_penalized(form, steep), inputs, [*probabilities, *constants]), reduction)
    if reduction == "mean":
        return cost + penalty
    return cost + penalty * all_sum(logits.new_full((), logits.shape[-2] * logits.shape[-1]))


def _excess(probabilities: list[Tensor], expected: Number) -> list[Number]:
    r"""Return :math:`e = (P - \kappa) / K` of each input, P positives per image of the global batch."""
    rows, classes = probabilities[0].shape[-2:]
    alone, sums = world_size() == 1, [p.sum(dim=(-2, -1)) for p in probabilities]
    if alone and not rows:
        return [total * 0.0 for total in sums]
    if alone and isinstance(expected, int | float) and not sums[0].ndim and on_host(sums[0]):
        return [(float(total) / rows - expected) / classes for total in sums]
    images = all_sum(sums[0].new_full((), rows)).clamp(min=1)
    expected = expected.to(images.dtype) if isinstance(expected, Tensor) else expected
    return [(total / images - expected) / classes for total in all_sum(torch.stack(sums)).unbind(0)]


def _penalized(form: Form, steep: list[Number]) -> Form:
    r"""Add to the slopes what the penalty :math:`w e^2` has, as part of a mean: :math:`2 w e\,p\,(1-p)`."""
    count = len(steep)

    def penalized(*parts: Tensor) -> tuple[Tensor, ...]:
        inputs, probabilities, constants = parts[:count], parts[count : 2 * count], parts[2 * count :]
        cost, *slopes = form(*inputs, *constants, probabilities=probabilities)
        for slope, p, factor in zip(slopes, probabilities, steep, strict=True):
            _add(slope, torch.addcmul(p, p, p, value=-1.0), factor)
        return cost, *slopes

    return penalized


def mixed(
    logits: Tensor,
    both: Number,
    present: Number,
    entropy: Number = 0.0,
    *,
    probability: Tensor | None = None,
    exact: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the cost of a block and its derivative in the logits, as new tensors.

    Args:
        logits: x
        both: u + v; like the next two, a plain number or what broadcasts over the logits.
        present: u
        entropy: w
        probability: p, where it is known; it is not overwritten.
        exact: whether the cost of each entry is exact, not only that of many together.

    Example:
        >>> mixed(torch.zeros(1), 1.0, 0.0)
        (tensor([0.6931]), tensor([0.5000]))
    """
    p = torch.sigmoid(logits) if probability is None else probability
    rest = constant(1.0, p) - p
    log = _exact_log(logits) if exact else torch.maximum(p, rest).log_()
    if equals(entropy, 0):
        total, pull = both, None
    else:
        total, pull = both + entropy, (p * constant(entropy, p)).mul_(logits)
    cost = _times(logits.relu(), total)
    slope = _times(p, both) if probability is None else p * constant(both, p)
    if not equals(present, 0):
        slope, cost = slope.sub_(constant(present, slope)), _add(cost, logits, present, -1.0)
    if pull is not None:
        slope, cost = slope.addcmul_(pull, rest, value=-1.0), cost.sub_(pull)
    return _add(cost, log, total, -1.0), slope  # ln c last: it is small beside terms that cancel


def _certainty(p: Tensor) -> Tensor:
    """Return the probability of the likelier state."""
    return torch.maximum(p, constant(1.0, p) - p)


def _exact_log(logits: Tensor) -> Tensor:
    """Return the logarithm of the certainty, also where that is so high that it rounds to 1."""
    return logits.abs().neg_().exp_().log1p_().neg_()


def _times(values: Tensor, factor: Number) -> Tensor:
    """Multiply in place."""
    return values if equals(factor, 1) else values.mul_(constant(factor, values))


def _add(total: Tensor, values: Tensor, factor: Number, sign: float = 1.0) -> Tensor:
    """Add values times a factor, in place."""
    if isinstance(factor, Tensor):
        return total.addcmul_(values, factor, value=sign)
    return total.add_(values, alpha=sign * factor)


def _columns(mixture: Mixture, like: Tensor) -> tuple[Column, ...]:
    """Return the weights u + v, u and w."""
    if mixture.plain_rows is not None:
        return _plain_columns(mixture.plain_rows)
    rows = mixture.rows if mixture.modified is not None else mixture.rows[:3]
    return _columns_of([tuple(over_batch(weight, like) for weight in row) for row in rows])


def _columns_of(rows: Sequence[tuple[Number, ...]]) -> tuple[Column, ...]:
    columns = list(zip(*((u + v, u, w) for u, v, w in rows), strict=True))
    has_known = any(isinstance(b, float) and equals(c, b) and not equals(a, b) for a, b, c, *_ in columns)
    found = []
    for unknown, absent, present, *modified in columns:
        more: list[tuple[int, Number]] = [(ABSENT, absent - unknown), (PRESENT, present - unknown)]
        if has_known:  # that mask is needed anyway
            more = [(KNOWN, absent - unknown), (PRESENT, present - absent)]
        more += [(MODIFIED, weight - unknown) for weight in modified]
        found.append((unknown, [(mask, weight) for mask, weight in more if not equals(weight, 0)]))
    return tuple(found)


_plain_columns = lru_cache(maxsize=256)(_columns_of)
"""The same for plain numbers, which are the same in every step."""


def _weights(columns: tuple[Column, ...], like: Tensor, labels: Tensor, modified: Tensor | None) -> list[Number]:
    """Return the weights of a block's entries; plain numbers where all entries have the same."""
    masks: dict[int, Tensor] = {}
    found = []
    for total, terms in columns:
        for number, weight in terms:
            mask = _mask(number, like, labels, modified, masks)
            if equals(total, 0):
                total = mask if equals(weight, 1) else mask * constant(weight, like)
            else:
                total = linear(mask, weight, total)
        found.append(total)
    return found


def _mask(number: int, like: Tensor, labels: Tensor, modified: Tensor | None, masks: dict[int, Tensor]) -> Tensor:
    """Return 1 where an entry has a state, 0 elsewhere; ``masks`` keeps what was computed."""
    if number not in masks:
        if number == KNOWN:
            masks[KNOWN] = mask_of(labels, like, ABSENT).add_(_mask(PRESENT, like, labels, modified, masks))
        elif number == MODIFIED:
            assert modified is not None
            masks[MODIFIED] = modified.view(torch.uint8).to(like.dtype)
        else:
            masks[number] = mask_of(labels, like, number)
    return masks[number]


def _form(mixture: Mixture, like: Tensor, exact: bool) -> Form:
    columns = _columns(mixture, like)

    def form(
        logits: Tensor, labels: Tensor, modified: Tensor | None = None, *, probabilities: tuple[Tensor, ...] = ()
    ) -> tuple[Tensor, ...]:
        both, present, entropy = _weights(columns, logits, labels, modified)
        probability = probabilities[0] if probabilities else None
        return mixed(logits, both, present, entropy, probability=probability, exact=exact)

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
        log = _certainty(p).mul_(_certainty(q)).log_()
        cost = _times(logits.relu().add_(estimate.relu()), both)
        cost = cost.addcmul_(logits, from_q, value=-1.0).addcmul_(estimate, from_p, value=-1.0)
        return _add(cost, log, both, -1.0), (p * constant(both, p)).sub_(from_q), (q * constant(both, q)).sub_(from_p)

    return form
