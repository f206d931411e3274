r"""Costs that are mixed from three: what an entry costs as present, as absent, and for being undecided.

Many methods differ only in the weights that they give to an entry by the state of its label:

.. math:: \ell = u_y\,(-\ln p) + v_y\,(-\ln(1-p)) + w_y\,H(p)

and perhaps in how many positives they expect of a batch, or in an estimate of the labels that learns along. Whoever
trains many of them at once needs one evaluation for all, and knows its derivative without asking autograd:

.. math:: \frac{d\ell}{dx} = (u_y + v_y)\,p - u_y - w_y\,x\,p\,(1-p)

An objective that is nothing but such a mixture says so by ``mixture``; ``mixture_cost`` and ``entropy_cost`` are the mixture.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.losses.terms import Number

__all__ = [
    "AS_ABSENT",
    "AS_PRESENT",
    "IGNORED",
    "LabelEstimate",
    "Mixture",
    "MixtureWeights",
    "entropy_cost",
    "entry_weights",
    "is_exact",
    "make_mixture",
    "mixture_cost",
]

MixtureWeights = tuple[Number, Number, Number]
"""How much of −ln p, of −ln(1 − p) and of H(p) an entry costs."""

AS_PRESENT: MixtureWeights = (1.0, 0.0, 0.0)
AS_ABSENT: MixtureWeights = (0.0, 1.0, 0.0)
IGNORED: MixtureWeights = (0.0, 0.0, 0.0)

FAR = 50.0
"""From here on ln(1 + eˣ) is x, even in float64."""


class LabelEstimate(NamedTuple):
    """An estimate of the labels that learns along with the classifier (`role`).

    Its logits have costs of the same mixture, and each of the two teaches the other: where one thinks that a label is
    present with probability p, ``share`` · p of the other's weight of −ln(1 − p) goes to −ln p. What is taught is a
    constant to the gradient.

    Attributes:
        estimate: ``(…, N, K)`` logits, for every training image.
        share: how much of the weight is the teacher's to give.
    """

    estimate: nn.Parameter
    share: float


class Mixture(NamedTuple):
    """How the cost of an entry is mixed, by the state of its label.

    Attributes:
        shares: ``(…, 4, 3)`` float64: of unknown, absent, present and modified entries, how much of each cost.
        marks: whether the objective's ``modified`` entries have shares of their own.
        expected: positives per image that a batch should have (`epr`), ``(…)``; None where that plays no part.
        expected_share: how much it costs not to have them, as a share of what it costs in `epr`.
        companion: what learns along; None where nothing does.
    """

    shares: Tensor
    marks: bool = False
    expected: Tensor | None = None
    expected_weight: float = 1.0
    label_estimate: LabelEstimate | None = None

    @property
    def undecided(self) -> bool:
        """Whether the entropy plays a part."""
        return bool(self.shares[..., 2].any())


def is_exact(eps: Number) -> bool:
    """Return whether nothing is added inside the logarithms, as a mixture has it."""
    return not isinstance(eps, Tensor) and eps == 0


def make_mixture(
    *,
    unknown: MixtureWeights,
    absent: MixtureWeights = AS_ABSENT,
    present: MixtureWeights = AS_PRESENT,
    modified: MixtureWeights | None = None,
    expected: Number | None = None,
    expected_weight: float = 1.0,
    label_estimate: LabelEstimate | None = None,
) -> Mixture:
    """Put a mixture together; a share may be a tensor of shape ``(…)``, one for every head.

    Example:
        >>> make_mixture(unknown=IGNORED).shares[1].tolist()
        [0.0, 1.0, 0.0]
    """
    rows = (unknown, absent, present, unknown if modified is None else modified)
    numbers = [torch.as_tensor(share, dtype=torch.float64).cpu() for row in rows for share in row]
    stacked = torch.stack(torch.broadcast_tensors(*numbers), dim=-1)  # type: ignore[no-untyped-call]
    wanted = None if expected is None else torch.as_tensor(expected, dtype=torch.float64).cpu()
    shares = stacked.reshape(*stacked.shape[:-1], 4, 3)
    return Mixture(shares, modified is not None, wanted, expected_weight, label_estimate)


def entry_weights(shares: Tensor, labels: Tensor, modified: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Look up how much of each cost every entry has.

    Args:
        shares: ``(…, 4, 3)`` of a blend, in the float type that is wanted.
        labels: ``(…, B, K)`` of PRESENT, ABSENT, UNKNOWN.
        modified: ``(…, B, K)`` mask, where the method marks entries.

    Returns:
        ``(…, B, K)`` each: of −ln p, of −ln(1 − p), of H(p).

    Example:
        >>> entry_weights(make_mixture(unknown=IGNORED).shares, torch.tensor([[1, 0, -1]]))[1].tolist()
        [[0.0, 1.0, 0.0]]
    """
    is_present, is_absent = labels == PRESENT, labels == ABSENT

    def looked_up(share: Tensor) -> Tensor:
        unknown, absent, present, marked = share[..., None, None].unbind(-3)
        found = torch.where(is_present, present, torch.where(is_absent, absent, unknown))
        return found if modified is None else torch.where(modified, marked, found)

    return looked_up(shares[..., 0]), looked_up(shares[..., 1]), looked_up(shares[..., 2])


def mixture_cost(logits: Tensor, chance: Tensor, both: Tensor, minus_present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Mix the costs of present and absent, :math:`u\,(-\ln p) + v\,(-\ln(1-p)) = (u + v)(-\ln(1-p)) - u\,x`.

    Args:
        logits: x, of any shape.
        chance: p, of the same shape, as all others are.
        both: u + v.
        minus_present: −u.

    Returns:
        the cost, its derivative in x, and −ln(1 − p).

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> mixture_cost(zero, zero.sigmoid(), one, -one)[:2]
        (tensor([0.6931]), tensor([-0.5000]))
    """
    away = softplus(logits, threshold=FAR)
    return torch.addcmul(both * away, minus_present, logits), torch.addcmul(minus_present, both, chance), away


def entropy_cost(logits: Tensor, weight: Tensor, chance: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`w\,H(p)` and its derivative :math:`-w\,x\,p\,(1-p)`.

    Args:
        logits: x, of any shape.
        weight: w, of the same shape.
        chance: p.
        away: −ln(1 − p).

    Example:
        >>> zero, half = torch.zeros(1), torch.full((1,), 0.5)
        >>> entropy_cost(zero, torch.ones(1), half, -half.log())[0]
        tensor([0.6931])
    """
    fall = -weight * logits * chance
    return torch.addcmul(fall, weight, away), torch.addcmul(fall, fall, chance, value=-1.0)
