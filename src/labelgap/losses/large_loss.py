"""Large loss matters (Kim et al., "Large Loss Matters in Weakly Supervised Multi-Label Classification", CVPR 2022).

A network that takes unknown labels as absent first learns the true negatives, and only later memorizes the false ones.
Until then a large loss on an assumed negative means that the label is probably present. Such losses are rejected
(`ll-r`), or the labels count as present for this step (`ll-ct`) or permanently (`ll-cp`): what the loss of a step
corrects becomes a revision once the optimizer has taken the step, and every later batch uses it. Large losses are
relative, a few percent more of them each epoch, or absolute, those above a threshold that falls with the epochs
(`ll-r-abs`, `ll-ct-abs`, `ll-cp-abs`).
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from labelgap.core.distributed import gather_rows, is_main_process
from labelgap.labels import LabelTable, Revisions
from labelgap.labels.codes import PRESENT
from labelgap.losses.base.fused import KernelForm, fused_mixture
from labelgap.losses.base.loss import MixtureLoss, TrainingScores, mixture_kernel_form
from labelgap.losses.base.mixture import AS_ABSENT, AS_PRESENT, IGNORED, Mixture, mixture_entries
from labelgap.losses.base.selection import as_count, count_marked, count_share, share_ratio, top_k_mask
from labelgap.losses.base.state import EntryLog, PerImageState
from labelgap.losses.base.terms import (
    Number,
    are_above,
    check_choice,
    check_integer,
    check_number,
    exact_fractions,
    is_unknown,
    per_head,
    widen,
)

REJECTION = Mixture(unknown=AS_ABSENT, modified=IGNORED)
"""Unknown labels count as absent, modified ones not at all."""
CORRECTION = Mixture(unknown=AS_ABSENT, modified=AS_PRESENT)
"""Unknown labels count as absent, modified ones as present."""


@torch.no_grad()
def relative_large_losses(
    logits: Tensor, labels: Tensor, *, delta_rel: Number, steps: int = 1, base: str = "unknown"
) -> Tensor:
    r"""Mark the unknown entries with the :math:`k = \lceil n \cdot s \cdot \delta / 100 \rceil` largest losses.

    ``delta_rel`` is δ, in percent; k is exact for the decimal the user wrote. ``steps`` s are the epochs since the
    first. ``base`` is what n counts in the global batch: "unknown" entries (the paper) or "all" (the authors' code).
    Known labels are never marked, whatever k is; ties with the k-th largest are.
    """
    share = share_ratio(exact_fractions(delta_rel) * steps / 100).to(logits.device)
    return _largest_losses(logits, is_unknown(labels), share, base)


def _largest_losses(
    logits: Tensor, unknown: Tensor, share: Tensor, base: str, largest_share: float | None = None
) -> Tensor:
    """Mark a share of the unknown entries, as ``share_ratio`` gives it; see ``top_k_mask``."""
    if share.ndim > 1:
        logits, _ = torch.broadcast_tensors(logits, share[..., :1, None])  # type: ignore[no-untyped-call]
    available = count_marked(unknown)
    count = count_share(available if base == "unknown" else count_marked(torch.ones_like(unknown)), share)
    if isinstance(count, int) and isinstance(available, int):
        count = min(count, available)
    else:
        count = torch.minimum(as_count(count), as_count(available))
    unknown = unknown if unknown.shape == logits.shape else unknown.expand(logits.shape)
    return top_k_mask(logits, unknown, count, largest_share=largest_share)


@torch.no_grad()
def absolute_large_losses(logits: Tensor, labels: Tensor, *, threshold: Number) -> Tensor:
    r"""Mark the unknown entries whose loss as an assumed negative, :math:`-\ln(1-p)`, is above a threshold.

    At a threshold of 0 or below every loss is above it. Known labels are never marked.
    """
    return _losses_above(logits, is_unknown(labels), threshold)


def _losses_above(logits: Tensor, unknown: Tensor, threshold: Number) -> Tensor:
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

    ``modified`` is a mask ``(…, B, K)`` of unknown entries.
    """
    return mixture_entries(logits, labels, REJECTION, modified=modified, eps=eps)


def large_loss_correction(logits: Tensor, labels: Tensor, modified: Tensor, *, eps: Number = 0.0) -> Tensor:
    r"""Cost of every entry when unknown labels count as absent, but the modified ones as present.

    .. math:: \ell = [\text{not modified}]\;\ell_{AN} + [\text{modified}]\,(-\ln p)

    ``modified`` is a mask ``(…, B, K)`` of unknown entries.

    Example:
        >>> labels = torch.tensor([[1, -1, -1]])
        >>> large_loss_correction(torch.tensor([[0.0, 2.0, 2.0]]), labels, torch.tensor([[False, True, False]]))
        tensor([[0.6931, 0.1269, 2.1269]])
    """
    return mixture_entries(logits, labels, CORRECTION, modified=modified, eps=eps)


class LargeLoss(MixtureLoss, ABC):
    """Assume negative, but unknown labels with a large loss are modified, known labels never. Abstract."""

    epoch_dependent = True

    @abstractmethod
    def large(self, logits: Tensor, unknown: Tensor) -> Tensor:
        """Mark those entries of a mask whose loss as an assumed negative is large."""

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries whose loss is large."""
        return self.large(logits, is_unknown(labels))


class RelativeLargeLoss(LargeLoss, ABC):
    r"""The relative variants: the :math:`k = \lceil n (t-1) \delta / 100 \rceil` largest losses are large. Abstract.

    Epoch t = 1 is plain `an`.

    Denominator: all B·K entries, rejected ones included. mlcpl 0.1.7 has the same for `ll-r` and `ll-ct`, and modifies
    fewer: those above the k-th largest loss, k rounded to the nearest number instead of up; it counts epochs from 0.

    Args:
        delta_rel: δ, how many more percent of the labels are modified each epoch.
        base: what the percentage is of: the batch's "unknown" entries (the paper) or "all" (the authors' code).
    """

    batch_dependent = True
    share: Tensor
    """Of the unknown labels, in this epoch, exactly: its numerator and denominator on the device."""

    def __init__(
        self, delta_rel: Number = 0.2, base: str = "unknown", eps: Number = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__(eps, reduction)
        self.base = check_choice("base", base, ("unknown", "all"))
        self.delta_rel = check_number("delta_rel", delta_rel, 0, 100)
        self._delta = exact_fractions(delta_rel) / 100
        self.register_buffer("share", share_ratio(0 * self._delta), persistent=False)
        self.largest_delta = float(torch.as_tensor(delta_rel).max()) / 100
        self.last_epoch: int | None = None

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Learn the number of epochs."""
        super().prepare(table, epochs, seed)
        self.last_epoch = epochs

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, and the share of the unknown labels that is modified in it."""
        super().set_epoch(epoch)
        self.share.copy_(share_ratio(self.steps(epoch) * self._delta))

    def steps(self, epoch: int) -> int:
        """Return how often the share has grown in an epoch: never in the first."""
        return epoch - 1

    def largest_share(self, logits: Tensor) -> float | None:
        """Return a share of the batch that k does not exceed: in this epoch, or in any where the step is recorded.

        A compiled step, and one that is captured as a CUDA graph, follow the epoch without being recorded again.
        """
        capturing = logits.is_cuda and torch.cuda.is_current_stream_capturing()
        epoch = self.last_epoch if capturing or torch.compiler.is_compiling() else self.epoch
        return None if epoch is None else min(1.0, self.steps(epoch) * self.largest_delta)

    def large(self, logits: Tensor, unknown: Tensor) -> Tensor:
        """Mark the k largest losses; none in the first epoch."""
        return _largest_losses(logits, unknown, self.share, self.base, self.largest_share(logits))

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """The k-th largest logit is found first; no kernel has "all" as the base."""
        return mixture_kernel_form(self.weights(classes), self.share) if self.base == "unknown" else None


class AbsoluteLargeLoss(LargeLoss, ABC):
    r"""The absolute variants: a loss is large above :math:`R(t) = R_0 - t\,\Delta`. Abstract.

    Args:
        r0: R₀.
        delta_abs: Δ, by how much the threshold falls each epoch.
        warmup: how many epochs at the beginning modify nothing; the paper has none here.
        eps: added inside the logarithm of the cost; the loss that is compared with R(t) is exact.
    """

    def __init__(
        self, r0: Number = 2.0, delta_abs: Number = 0.1, warmup: Number = 0, eps: Number = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__(eps, reduction)
        self.r0 = check_number("r0", r0, 0, above=True)
        self.delta_abs = check_number("delta_abs", delta_abs, 0)
        self.warmup = check_integer("warmup", warmup)

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

    def large(self, logits: Tensor, unknown: Tensor) -> Tensor:
        """Mark the losses above R(t); none while warming up."""
        plain = not any(isinstance(number, Tensor) for number in (self.r0, self.delta_abs, self.warmup))
        if plain and logits.is_cpu and not torch.compiler.is_compiling():
            threshold = self.r0 - self.epoch * self.delta_abs if self.epoch > self.warmup else math.inf
            return _losses_above(logits, unknown, threshold)
        threshold = self.r0 - self.epoch_tensor.to(widen(logits).dtype) * self.delta_abs
        return _losses_above(logits, unknown, torch.where(self.epoch_tensor > self.warmup, threshold, torch.inf))


class LargeLossRejection(RelativeLargeLoss):
    """Mean of ``large_loss_rejection`` for the k largest losses; final. See ``RelativeLargeLoss``."""

    declared = REJECTION


class LargeLossCorrection(RelativeLargeLoss):
    """Mean of ``large_loss_correction`` for the k largest losses; final. See ``RelativeLargeLoss``."""

    declared = CORRECTION


class AbsoluteLargeLossRejection(AbsoluteLargeLoss):
    """Mean of ``large_loss_rejection`` for losses above a threshold; final. See ``AbsoluteLargeLoss``."""

    declared = REJECTION


class AbsoluteLargeLossCorrection(AbsoluteLargeLoss):
    """Mean of ``large_loss_correction`` for losses above a threshold; final. See ``AbsoluteLargeLoss``."""

    declared = CORRECTION


class PermanentCorrection(PerImageState, LargeLoss, ABC):
    """Labels that are corrected permanently, with the epoch of the correction. Abstract."""

    declared = CORRECTION
    corrected_in: Tensor  # (…, N, K) int16: the epoch in which a label was corrected, 0 where it was not
    log: EntryLog | None  # the same beyond 100 million images × classes: memory then grows with the corrections

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Allocate two bytes for each image and class, or start an empty log of corrections."""
        super().prepare(table, epochs, seed)
        self.log = EntryLog(self.heads, *table.shape) if self.is_large else None
        if self.log is None:
            self.register_buffer("corrected_in", self.allocate(torch.int16, 0))

    def mixture(self, classes: int) -> Mixture | None:
        """Return None: the corrections of a step are committed after it."""
        return None

    def _corrections(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the masks of what earlier steps corrected and of what this step corrects."""
        unknown = is_unknown(labels)
        self.prepared_table()
        if self.log is None or index is None:
            epochs = self.state_rows("corrected_in", index)
        else:
            self.check_rows(index)
            epochs = self.log.epochs_of(index).to(self.epoch_tensor.device)
        before = are_above(epochs, 0) & unknown
        return before, self.large(logits.detach(), unknown ^ before)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Apply the corrections so far and those of this step; ``after_step`` commits the latter."""
        before, now = self._corrections(logits, labels, index)
        modified = before | now
        mixture = self.laid_over(CORRECTION, index)
        cost = fused_mixture(logits, labels, mixture, modified=modified, eps=self.eps, reduction=self.reduction)
        assert index is not None
        return self.mark(cost, index, now)

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark what earlier steps corrected and what this step corrects."""
        before, now = self._corrections(logits, labels, index)
        return before | now

    def commit(self, *values: Tensor) -> None:
        """Make the corrections of a step permanent, in every process.

        An image that was in the batch twice is corrected where either of the two was.
        """
        index, corrected = values
        index, corrected = gather_rows(index.to(self.epoch_tensor.device)), gather_rows(corrected, dim=-2)
        if self.log is not None:
            self.log.record(index, corrected, self.epoch)
            return
        epochs = corrected * self.epoch_tensor.to(self.corrected_in.dtype)
        self.corrected_in.scatter_reduce_(-2, index.long()[:, None].expand(epochs.shape), epochs, "amax")

    def end_epoch(self, scores: TrainingScores | None = None) -> Revisions:
        """Return the corrections of this epoch; of many heads at once, see ``revisions_of``."""
        return Revisions() if self.heads else self.revisions_of(())

    def revisions_of(self, head: tuple[int, ...]) -> Revisions:
        """Return the corrections of this epoch."""
        if self.log is not None:
            rows, columns = self.log.recorded_in(self.epoch, head)
        else:
            found = torch.nonzero(self.corrected_in[head] == self.epoch, as_tuple=True)
            rows, columns = (places.cpu().numpy() for places in found)
        return Revisions.from_arrays(
            self.prepared_table(), rows, columns, values=PRESENT, source=self.name, epoch=self.epoch
        )


class LargeLossPermanentCorrection(PermanentCorrection, RelativeLargeLoss):
    r"""Mean of ``large_loss_correction`` over revised labels; final.

    Each step corrects the :math:`k = \lceil n \delta / 100 \rceil` largest losses. ``n`` counts the entries of the
    batch that are still unknown, or all of them with ``base="all"``. The share is the same in every epoch from the
    second on; the first is plain `an`. Known labels are never modified. Options: see ``RelativeLargeLoss``.
    """

    def steps(self, epoch: int) -> int:
        """The share is the same from the second epoch on."""
        return min(epoch - 1, 1)


class AbsoluteLargeLossPermanentCorrection(PermanentCorrection, AbsoluteLargeLoss):
    """Mean of ``large_loss_correction`` over revised labels; final. See ``AbsoluteLargeLoss``."""
