"""How many positives to expect, and the online estimation of labels (Cole et al., "Multi-Label Learning from Single
Positive Labels", CVPR 2021).

Where only positives are known, learning from them alone predicts everything as present. One number prevents it: how
many labels an image has on average. A batch whose probabilities add up to more or to less is penalized (`epr`).

Regularized online label estimation (`role`) takes the unknown labels as parameters, learned together with the
classifier: each is the other's teacher, both must agree with the known labels, and both must have the expected number
of positives. Where images × classes are many, most entries of an image share an estimate.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from labelgap.core.distributed import all_sum, gather_rows, world_size
from labelgap.core.errors import InputError
from labelgap.core.seeds import derive_seed
from labelgap.core.text import pluralize
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT
from labelgap.labels.sparse import entries_of_rows
from labelgap.losses.base.fused import fused_mixture, with_gradient
from labelgap.losses.base.loss import MixtureLoss
from labelgap.losses.base.mixture import IGNORED, SOFTPLUS_THRESHOLD, LabelEstimate, Mixture, mixture_entries
from labelgap.losses.base.state import CompactRows, EstimateRows, PerImageState, compress_rows
from labelgap.losses.base.terms import Number, check_choice, check_integer, check_number, per_head

MIN_IMAGES = 100
"""Fully labeled images that are enough to estimate the number of positives, where others are labeled in part."""
INITIAL_RANGE = math.log(0.6 / 0.4)
KNOWN_LOGIT = math.log(0.995 / 0.005)
MIN_PROBABILITY = 1e-5
MAX_LOGIT = math.log((1 - MIN_PROBABILITY) / MIN_PROBABILITY)
HALF_STEP = 0.01
"""An estimate moves by half a step where its probability differs by so much from the classifier's."""
ADAM_BETA = 0.999
"""Adam's decay of squared gradients."""


def mean_positives(table: LabelTable) -> tuple[float, int] | None:
    """Return the mean number of positives over the images whose labels are all known, and how many these are.

    None where they are few and not all: which images were labeled in full may depend on what they show.
    """
    full = np.diff(table.starts) == len(table.classes)
    if not full.any() or (full.sum() < MIN_IMAGES and not full.all()):
        return None
    present = np.bincount(table.rows[table.values == PRESENT], minlength=len(table))
    return round(float(present[full].mean()), 4), int(full.sum())


class ExpectedPositivesLoss(MixtureLoss, ABC):
    """A mixture that must know the number of positives per image. Abstract.

    Denominator: all B·K entries of the global batch, unknown ones included; the regularizer is divided by K².

    Args:
        expected_positives: κ, positives per image; may be set later, but before ``prepare`` or the first batch.
    """

    batch_dependent = True
    _expected_positives: Number | None = None

    def __init__(self, expected_positives: Number | None = None, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        if expected_positives is not None:
            self.expected_positives = expected_positives

    @property
    def expected_positives(self) -> Number | None:
        """Positives per image; None until it is given, or found by ``initialize_from``."""
        return self._expected_positives

    @expected_positives.setter
    def expected_positives(self, value: Number) -> None:
        self._expected_positives = check_number("expected_positives", value, 0, above=True)

    def initialize_from(self, table: LabelTable, val: LabelTable | None = None) -> dict[str, Any]:
        """Take the mean over fully labeled validation images, where the number is not given and there are enough."""
        return {} if val is None else self._take_mean(val, "fully known val image")

    def _take_mean(self, table: LabelTable, which: str) -> dict[str, Any]:
        found = mean_positives(table) if self._expected_positives is None else None
        if found is None or not found[0]:
            return {}
        self.expected_positives, count = found
        self.initialized = f"expected_positives={found[0]:g}, the mean of {pluralize(count, which)}"
        return {"expected_positives": found[0]}

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Raise ``InputError`` without the number, which fully known images of the table give too, or with one that is
        larger than the number of classes."""
        super().prepare(table, epochs, seed)
        self._take_mean(table, "fully known image")
        check_number("expected_positives", self.required_positives(), 0, len(table.classes))

    def required_positives(self) -> Number:
        """Return the number of positives to expect, or raise an error that says how to give it."""
        if self._expected_positives is None:
            raise InputError(
                f"'{self.name}' must know how many positives an image has on average: give expected_positives=…, or "
                "set `loss_fn.expected_positives` before training. The papers use 1.5 for VOC, 2.9 for COCO, 1.9 for "
                "NUS-WIDE and 31.4 for CUB. It is estimated where val is fully known, or a hundred of its images are."
            )
        return self._expected_positives


class ExpectedPositiveRegularization(ExpectedPositivesLoss):
    r"""Known labels as they are, and probabilities that add up to the expected number of positives; final.

    .. math:: L = \operatorname{mean}\bigl([y=1](-\ln p) + [y=0](-\ln(1-p))\bigr)
        + \Bigl( \frac{\frac1B \sum_{b,k} p_{bk} - \kappa}{K} \Bigr)^2

    Unknown labels count only in the sum of probabilities. The regularizer belongs to the batch, so with "none" every
    entry carries it, and the mean of the matrix is the loss; "sum" is B·K times the mean. Options: see
    ``ExpectedPositivesLoss``.
    """

    def weights(self, classes: int) -> Mixture:
        """Known labels as they are, and the number of positives."""
        return Mixture(unknown=IGNORED, expected_positives=self.required_positives())


def initial_label_logits(table: LabelTable, seed: int, heads: tuple[int, ...] = ()) -> Tensor:
    """Return the ``(…, N, K)`` logits that the estimate starts from.

    Uniform in logit space on ±logit(0.6); an observed positive starts at logit(0.995), an observed negative at
    logit(0.005). Every head starts from the same values. The soft labels of the table, if any, draw the logits towards
    theirs by their weights.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "role"))
    logits = torch.empty(table.shape).uniform_(-INITIAL_RANGE, INITIAL_RANGE, generator=generator)
    if table.soft is not None:
        target, weight = map(torch.from_numpy, table.soft)
        logits = torch.lerp(logits, torch.logit(target).clamp(-KNOWN_LOGIT, KNOWN_LOGIT), weight)
    rows, columns = torch.from_numpy(table.rows), torch.from_numpy(table.columns.astype("int64"))
    logits[rows, columns] = torch.where(torch.from_numpy(table.values == PRESENT), KNOWN_LOGIT, -KNOWN_LOGIT)
    return logits.expand(*heads, *table.shape).clone(memory_format=torch.contiguous_format)


def _mixture(estimate: Tensor, expected_positives: Number) -> Mixture:
    """Half of two mixtures, of the classifier and of the estimate, that are each other's soft targets."""
    return Mixture(
        unknown=(0.0, 0.5, 0.0),
        absent=(0.0, 1.0, 0.0),
        present=(0.5, 0.5, 0.0),
        expected_positives=expected_positives,
        expected_weight=0.5,
        label_estimate=LabelEstimate(estimate, 0.5),
    )


def online_label_estimation(
    logits: Tensor, estimate: Tensor, labels: Tensor, *, expected_positives: Number, eps: Number = 0.0
) -> Tensor:
    """Cost of every entry when a classifier and an estimate of the labels teach each other; see the class.

    ``estimate`` are the logits of the estimated labels, ``(…, B, K)``. The regularizers belong to the batch and are on
    every entry.

    Example:
        >>> labels = torch.tensor([[1, -1]])
        >>> online_label_estimation(torch.zeros(1, 2), torch.zeros(1, 2), labels, expected_positives=1.0)
        tensor([[1.3863, 0.6931]])
    """
    return mixture_entries(logits, labels, _mixture(estimate, expected_positives), eps=eps)


class OnlineLabelEstimation(PerImageState, ExpectedPositivesLoss):
    r"""Classifier ``p`` and label estimate ``q = σ(φ[index])`` teach each other; final.

    .. math:: L = \tfrac12 \bigl\{ \mathrm{known}(p) + \mathrm{known}(q) + \mathrm{ce}(\bar q \to p)
        + \mathrm{ce}(\bar p \to q) + R(p) + R(q) \bigr\}

    where known(r) is the mean cost of the observed labels, ce(t → r) the mean cross-entropy with a target that is a
    constant to the gradient, and R the regularizer of `epr`. φ has a row per training image, and its learning rate is
    ten times that of the head. Adam keeps moving a row by its momentum also in steps that do not contain it.

    **Storage.** A dense φ takes 16 bytes for each image and class, with its gradient and Adam's moments. From
    100 million entries on, φ is *compact*: of each image that training has seen, the ``kept_classes`` highest entries
    and one value for all others; known labels stay at logit(0.995) and logit(0.005). No moments are kept: where an
    entry's gradient g keeps its size, Adam moves it, from one epoch to the next of T steps, by

    .. math:: 10\,\mathrm{lr}\,\operatorname{sign}(g)\,\sqrt{(1 - 0.999^T)\,/\,(1 - 0.999)}

    and so does the compact form, with g / (|g| + 0.01) for the sign and g in units of a probability.

    Args:
        expected_positives: the same as in ``ExpectedPositivesLoss``.
        storage: "dense", "compact", or "auto", which decides by images × classes alone.
        kept_classes: entries of an image that have a value of their own, where φ is compact.
        eps: added inside the logarithms.
        reduction: "mean", "sum" or "none".
    """

    shared_options = frozenset({"kept_classes"})
    phi: torch.nn.Parameter
    compact: CompactRows | None
    step_size: torch.nn.Parameter
    """Its gradient is always −1, so that the optimizer adds the current step size to it; the compact φ takes it."""

    def __init__(
        self,
        expected_positives: Number | None = None,
        storage: str = "auto",
        kept_classes: int = 64,
        eps: Number = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(expected_positives, eps, reduction)
        self.storage = check_choice("storage", storage, ("auto", "dense", "compact"))
        self.kept_classes = int(check_integer("kept_classes", kept_classes, 1))
        self.compact = None
        self._step: list[CompactBatch] = []

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Create φ: dense, or compact where that is asked for or the table is large."""
        super().prepare(table, epochs, seed)
        images, classes = table.shape
        device = self.epoch_tensor.device
        if self.storage == "dense" or (self.storage == "auto" and not self.is_large):
            self.reserve(16)
            self.phi = torch.nn.Parameter(initial_label_logits(table, seed, self.heads).to(device))
            return
        needed = math.prod((*self.heads, images)) * (4 * min(self.kept_classes, classes) + 4) + 4 * images
        purpose = f"keeps the {self.kept_classes} highest estimates of each of {images:,} images"
        self.require_memory(needed, purpose, "Give a smaller kept_classes, or take a method without state (ll-ct, em).")
        self.compact = CompactRows(self.heads, images, classes, self.kept_classes, device)
        self.step_size = torch.nn.Parameter(torch.zeros(*self.heads, 1, device=device))
        self.state_bytes = self.compact.nbytes
        self.state_form = f": the {self.kept_classes} highest estimates of each image (storage=compact), no moments"

    @torch.no_grad()
    def handoff_state(self) -> dict[str, Tensor]:
        """Return the probabilities of the labels, ``(…, N, K)``, or what the compact form stores."""
        self.prepared_table()
        if self.compact is not None:
            return dict(self.compact.state_dict())
        return {"label_probabilities": torch.sigmoid(self.phi)}

    @torch.no_grad()
    def load_handoff_state(self, state: dict[str, Tensor]) -> None:
        """Start from the estimate of an earlier phase; probabilities are clipped to [1e-5, 1 − 1e-5]."""
        self.prepared_table()
        if self.compact is not None:
            self.compact.load_state_dict(state)
            return
        probabilities = state["label_probabilities"].to(self.phi)
        if probabilities.shape != self.phi.shape:
            raise InputError(f"the estimate has shape {tuple(probabilities.shape)}, φ {tuple(self.phi.shape)}.")
        self.phi.copy_(torch.logit(probabilities.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Give φ ten times the rate of the head."""
        self.prepared_table()
        return [{"params": [self.phi if self.compact is None else self.step_size], "lr": 10 * lr}]

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Compare the classifier with the estimate of the rows."""
        if self.compact is not None:
            return self._compact_cost(logits, labels, index)
        mixture = _mixture(self.state_rows("phi", index).to(logits.dtype), self.required_positives())
        return fused_mixture(logits, labels, mixture, eps=self.eps, reduction=self.reduction)

    def _compact_cost(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Compute the cost and both derivatives at once; ``after_step`` moves the estimate."""
        assert self.compact is not None and index is not None
        self.check_rows(index)
        rows, kappa = self.compact.rows(index.to(self.compact.slot.device)), self.required_positives()
        known = known_entries(self.prepared_table(), index, self.epoch_tensor.device)
        with torch.no_grad():
            terms = compact_terms(logits, rows, known, kappa)
        if self.reduction == "none" or isinstance(self.eps, Tensor) or self.eps:
            cost = self.reduce(mixture_entries(logits, labels, _mixture(terms.estimate, kappa), eps=self.eps))
        else:
            scale = world_size() / terms.entries if self.reduction == "mean" else world_size()
            total = terms.cost if self.reduction == "mean" else terms.cost * terms.entries
            cost = with_gradient(logits, total, terms.gradient.mul_(scale))
        unmoved = self.step_size.detach() - self.step_size  # 0, and its derivative is −1
        cost = cost + (unmoved[..., None] / terms.entries if self.reduction == "none" else unmoved.squeeze(-1))
        return self.mark(cost, *CompactBatch(index, terms.estimate, terms.direction, known.places))

    def commit(self, *values: Tensor) -> None:
        """Keep a batch until all of the step are there."""
        self._step.append(CompactBatch(*values))

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the compact estimates of the images of a step, and read the step size anew."""
        super().after_step()
        if self.compact is not None:
            move_estimates(self.compact, self._step, self.step_size)
            self._step.clear()
            self.step_size.zero_()

    def weights(self, classes: int) -> Mixture:
        """The mixture with the estimate of all training images."""
        self.prepared_table()
        return _mixture(self.phi, self.required_positives())

    def mixture(self, classes: int) -> Mixture | None:
        """Return the mixture once the estimate exists, and is dense."""
        return None if self.table is None or self.compact is not None else super().mixture(classes)


# The estimate where most entries of an image share a value: its cost, its derivatives and its steps


class KnownEntries(NamedTuple):
    """The known labels of a batch."""

    places: Tensor  # (C,), row · K + class
    present: Tensor  # (C,) whether it is present, else absent


def known_entries(table: LabelTable, index: Tensor, device: torch.device) -> KnownEntries:
    """Return the known labels of some rows of a table; the host looks them up."""
    entries, lengths, _ = entries_of_rows(table.starts, index.cpu().numpy())
    places = np.repeat(np.arange(len(index)) * len(table.classes), lengths) + table.columns[entries]
    found = torch.from_numpy(places), torch.from_numpy(table.values[entries] == PRESENT)
    return KnownEntries(*(part.to(device) for part in found))


class CompactTerms(NamedTuple):
    """What a batch with a compact estimate gives."""

    cost: Tensor  # (…) the mean over all entries of all processes
    gradient: Tensor  # (…, B, K) the derivative in the logits of the sum over all entries
    estimate: Tensor  # (…, B, K) the logits φ
    direction: Tensor  # (…, B, K) against which φ moves, from −1 to 1; 0 where the label is known
    entries: Tensor  # how many the cost is the mean of


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
    p, phi = torch.sigmoid(logits), rest.expand(logits.shape).contiguous().scatter_(-1, classes, values)
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
    """A batch of a step, as its backward pass recorded it."""

    rows: Tensor  # (B,) of the table
    estimate: Tensor  # (…, B, K) the logits φ
    direction: Tensor  # (…, B, K) against which φ moves
    places: Tensor  # of the known labels; see KnownEntries


def move_estimates(compact: CompactRows, batches: Sequence[CompactBatch], step_size: Tensor) -> None:
    r"""Move the estimates of the images of one step, in every process.

    .. math:: \varphi \leftarrow \varphi - s\,\sqrt{(1 - 0.999^T)\,/\,(1 - 0.999)}\; d

    with the direction d, the optimizer's ``step_size`` s ``(…, 1)``, and T steps with as many images as this one, of
    all ``batches`` that were accumulated for it, in an epoch.
    """
    rows = [gather_rows(batch.rows.to(compact.slot.device)) for batch in batches]
    steps = len(compact.slot) / max(sum(map(len, rows)), 1)
    factor = math.sqrt((1 - ADAM_BETA**steps) / (1 - ADAM_BETA))
    for index, (_, estimate, direction, places) in zip(rows, batches, strict=True):
        moved = (direction * (-factor * step_size[..., None].to(estimate.dtype))).add_(estimate)
        kept = compress_rows(moved.clamp_(-MAX_LOGIT, MAX_LOGIT), compact.classes.shape[-1], places)
        compact.store(index, EstimateRows(*(gather_rows(part, dim=-2) for part in kept)))
