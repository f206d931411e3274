"""Permanent correction of large losses (Kim et al., "Large Loss Matters in Weakly Supervised Multi-Label
Classification", CVPR 2022).

`ll-ct` takes an unknown label with a large loss as present for one step; `ll-cp` does so permanently. What the loss of
a step corrects becomes a revision once the optimizer has taken the step, and every later batch uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from labelgap.core.distributed import gather_rows
from labelgap.labels import LabelTable, Revisions
from labelgap.labels.codes import PRESENT
from labelgap.losses.base.entry_log import EntryLog
from labelgap.losses.base.loss import TrainingScores
from labelgap.losses.base.mixture import Mixture
from labelgap.losses.base.mixture_form import fused_mixture
from labelgap.losses.base.mixture_loss import MixtureLoss
from labelgap.losses.base.papers import KIM_2022
from labelgap.losses.base.per_image_state import PerImageState
from labelgap.losses.base.registry import method
from labelgap.losses.base.terms import are_above, is_unknown
from labelgap.losses.large_loss import CORRECTION, AbsoluteLargeLoss, RelativeLargeLoss, large_shares


class PermanentCorrection(PerImageState, MixtureLoss, ABC):
    """Labels that are corrected permanently, with the epoch of the correction. Abstract.

    Attributes:
        corrected_in: ``(…, N, K)`` int16: the epoch in which a label was corrected, 0 where it was not.
        log: the same where images × classes exceed 100 million: memory then grows with the corrections. None elsewhere.
    """

    declared = CORRECTION
    corrected_in: Tensor
    log: EntryLog | None

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Allocate two bytes for each image and class, or start an empty log of corrections."""
        super().prepare(table, epochs, seed)
        self.log = EntryLog(self.heads, *table.shape) if self.is_large else None
        if self.log is None:
            self.register_buffer("corrected_in", self.allocate(torch.int16, 0))

    def mixture(self, classes: int) -> Mixture | None:
        """Return None: the corrections of a step are committed after it."""
        return None

    def modified_count(self, labels: Tensor) -> Tensor | None:
        """Return None: earlier corrections are modified too, whatever their logits are now."""
        return None

    @abstractmethod
    def new_corrections(self, logits: Tensor, unknown: Tensor) -> Tensor:
        """Mark what this step corrects out of the entries that are ``unknown`` after all corrections so far."""

    def _corrections(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the masks of what earlier steps corrected and of what this step corrects."""
        unknown = is_unknown(labels)
        before = are_above(self._epochs_of(index), 0) & unknown
        return before, self.new_corrections(logits, unknown ^ before)

    def _epochs_of(self, index: Tensor | None) -> Tensor:
        self.prepared_table()
        if self.log is None or index is None:
            return self.state_rows("corrected_in", index)
        self.check_rows(index)
        return self.log.epochs_of(index).to(self.epoch_tensor.device)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Apply the corrections so far and those of this step; ``after_step`` commits the latter."""
        before, now = self._corrections(logits, labels, index)
        modified = before | now
        cost = fused_mixture(logits, labels, CORRECTION, modified=modified, eps=self.eps, reduction=self.reduction)
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


@method("ll-cp", paper=KIM_2022, summary="large loss, permanent correction: they count as present from then on")
class LargeLossPermanentCorrection(PermanentCorrection, RelativeLargeLoss):
    r"""Mean of ``large_loss_correction`` over revised labels; final.

    Each step corrects the :math:`k = \lceil n \delta / 100 \rceil` largest losses. ``n`` counts the entries of the
    batch that are still unknown, or all of them with ``base="all"``. The share is the same in every epoch from the
    second on; the first is plain `an`. Known labels are never modified. Options: see ``RelativeLargeLoss``.

    Example:
        >>> table, index = LabelTable.from_dense([[1, -1, -1]]), torch.tensor([0])
        >>> loss_fn = LargeLossPermanentCorrection(delta_rel=50)
        >>> loss_fn.prepare(table)
        >>> loss_fn.set_epoch(2)
        >>> loss_fn(torch.tensor([[2.0, 1.0, -1.0]], requires_grad=True), table.batch(index), index).backward()
        >>> loss_fn.after_step()
        >>> loss_fn.corrected_in
        tensor([[0, 2, 0]], dtype=torch.int16)
    """

    def new_corrections(self, logits: Tensor, unknown: Tensor) -> Tensor:
        """Mark the k largest losses of what is still unknown."""
        steps, largest = self.steps(logits), self.largest_share(logits, most_steps=1)
        steps = min(steps, 1) if isinstance(steps, int) else steps.clamp(max=1)
        with torch.no_grad():
            return large_shares(logits, unknown, self.share, steps, self.base, largest)


@method("ll-cp-abs", paper=KIM_2022, summary="`ll-cp` with a threshold on the loss that falls with the epochs")
class AbsoluteLargeLossPermanentCorrection(PermanentCorrection, AbsoluteLargeLoss):
    r"""Mean of ``large_loss_correction`` over revised labels, for losses above :math:`R(t) = R_0 - t\,\Delta`; final.

    Known labels are never modified. Options: see ``AbsoluteLargeLoss``.
    """

    def new_corrections(self, logits: Tensor, unknown: Tensor) -> Tensor:
        """Mark the losses above the threshold of the epoch."""
        return self.large(logits.detach(), unknown)
