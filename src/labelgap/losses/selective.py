"""Partial labels with class-aware selection (Ben-Baruch et al., "Multi-label Classification with Partial Annotations
using Class-Aware Selective Loss", CVPR 2022).

Most unknown labels are absent, but not those of a very frequent class, nor those that the network itself predicts as
present. Those are left out; all other unknown labels count as absent, focused harder than known ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labelgap.core.distributed import all_sum
from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT
from labelgap.losses.base.fused import Fused, KernelForm, as_float, mask_of, mixed, over_batch, power_form, with_heads
from labelgap.losses.base.loss import LogLoss
from labelgap.losses.base.selection import all_count, as_count, count_marked, top_k_mask
from labelgap.losses.base.terms import (
    Number,
    check_choice,
    check_integer,
    check_number,
    focused_cost,
    is_unknown,
    per_head,
    states,
    widen,
)


@torch.no_grad()
def selective_mask(
    logits: Tensor, labels: Tensor, *, likelihood_topk: Number, priors: Tensor | None, prior_threshold: Number
) -> Tensor:
    """Mark the unknown entries that the selective mode leaves out; ties with the last of the likeliest are marked too.

    ``likelihood_topk`` is how many of the likeliest unknown entries are left out per image of the global batch: one
    image may lose many and another none. ``priors`` ``(K,)`` are how often each class is present, estimated before; a
    class more frequent than ``prior_threshold`` is left out wherever it is unknown.

    Example:
        >>> logits, labels = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[1, -1, -1]])
        >>> selective_mask(logits, labels, likelihood_topk=1, priors=None, prior_threshold=0.5)
        tensor([[False, False,  True]])
    """
    unknown = is_unknown(labels).expand(logits.shape)
    available, rows = count_marked(unknown), logits.shape[-2]
    if isinstance(available, int) and not isinstance(likelihood_topk, Tensor):
        out = top_k_mask(logits, unknown, min(all_count(rows) * int(likelihood_topk), available))
    else:
        available = as_count(available)
        wanted = all_sum(torch.full_like(available, rows)) * likelihood_topk
        share = None if isinstance(likelihood_topk, Tensor) else int(likelihood_topk) / max(logits.shape[-1], 1)
        out = top_k_mask(logits, unknown, torch.minimum(wanted.long(), available), largest_share=share)
    if priors is None:
        return out
    shares = priors.float()  # both sides: a share of 0.1 is not above a threshold of 0.1
    return out | (unknown & (shares > per_head(prior_threshold, shares)))


def partial_focal(
    logits: Tensor, labels: Tensor, *, gamma_pos: Number, gamma_neg: Number, gamma_unknown: Number, eps: Number = 0.0
) -> Tensor:
    r"""Cost of every entry with a focus of its own for each state; unknown counts as absent.

    .. math:: \ell = [y=1]\,(1-p)^{\gamma_+}(-\ln p) + [y=0]\,p^{\gamma_-}(-\ln(1-p)) + [y=?]\,p^{\gamma_u}(-\ln(1-p))

    The focus is a constant to the gradient, as in the paper's training.
    """
    logits = widen(logits)
    present, absent, _ = states(labels)
    gamma = torch.where(absent, per_head(gamma_neg, logits), per_head(gamma_unknown, logits))
    gamma = torch.where(present, per_head(gamma_pos, logits), gamma)
    return focused_cost(torch.where(present, logits, -logits), gamma, eps, detach=True)


class ClassAwareSelectiveLoss(LogLoss):
    """Mean of ``partial_focal``, with 0 for what is left out; final.

    Denominator: all B·K entries, those left out included. mlcpl 0.1.7 leaves out the same, divides by the others, and
    has one focus for unknown and known negatives.

    Args:
        mode: what happens to unknown labels: "selective" (see ``selective_mask``), "negative" (all count as absent) or
            "ignore" (none counts).
        gamma_pos: focus of known positives.
        gamma_neg: focus of known negatives.
        gamma_unknown: focus of unknown labels.
        likelihood_topk: how many of the likeliest unknown labels, per image of the batch, are left out.
        priors: how often each class is present: the mean probability of a first training in mode "ignore".
        prior_threshold: a class more frequent than this is left out wherever it is unknown.
    """

    priors: Tensor | None

    def __init__(
        self,
        mode: str = "selective",
        gamma_pos: Number = 0.0,
        gamma_neg: Number = 1.0,
        gamma_unknown: Number = 4.0,
        likelihood_topk: Number = 5,
        priors: Tensor | Sequence[float] | None = None,
        prior_threshold: Number = 0.5,
        eps: Number = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(eps, reduction)
        self.mode = check_choice("mode", mode, ("selective", "negative", "ignore"))
        self.batch_dependent = self.mode == "selective"
        self.gamma_pos = check_number("gamma_pos", gamma_pos, 0)
        self.gamma_neg = check_number("gamma_neg", gamma_neg, 0)
        self.gamma_unknown = check_number("gamma_unknown", gamma_unknown, 0)
        self.likelihood_topk = check_integer("likelihood_topk", likelihood_topk)
        self.prior_threshold = check_number("prior_threshold", prior_threshold, 0, 1)
        try:
            given = None if priors is None else torch.as_tensor(priors, dtype=torch.float32).detach().clone()
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"priors={priors!r}: one share between 0 and 1 for every class.") from None
        if given is not None and (given.ndim != 1 or not bool(((given >= 0) & (given <= 1)).all())):
            raise InputError("priors: one share between 0 and 1 for every class.")
        self.register_buffer("priors", given, persistent=False)

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries that the selective mode leaves out; in the other modes all are treated alike."""
        if self.mode != "selective":
            return torch.zeros_like(logits, dtype=torch.bool)
        if self.priors is not None and len(self.priors) != logits.shape[-1]:
            raise InputError(f"priors: {len(self.priors)} shares were given for {logits.shape[-1]} classes.")
        options = self.options("likelihood_topk", "priors", "prior_threshold")
        return selective_mask(logits, labels, **options)

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Leave out what is marked, and in mode "ignore" whatever is unknown."""
        cost = partial_focal(logits, labels, **self.options("gamma_pos", "gamma_neg", "gamma_unknown", "eps"))
        return cost * ~(states(labels).unknown if self.mode == "ignore" else self.modified(logits, labels))

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """The likeliest are left out by the threshold that is found first; no kernel has priors."""
        if self.mode != "selective" or self.priors is not None or isinstance(self.likelihood_topk, Tensor):
            return None
        wanted = rows * int(self.likelihood_topk)
        return KernelForm("selective", (self.gamma_pos, self.gamma_neg, self.gamma_unknown), wanted=wanted)

    def fused(self, logits: Tensor, labels: Tensor) -> Fused | None:
        r"""The focus is a constant to the gradient, so that each entry has a cross-entropy with a weight of its own:
        :math:`(1-p)^{\gamma_+}` where present, :math:`p^{\gamma_-}` where absent, :math:`p^{\gamma_u}` where unknown.
        """
        gammas = (self.gamma_pos, self.gamma_neg, self.gamma_unknown)
        logits = with_heads(logits, *gammas, self.likelihood_topk, self.prior_threshold)
        positive, negative, unknown = (over_batch(gamma, logits) for gamma in gammas)
        counted = [] if self.mode == "ignore" else [is_unknown(labels)]
        if self.mode == "selective":
            counted = [counted[0] ^ self.modified(logits, labels)]
        exact = self.reduction == "none"

        def form(x: Tensor, labels: Tensor, *counted: Tensor) -> tuple[Tensor, ...]:
            p, present = torch.sigmoid(x), mask_of(labels, x)
            weight = mask_of(labels, x, ABSENT).mul_(power_form(x, p, negative))
            for mask in counted:
                weight.addcmul_(power_form(x, p, unknown), as_float(mask, x))
            if isinstance(positive, Tensor) or positive:
                present.mul_(power_form(-x, torch.sigmoid(-x), positive))
            return mixed(x, weight.add_(present), present, probability=p, exact=exact)

        return Fused(form, [logits], [labels, *counted])
