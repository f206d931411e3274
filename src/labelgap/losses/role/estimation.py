"""The method `role`, and its estimate of all labels as a dense array."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from labelgap.core.distributed import world_size
from labelgap.core.errors import InputError
from labelgap.core.seeds import derive_seed
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT
from labelgap.losses.base.compact_rows import CompactRows
from labelgap.losses.base.fused import with_gradient
from labelgap.losses.base.mixture import LabelEstimate, Mixture, mixture_entries
from labelgap.losses.base.mixture_form import fused_mixture
from labelgap.losses.base.option_checks import check_choice, check_integer
from labelgap.losses.base.papers import COLE_2021
from labelgap.losses.base.per_image_state import PerImageState
from labelgap.losses.base.registry import method
from labelgap.losses.base.terms import Number
from labelgap.losses.expected_positives import ExpectedPositivesLoss
from labelgap.losses.role.compact import (
    KNOWN_LOGIT,
    MIN_PROBABILITY,
    CompactBatch,
    compact_terms,
    known_entries,
    move_estimates,
)

INITIAL_RANGE = math.log(0.6 / 0.4)


def initial_label_logits(table: LabelTable, seed: int, heads: tuple[int, ...] = ()) -> Tensor:
    """Return the ``(…, N, K)`` logits that the estimate starts from.

    Uniform in logit space on ±logit(0.6); an observed positive starts at logit(0.995), an observed negative at
    logit(0.005). Every head starts from the same values.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "role"))
    logits = torch.empty(table.shape).uniform_(-INITIAL_RANGE, INITIAL_RANGE, generator=generator)
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

    Args:
        logits: ``(…, B, K)`` of the classifier.
        estimate: ``(…, B, K)`` logits of the estimated labels.
        expected_positives: positives per image.

    Returns:
        ``(…, B, K)``, not reduced. The regularizers belong to the batch and are on every entry.

    Example:
        >>> labels = torch.tensor([[1, -1]])
        >>> online_label_estimation(torch.zeros(1, 2), torch.zeros(1, 2), labels, expected_positives=1.0)
        tensor([[1.3863, 0.6931]])
    """
    return mixture_entries(logits, labels, _mixture(estimate, expected_positives), eps=eps)


@method(
    "role", paper=COLE_2021, summary="online label estimation: the missing labels are learned along with the classifier"
)
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
        expected_positives: see ``ExpectedPositivesLoss``.
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
