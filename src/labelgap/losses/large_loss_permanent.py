"""Permanent correction of large losses (Kim et al., "Large Loss Matters in Weakly Supervised Multi-Label
Classification", CVPR 2022).

`ll-ct` calls an unknown label with a large loss present for one step; `ll-cp` does so for good. What the loss of a step
flipped becomes a revision once the optimiser has taken the step, and every later batch sees it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from labelgap.core.distributed import gather_rows
from labelgap.labels import LabelTable, Revisions
from labelgap.labels.codes import PRESENT
from labelgap.losses.base import TrainingScores
from labelgap.losses.large_loss import (
    PAPER,
    AbsoluteLargeLoss,
    RelativeLargeLoss,
    large_loss_correction,
    relative_large_losses,
)
from labelgap.losses.per_image_state import PerImageState
from labelgap.losses.registry import method
from labelgap.losses.terms import Number, states

__all__ = ["AbsoluteLargeLossPermanentCorrection", "LargeLossPermanentCorrection", "PermanentCorrection"]


class PermanentCorrection(PerImageState, ABC):
    """What both variants share: which labels were corrected, and since which epoch. Abstract.

    Attributes:
        since: ``(…, N, K)`` int16: the epoch in which a label was corrected, 0 where it was not.
    """

    since: Tensor
    eps: Number
    _marked: tuple[Tensor, Tensor] | None = None

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0, heads: tuple[int, ...] = ()) -> None:
        """Make room: two bytes for each image and class."""
        super().prepare(table, epochs, seed, heads)
        self.register_buffer("since", self.allocate(torch.int16, 0))
        self._marked = None

    @abstractmethod
    def flips(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mark the entries, still unknown after all corrections so far, that this step corrects."""

    def corrected(self, labels: Tensor, index: Tensor | None) -> Tensor:
        """Mark the unknown entries of a batch that were corrected in earlier steps."""
        return (self.recall("since", index) > 0) & states(labels).unknown

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Lay the corrections over the labels, and mark what this step flips; ``after_step`` commits it."""
        revised = torch.where(self.corrected(labels, index), PRESENT, labels)
        flipped = self.flips(logits, revised)
        if index is not None and torch.is_grad_enabled():
            self._marked = index, flipped
        return self.reduced(large_loss_correction(logits, revised, flipped, eps=self.eps))

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what every entry costs when nothing was corrected before."""
        return large_loss_correction(logits, labels, self.flips(logits, labels), eps=self.eps)

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark what was corrected before and what this step corrects."""
        before = self.corrected(labels, index)
        return before | self.flips(logits, torch.where(before, PRESENT, labels))

    @torch.no_grad()
    def after_step(self) -> None:
        """Make the corrections of the last step permanent, in every process; a step that was not taken leaves none.

        An image that was in the batch twice is corrected where either of the two was.
        """
        if self._marked is None:
            return
        index, flipped = self._marked
        self._marked = None
        index, flipped = gather_rows(index.to(self.since.device)), gather_rows(flipped, dim=-2)
        now = flipped * self.clock.to(self.since.dtype)
        self.since.scatter_reduce_(-2, index.long()[:, None].expand(now.shape), now, "amax")

    def end_epoch(self, scores: TrainingScores | None = None) -> Revisions:
        """Return the corrections of this epoch; of many heads at once, see ``revisions_of``."""
        return Revisions() if self.heads else self.revisions_of(())

    def revisions_of(self, head: tuple[int, ...]) -> Revisions:
        """Return the corrections of this epoch."""
        rows, columns = torch.nonzero(self.since[head] == self.epoch, as_tuple=True)
        return Revisions.from_arrays(
            self.prepared(),
            rows.cpu().numpy(),
            columns.cpu().numpy(),
            values=PRESENT,
            source=self.name,
            epoch=self.epoch,
        )


@method("ll-cp", paper=PAPER, summary="large loss, permanent correction: they count as present from then on")
class LargeLossPermanentCorrection(PermanentCorrection, RelativeLargeLoss):
    r"""Mean of ``large_loss_correction`` over revised labels, for the :math:`k = \lceil n \delta / 100 \rceil` largest losses; final.

    ``n`` counts the entries of the batch that are still unknown, or all of them with ``base="all"``. The share is the
    same in every epoch from the second on; the first is plain `an`. Known labels are never modified. Options: see
    ``RelativeLargeLoss``.

    Example:
        >>> table, index = LabelTable.from_dense([[1, -1, -1]]), torch.tensor([0])
        >>> permanent = LargeLossPermanentCorrection(delta_rel=50)
        >>> permanent.prepare(table)
        >>> permanent.set_epoch(2)
        >>> loss = permanent(torch.tensor([[2.0, 1.0, -1.0]], requires_grad=True), table.batch(index), index)
        >>> permanent.after_step()
        >>> permanent.since
        tensor([[0, 2, 0]], dtype=torch.int16)
    """

    def flips(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mark the k largest losses of what is still unknown."""
        steps = (self.clock - 1).clamp(max=1)
        return relative_large_losses(logits, labels, share=self.share, steps=steps, base=self.base)


@method("ll-cp-abs", paper=PAPER, summary="`ll-cp` with a threshold on the loss that sinks with the epochs")
class AbsoluteLargeLossPermanentCorrection(PermanentCorrection, AbsoluteLargeLoss):
    r"""Mean of ``large_loss_correction`` over revised labels, for losses above :math:`R(t) = R_0 - t\,\Delta`; final.

    Known labels are never modified. Options: see ``AbsoluteLargeLoss``.
    """

    def flips(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mark the losses above the threshold of the epoch."""
        return AbsoluteLargeLoss.modified(self, logits, labels)
