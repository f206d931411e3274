"""Large loss matters (Kim et al., "Large Loss Matters in Weakly Supervised Multi-Label Classification", CVPR 2022).

A network that takes unknown labels as absent first learns the true negatives, and only later memorizes the false ones.
Until then a large loss on an assumed negative means that the label is probably present. Such losses are rejected
(`ll-r`), or the labels count as present for this step (`ll-ct`). Large losses are relative, a few percent more of them
each epoch, or absolute, those above a threshold that falls with the epochs (`ll-r-abs`, `ll-ct-abs`).
"""

from __future__ import annotations

import math
import warnings
from abc import ABC

import torch
from torch import Tensor

from labelgap.core.distributed import is_main_process
from labelgap.labels import LabelTable
from labelgap.losses.base.mixture import AS_ABSENT, AS_PRESENT, IGNORED, Mixture, mixture_entries
from labelgap.losses.base.mixture_loss import MixtureLoss, mixture_kernel_form
from labelgap.losses.base.option_checks import (
    check_choice,
    check_integer,
    check_number,
    exact_fractions,
    exact_percents,
    exact_share,
)
from labelgap.losses.base.papers import KIM_2022
from labelgap.losses.base.registry import method
from labelgap.losses.base.terms import Number, are_above, is_unknown, on_host, per_head, widen
from labelgap.losses.kernels.form import KernelForm
from labelgap.losses.selection import Count, as_count, count_marked, top_k_mask

REJECTION = Mixture(unknown=AS_ABSENT, modified=IGNORED)
"""Unknown labels count as absent, modified ones not at all."""
CORRECTION = Mixture(unknown=AS_ABSENT, modified=AS_PRESENT)
"""Unknown labels count as absent, modified ones as present."""


def large_loss_count(unknown: Tensor, *, share: Tensor, steps: Count, base: str = "unknown") -> Count:
    r"""Return how many losses are large, :math:`k = \lceil n \cdot s \cdot \delta / 100 \rceil`, of shape ``(…)``.

    ``unknown`` is the mask of the unknown entries; for the others see ``relative_large_losses``.

    Example:
        >>> unknown = torch.tensor([[False, True, True]])
        >>> large_loss_count(unknown, share=exact_percents(20), steps=torch.tensor(1))
        1
    """
    available = count_marked(unknown)
    entries = available if base == "unknown" else count_marked(torch.ones_like(unknown))
    if isinstance(available, int) and share.ndim == 1 and (isinstance(steps, int) or not steps.ndim):
        return min(exact_share(int(entries) * int(steps), share), available)
    return torch.minimum(exact_share(as_count(entries * steps), share), as_count(available))


@torch.no_grad()
def relative_large_losses(
    logits: Tensor,
    labels: Tensor,
    *,
    share: Tensor,
    steps: Count,
    base: str = "unknown",
    largest_share: float | None = None,
) -> Tensor:
    r"""Mark the unknown entries with the :math:`k = \lceil n \cdot s \cdot \delta / 100 \rceil` largest losses.

    Args:
        share: δ percent as ``exact_percents`` gives it; k is exact for the decimal the user wrote.
        steps: ``s``, epochs since the first.
        base: what ``n`` counts in the global batch: "unknown" entries (the paper) or "all" (the authors' code).
        largest_share: a share of the batch that k does not exceed, where it is known: selecting is then faster.

    Known labels are never marked, whatever k is; ties with the k-th largest are.

    Example:
        >>> logits, labels = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[1, -1, -1]])
        >>> relative_large_losses(logits, labels, share=exact_percents(20), steps=torch.tensor(1))
        tensor([[False, False,  True]])
    """
    return large_shares(logits, is_unknown(labels), share, steps, base, largest_share)


def large_shares(
    logits: Tensor, unknown: Tensor, share: Tensor, steps: Count, base: str, largest_share: float | None
) -> Tensor:
    """Return what ``relative_large_losses`` does, for the mask of the unknown entries."""
    if share.ndim > 1:
        logits, _ = torch.broadcast_tensors(logits, share[..., :1, None])  # type: ignore[no-untyped-call]
    count = large_loss_count(unknown, share=share, steps=steps, base=base)
    return top_k_mask(logits, unknown.expand(logits.shape), count, largest_share=largest_share)


@torch.no_grad()
def absolute_large_losses(logits: Tensor, labels: Tensor, *, threshold: Number) -> Tensor:
    r"""Mark the unknown entries whose loss as an assumed negative, :math:`-\ln(1-p)`, is above a threshold.

    Args:
        threshold: a tensor of shape ``(…)`` gives every head its own; at 0 or below every loss is above it.

    Known labels are never marked.

    Example:
        >>> absolute_large_losses(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[1, -1, -1]]), threshold=2.0)
        tensor([[False, False,  True]])
    """
    return large_logits(logits, is_unknown(labels), threshold)


def large_logits(logits: Tensor, unknown: Tensor, threshold: Number) -> Tensor:
    r"""Return what ``absolute_large_losses`` does, for the mask of the unknown entries.

    The loss :math:`\ln(1 + e^x)` is above R where :math:`x > \ln(e^R - 1) = R + \ln(1 - e^{-R})`.
    """
    logits = widen(logits)
    if not isinstance(threshold, Tensor):
        level = threshold + math.log(-math.expm1(-threshold)) if threshold > 0 else -math.inf
        return are_above(logits, level) & unknown
    levels = threshold.to(logits.dtype).clamp(min=0.0)
    levels = levels + (-levels).expm1().neg().log()
    return unknown & (logits > (per_head(levels, logits) if levels.ndim else levels))


def large_loss_rejection(logits: Tensor, labels: Tensor, modified: Tensor, *, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when unknown labels count as absent, but the modified ones cost nothing.

    .. math:: \ell = [\text{not modified}]\;\ell_{AN}

    Args:
        modified: ``(…, B, K)`` mask of unknown entries.

    Example:
        >>> labels = torch.tensor([[1, -1, -1]])
        >>> large_loss_rejection(torch.zeros(1, 3), labels, torch.tensor([[False, True, False]]))
        tensor([[0.6931, 0.0000, 0.6931]])
    """
    return mixture_entries(logits, labels, REJECTION, modified=modified, eps=eps)


def large_loss_correction(logits: Tensor, labels: Tensor, modified: Tensor, *, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when unknown labels count as absent, but the modified ones as present.

    .. math:: \ell = [\text{not modified}]\;\ell_{AN} + [\text{modified}]\,(-\ln p)

    Args:
        modified: ``(…, B, K)`` mask of unknown entries.

    Example:
        >>> labels = torch.tensor([[1, -1, -1]])
        >>> large_loss_correction(torch.tensor([[0.0, 2.0, 2.0]]), labels, torch.tensor([[False, True, False]]))
        tensor([[0.6931, 0.1269, 2.1269]])
    """
    return mixture_entries(logits, labels, CORRECTION, modified=modified, eps=eps)


class RelativeLargeLoss(MixtureLoss, ABC):
    """The relative variants: the assumed negatives with the largest losses are modified. Abstract.

    Args:
        delta_rel: δ, how many more percent of the labels are modified each epoch.
        base: what the percentage is of: the batch's "unknown" entries (the paper) or "all" (the authors' code).
    """

    batch_dependent = True
    epoch_dependent = True
    delta_rel: Number
    share: Tensor

    def __init__(
        self, delta_rel: Number = 0.2, base: str = "unknown", eps: Number = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__(eps, reduction)
        self.base = check_choice("base", base, ("unknown", "all"))
        delta_rel = check_number("delta_rel", delta_rel, 0, 100)
        self.register_options(delta_rel=delta_rel, share=exact_percents(delta_rel))
        self.largest_delta = float(torch.as_tensor(delta_rel).max()) / 100
        self.last_epoch: int | None = None

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Learn the number of epochs."""
        super().prepare(table, epochs, seed)
        self.last_epoch = epochs

    def steps(self, logits: Tensor) -> Count:
        """Return how many epochs have passed since the first, as a plain number where the host knows it."""
        return self.epoch - 1 if on_host(logits) else self.epoch_tensor - 1

    def largest_share(self, logits: Tensor, most_steps: int | None = None) -> float | None:
        """Return a share of the batch that k does not exceed: in this epoch, or in any where the step is recorded.

        A compiled step, and one that is captured as a CUDA graph, follow the epoch without being recorded again.
        """
        capturing = logits.is_cuda and torch.cuda.is_current_stream_capturing()
        epoch = self.last_epoch if capturing or torch.compiler.is_compiling() else self.epoch
        if epoch is None:
            return None
        steps = epoch - 1 if most_steps is None else min(epoch - 1, most_steps)
        return min(1.0, steps * self.largest_delta)

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries with the k largest losses; none in the first epoch."""
        largest = self.largest_share(logits)
        return large_shares(logits, is_unknown(labels), self.share, self.steps(logits), self.base, largest)

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """The k-th largest logit is found first; no kernel has "all" as the base."""
        form = mixture_kernel_form(self.weights(classes), self.epoch_tensor, self.share)
        return form if self.base == "unknown" else None

    def modified_count(self, labels: Tensor) -> Tensor | None:
        """Return k; the order of the losses is that of the logits."""
        steps = self.epoch_tensor - 1
        return as_count(large_loss_count(is_unknown(labels), share=self.share, steps=steps, base=self.base))


class AbsoluteLargeLoss(MixtureLoss, ABC):
    r"""The absolute variants: a loss is large above :math:`R(t) = R_0 - t\,\Delta`. Abstract.

    Args:
        r0: R₀.
        delta_abs: Δ, by how much the threshold falls each epoch.
        warmup: how many epochs at the beginning modify nothing; the paper has none here.
        eps: added inside the logarithm of the cost; the loss that is compared with R(t) is exact.
    """

    epoch_dependent = True
    r0: Number
    delta_abs: Number
    warmup: Number

    def __init__(
        self, r0: Number = 2.0, delta_abs: Number = 0.1, warmup: Number = 0, eps: Number = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__(eps, reduction)
        self.register_options(
            r0=check_number("r0", r0, 0, above=True),
            delta_abs=check_number("delta_abs", delta_abs, 0),
            warmup=check_integer("warmup", warmup),
        )

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Warn when the threshold will reach 0, from where on every unknown label counts as modified."""
        super().prepare(table, epochs, seed)
        start, slope = exact_fractions(self.r0), exact_fractions(self.delta_abs)
        warmup = exact_fractions(self.warmup)
        zero = [epoch for epoch in range(1, epochs + 1) if ((start <= epoch * slope) & (warmup < epoch)).any()]
        if zero and is_main_process():
            warnings.warn(
                f"{self.name}: r0={self.r0} − epoch · delta_abs={self.delta_abs} is not above 0 from epoch "
                f"{zero[0]} of {epochs} on: every unknown label will be modified. Give a smaller delta_abs.",
                stacklevel=2,
            )

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries whose loss is above R(t); none while warming up."""
        return self.large(logits, is_unknown(labels))

    def large(self, logits: Tensor, unknown: Tensor) -> Tensor:
        """Mark those entries of a mask whose loss is above R(t)."""
        plain = not any(isinstance(number, Tensor) for number in (self.r0, self.delta_abs, self.warmup))
        if plain and on_host(logits):
            threshold = self.r0 - self.epoch * self.delta_abs if self.epoch > self.warmup else math.inf
            return large_logits(logits, unknown, threshold)
        threshold = self.r0 - self.epoch_tensor.to(widen(logits).dtype) * self.delta_abs
        return large_logits(logits, unknown, torch.where(self.epoch_tensor > self.warmup, threshold, torch.inf))


@method("ll-r", paper=KIM_2022, summary="large loss, rejection: assumed negatives with a large loss are left out")
class LargeLossRejection(RelativeLargeLoss):
    r"""Mean of ``large_loss_rejection``, for the :math:`k = \lceil n (t-1) \delta / 100 \rceil` largest losses; final.

    Known labels are never modified. Epoch 1 is plain `an`. Options: see ``RelativeLargeLoss``.
    """

    declared = REJECTION


@method("ll-ct", paper=KIM_2022, summary="large loss, temporary correction: they count as present for this step")
class LargeLossCorrection(RelativeLargeLoss):
    r"""Mean of ``large_loss_correction``, for the :math:`k = \lceil n (t-1) \delta / 100 \rceil` largest losses; final.

    Known labels are never modified. Epoch 1 is plain `an`. Options: see ``RelativeLargeLoss``.
    """

    declared = CORRECTION


@method("ll-r-abs", paper=KIM_2022, summary="`ll-r` with a threshold on the loss that falls with the epochs")
class AbsoluteLargeLossRejection(AbsoluteLargeLoss):
    r"""Mean of ``large_loss_rejection``, for losses above :math:`R(t) = R_0 - t\,\Delta`; final.

    Known labels are never modified. Options: see ``AbsoluteLargeLoss``.
    """

    declared = REJECTION


@method("ll-ct-abs", paper=KIM_2022, summary="`ll-ct` with a threshold on the loss that falls with the epochs")
class AbsoluteLargeLossCorrection(AbsoluteLargeLoss):
    r"""Mean of ``large_loss_correction``, for losses above :math:`R(t) = R_0 - t\,\Delta`; final.

    Known labels are never modified. Options: see ``AbsoluteLargeLoss``.
    """

    declared = CORRECTION
