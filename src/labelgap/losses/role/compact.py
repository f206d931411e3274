"""The estimate of `role` where most entries of an image share a value: its cost, its derivatives and its steps.

``CompactRows`` stores it; ``move_estimates`` is what a step does to it, with one batch or several that are accumulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelgap.core.distributed import all_sum, gather_rows
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT
from labelgap.labels.sparse import entries_of_rows
from labelgap.losses.base.compact_rows import CompactRows, EstimateRows, compress_rows
from labelgap.losses.base.mixture import SOFTPLUS_THRESHOLD
from labelgap.losses.base.terms import Number, per_head

KNOWN_LOGIT = math.log(0.995 / 0.005)
MIN_PROBABILITY = 1e-5
MAX_LOGIT = math.log((1 - MIN_PROBABILITY) / MIN_PROBABILITY)
HALF_STEP = 0.01
"""An estimate moves by half a step where its probability differs by so much from the classifier's."""
ADAM_BETA = 0.999
"""Adam's decay of squared gradients."""


class KnownEntries(NamedTuple):
    """The known labels of a batch.

    Attributes:
        places: ``(C,)``, ``row · K + class``.
        present: ``(C,)`` whether it is present, else absent.
    """

    places: Tensor
    present: Tensor


def known_entries(table: LabelTable, index: Tensor, device: torch.device) -> KnownEntries:
    """Return the known labels of some rows of a table; the host looks them up."""
    entries, lengths, _ = entries_of_rows(table.starts, index.cpu().numpy())
    places = np.repeat(np.arange(len(index)) * len(table.classes), lengths) + table.columns[entries]
    found = torch.from_numpy(places), torch.from_numpy(table.values[entries] == PRESENT)
    return KnownEntries(*(part.to(device) for part in found))


class CompactTerms(NamedTuple):
    """What a batch with a compact estimate gives.

    Attributes:
        cost: ``(…)`` the mean over all entries of all processes.
        gradient: ``(…, B, K)`` the derivative in the logits of the sum over all entries.
        estimate: ``(…, B, K)`` the logits φ.
        direction: ``(…, B, K)`` against which φ moves, from −1 to 1; 0 where the label is known.
        entries: how many the cost is the mean of.
    """

    cost: Tensor
    gradient: Tensor
    estimate: Tensor
    direction: Tensor
    entries: Tensor


def compact_terms(logits: Tensor, rows: EstimateRows, known: KnownEntries, expected_positives: Number) -> CompactTerms:
    r"""Compute the cost of `role` and its derivatives where most entries of an image share an estimate.

    With P the mean number of positives of the batch under p, and :math:`[y]` 1 for known labels,

    .. math:: \ell = \tfrac12 \bigl\{ (1 + [y]) (\ln(1 + e^x) + \ln(1 + e^\varphi)) - (q + [y=1])\,x
        - (p + [y=1])\,\varphi \bigr\}

    .. math:: \frac{\partial}{\partial x} = \tfrac12 \bigl\{ (1 + [y])\,p - q - [y=1]
        + \tfrac{2}{K} (P - \kappa)\, p\,(1-p) \bigr\}

    and the same in φ with p and q exchanged. Functions of φ are evaluated for the stored entries and once for the
    others of an image; the sums over all entries are then corrected at the known ones.
    """
    classes, values, rest = rows.classes, *(part.to(logits.dtype) for part in rows[1:])
    count, shared = logits.shape[-1], logits.shape[-1] - classes.shape[-1]
    kappa = per_head(expected_positives, logits)[..., 0, 0]
    p, phi = torch.sigmoid(logits), rows.dense(count, values, rest)
    q, q_rest = values.sigmoid(), rest.sigmoid()
    cost = _softplus_sum(logits) + softplus(values).sum(-1)
    cost += (shared * softplus(rest) - q_rest * logits.sum(-1, keepdim=True) - rest * p.sum(-1, keepdim=True)).sum(-1)
    cost -= (logits.gather(-1, classes) * (q - q_rest) + p.gather(-1, classes) * (values - rest)).sum(-1)
    total_q = (q.sum(-1) + shared * q_rest.sum(-1)).sum(-1)
    # at known entries: from the cost of an unknown one to that of a known one, with φ at its fixed value
    x_k, p_k, before = (part.flatten(-2).index_select(-1, known.places) for part in (logits, p, phi))
    y = known.present.to(logits.dtype)
    fixed, q_fixed, q_before = (2 * y - 1) * KNOWN_LOGIT, 0.005 + 0.99 * y, before.sigmoid()
    cost_k = softplus(x_k, threshold=SOFTPLUS_THRESHOLD) + 2 * softplus(fixed) - softplus(before)
    cost_k -= (q_fixed + y - q_before) * x_k + (p_k + y) * fixed - p_k * before
    total_q = total_q + (q_fixed - q_before).sum(-1)
    phi.flatten(-2).index_copy_(-1, known.places, fixed.expand(before.shape))

    images = all_sum(logits.new_full((), logits.shape[-2])).clamp(min=1)
    sums = all_sum(torch.stack([cost.sum(-1) + cost_k.sum(-1), p.sum(dim=(-2, -1)), total_q]))
    excess = sums[1:] / images - kappa
    slope_p, slope_q = (2 / count * excess)[..., None, None]
    gradient = (p * -slope_p).add_(1 + slope_p).mul_(p).sub_(q_rest).scatter_add_(-1, classes, q_rest - q)
    gradient.flatten(-2).index_add_(-1, known.places, p_k + q_before - q_fixed - y)
    direction = (q_rest + slope_q * q_rest * (1 - q_rest) - p).scatter_(
        -1, classes, q + slope_q * q * (1 - q) - p.gather(-1, classes)
    )
    direction.flatten(-2).index_fill_(-1, known.places, 0.0)
    mean = 0.5 * (sums[0] / (images * count) + (excess / count).square().sum(0))
    direction = direction.div_(direction.abs().add_(HALF_STEP))
    return CompactTerms(mean, gradient.mul_(0.5), phi, direction, images * count)


def _softplus_sum(values: Tensor) -> Tensor:
    r"""Return :math:`\sum_k \ln(1 + e^x) = \sum_k \max(x, 0) + \ln \prod_k (1 + e^{-|x|})` of each row.

    The factors are at most 2, so that a few of them are multiplied before the logarithm, which is the slow part.
    """
    factors = values.abs().neg_().exp_().add_(1)
    for _ in range(4):
        if (half := factors.shape[-1] // 2) and factors.shape[-1] == 2 * half:
            factors = factors[..., :half] * factors[..., half:]
    return values.clamp(min=0).sum(-1) + factors.log_().sum(-1)


class CompactBatch(NamedTuple):
    """A batch of a step, as its backward pass recorded it.

    Attributes:
        rows: ``(B,)`` of the table.
        estimate: ``(…, B, K)`` the logits φ.
        direction: ``(…, B, K)`` against which φ moves.
        places: of the known labels; see ``KnownEntries``.
    """

    rows: Tensor
    estimate: Tensor
    direction: Tensor
    places: Tensor


def move_estimates(compact: CompactRows, batches: Sequence[CompactBatch], step_size: Tensor) -> None:
    r"""Move the estimates of the images of one step, in every process.

    .. math:: \varphi \leftarrow \varphi - s\,\sqrt{(1 - 0.999^T)\,/\,(1 - 0.999)}\; d

    with the direction d, the optimizer's step size s, and T steps with as many images as this one in an epoch.

    Args:
        compact: the storage.
        batches: all that were accumulated for the step.
        step_size: ``(…, 1)``
    """
    rows = [gather_rows(batch.rows.to(compact.slot.device)) for batch in batches]
    steps = len(compact.slot) / max(sum(map(len, rows)), 1)
    factor = math.sqrt((1 - ADAM_BETA**steps) / (1 - ADAM_BETA))
    for index, (_, estimate, direction, places) in zip(rows, batches, strict=True):
        moved = (direction * (-factor * step_size[..., None].to(estimate.dtype))).add_(estimate)
        kept = compress_rows(moved.clamp_(-MAX_LOGIT, MAX_LOGIT), compact.classes.shape[-1], places)
        compact.store(index, EstimateRows(*(gather_rows(part, dim=-2) for part in kept)))
