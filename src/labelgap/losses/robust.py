"""Generalized robust loss (Chen et al., "Boosting Single Positive Multi-label Classification with Generalized Robust
Loss", IJCAI 2024), and the same with a teacher (Tran et al., "More Reliable Pseudo-labels, Better Performance", ICCV
2025).

An unknown label is a soft mixture of present and absent: the higher its probability the likelier it is present. Both
sides use a robust cost that lies between cross-entropy and absolute error, and an entry far from the probability
that is expected in the epoch gets little weight. What a teacher calls present counts as present (`gpr`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from labelgap.core.distributed import gather_rows
from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.losses.assume_negative import ignore_unknown
from labelgap.losses.base.fused import Fused, KernelForm, add_product, linear, mask_of, over_batch, with_heads
from labelgap.losses.base.loss import LogLoss
from labelgap.losses.base.state import PerImageState
from labelgap.losses.base.terms import (
    Number,
    check_number,
    cost_absent,
    cost_present,
    expected_positive_regularization,
    is_unknown,
    per_head,
    states,
    widen,
)


def robust_cost(cost: Tensor, q: Tensor) -> Tensor:
    r"""Turn :math:`-\ln p` into :math:`(1 - p^q) / q`: cross-entropy for q → 0, absolute error for q = 1."""
    return -torch.expm1(-q * cost) / q


ALPHA: Final = (0.5, 0.8, 2.0, 0.5)
"""First and last value of μ and of σ."""
BETA: Final = (0.0, 2.0, -2.0, -2.0)
"""First and last value of w and of b."""
Schedule = tuple[float, float, float, float]


def schedule(
    progress: Number, start: Number, alpha: Schedule = ALPHA, beta: Schedule = BETA
) -> tuple[Number, Number, Number, Number]:
    """Return w, b, μ and σ of ``generalized_robust``."""
    (center, last_center, width, last_width), (w, last_w, b, last_b) = alpha, beta
    mixture = w + (last_w - w) * start, b + (last_b - b) * start
    return *mixture, center + (last_center - center) * progress, width + (last_width - width) * progress


def generalized_robust(
    logits: Tensor,
    labels: Tensor,
    *,
    progress: Number,
    start: Number,
    q2: Number,
    q3: Number,
    alpha: Schedule = ALPHA,
    beta: Schedule = BETA,
    eps: Number = 0.0,
) -> Tensor:
    r"""Cost of every entry when an unknown label is a mixture of present and absent.

    .. math:: \ell = [y=1](-\ln p) + [y=0](-\ln(1-p))
        + [y=?]\; v \Bigl( k \frac{1-p^{q_2}}{q_2} + (1-k) \frac{1-(1-p)^{q_3}}{q_3} \Bigr)

    .. math:: k = \sigma(w p + b), \qquad v = e^{-\frac12 ((p-\mu)/\sigma)^2}

    ``progress`` is the share of the training that is done with this epoch, t / T, and moves μ and σ from the first to
    the second value of each in ``alpha``; ``start`` is the share that was done before it, (t − 1) / T, and moves w and
    b by ``beta``. By default μ = 0.5 … 0.8, σ = 2 … 0.5, w = 0 … 2 and b = −2. Unknown labels are present with weight k
    and absent with weight 1 − k; k and v are constants to the gradient.

    Example:
        >>> labels, half = torch.tensor([[1, 0, -1]]), torch.tensor(0.5)
        >>> generalized_robust(torch.zeros(1, 3), labels, progress=half, start=half, q2=0.01, q3=1.0)
        tensor([[0.6931, 0.6931, 0.5310]])
    """
    logits = widen(logits)
    probability = torch.sigmoid(logits).detach()
    w, b, center, width = schedule(progress, start, alpha, beta)
    mixture = torch.sigmoid(w * probability + b)
    fit = expected_fit(probability, center, width)
    as_present = robust_cost(cost_present(logits), per_head(q2, logits))
    as_absent = robust_cost(cost_absent(logits), per_head(q3, logits))
    soft = fit * (mixture * as_present + (1.0 - mixture) * as_absent)
    return ignore_unknown(logits, labels, eps=eps) + states(labels).unknown * soft


def expected_fit(probability: Tensor, center: Number, width: Number) -> Tensor:
    """Return v: how near probabilities are to what is expected in the epoch."""
    return torch.exp(-0.5 * ((probability - center) / width).square())


def taught_robust(
    entries: Tensor, logits: Tensor, called: Tensor, trust: Tensor, fit: Tensor, limits: tuple[float, float]
) -> Tensor:
    r"""Let entries of ``generalized_robust`` count as present where a teacher has ``called`` them so.

    .. math:: \ell = (1 - s)\,\ell_{gr} + s\,\min(\max(1 - v,\, l),\, h)\,(-\ln p)

    ``trust`` is s, ``fit`` v and ``limits`` l and h.

    Example:
        >>> one = torch.ones(1, 1)
        >>> taught_robust(one, torch.zeros(1, 1), one == 1, one, 0.5 * one, (0.4, 0.7))
        tensor([[0.3466]])
    """
    taught = (1 - fit).clamp(*limits) * cost_present(logits)
    return torch.where(called, torch.lerp(entries, taught, trust.to(entries.dtype)), entries)


def robust_form(
    logits: Tensor, labels: Tensor, *, w: Number, b: Number, center: Number, width: Number, q2: Number, q3: Number
) -> tuple[Tensor, Tensor]:
    r"""Cost and slope of ``generalized_robust``, with the numbers of ``schedule``.

    With :math:`a = p^{q_2} - 1` and :math:`c = (1-p)^{q_3} - 1`, all entries cost

    .. math:: \ell = [y=0]\,x - [y \ne ?]\ln p - g\,\frac{a}{q_2} - h\,\frac{c}{q_3},
        \qquad g = [y=?]\,v\,k, \quad h = [y=?]\,v\,(1-k)

    .. math:: \frac{d\ell}{dx} = [y \ne ?]\,p - [y=1] - g\,(1+a)\,(1-p) + h\,(1+c)\,p
    """
    p = torch.sigmoid(logits).clamp_(min=torch.finfo(logits.dtype).tiny)
    log = torch.minimum(p.log(), logits)
    present, absent = mask_of(labels, logits), mask_of(labels, logits, ABSENT)
    cost, known = absent * logits, absent.add_(present)
    cost.addcmul_(known, log, value=-1.0)
    v = linear(p, 1.0 / width, -center / width).square_().mul_(-0.5).exp_()
    v.addcmul_(v, known, value=-1.0)
    g = linear(p, w, b).sigmoid_().mul_(v)
    h = v.sub_(g)
    half = (log * (0.5 * q2)).tanh_()
    half.div_(linear(half, -1.0, 1.0))  # a / 2: on x86 twice as fast as expm1
    far = g.addcmul(g, half, value=2.0)
    add_product(cost, g, half, -2.0 / q2)
    if isinstance(q3, Tensor) or q3 != 1.0:
        c = (log - logits).clamp_(max=0.0).mul_(q3).expm1_()
        add_product(cost, h, c, -1.0 / q3)
        slope = far.neg_().lerp_(known, p).sub_(present).addcmul_(h.mul_(p), c.add_(1.0))
    else:
        cost.add_(h.mul_(p))
        slope = h.sub_(far).lerp_(known, p).sub_(present)
    return cost, slope


def check_four(name: str, values: Sequence[float]) -> Schedule:
    """Return the four numbers of a schedule."""
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != 4:
        raise InputError(f"{name}={values!r}: four numbers are needed, e.g. {name}=0,2,-2,-2.")
    first, last, *others = (float(check_number(name, value)) for value in values)
    return first, last, others[0], others[1]


class GeneralizedRobustLoss(LogLoss):
    """Mean of ``generalized_robust``; final. ``prepare`` tells it the number of epochs T; 10 until then.

    Args:
        q2: robustness of the positive side, above 0.
        q3: robustness of the negative side, above 0.
        alpha: the first and the last value of μ, the expected probability, and of σ, how far from it entries count.
        beta: the first and the last value of w and of b: an unknown label is present with weight σ(wp + b).
    """

    epoch_dependent = True

    def __init__(
        self,
        q2: Number = 0.01,
        q3: Number = 1.0,
        alpha: Sequence[float] = ALPHA,
        beta: Sequence[float] = BETA,
        eps: Number = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(eps, reduction)
        self.q2 = check_number("q2", q2, 0, 2, above=True)
        self.q3 = check_number("q3", q3, 0, 2, above=True)
        self.alpha, self.beta = check_four("alpha", alpha), check_four("beta", beta)
        for width in self.alpha[2:]:
            check_number("alpha", width, 0, above=True)
        self.last_epoch, self._prepared = 10, False

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Learn the number of epochs."""
        super().prepare(table, epochs, seed)
        self.last_epoch, self._prepared = epochs, True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; warn where it is beyond the last one that the schedule assumes."""
        super().set_epoch(epoch)
        if epoch > self.last_epoch and not self._prepared:
            warnings.warn(
                f"{self.name}: its schedule has ended, after the {self.last_epoch} epochs that it assumes: "
                "prepare(table, epochs=…) tells it how many there are.",
                stacklevel=2,
            )

    def shares(self, logits: Tensor) -> tuple[Number, Number]:
        """Return which share of the training is done with this epoch, and which before it.

        Plain numbers on the CPU; on a device tensors, so that a compiled or captured step follows the epochs.
        """
        if logits.device.type == "cpu" and not torch.compiler.is_compiling():
            return min(self.epoch / self.last_epoch, 1.0), min((self.epoch - 1) / self.last_epoch, 1.0)
        epoch = self.epoch_tensor.to(widen(logits).dtype)
        total = torch.full_like(epoch, self.last_epoch)
        return (epoch / total).clamp(max=1.0), ((epoch - 1) / total).clamp(max=1.0)

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See ``generalized_robust``."""
        progress, start = self.shares(logits)
        options = {name: getattr(self, name) for name in ("q2", "q3", "alpha", "beta", "eps")}
        return generalized_robust(logits, labels, progress=progress, start=start, **options)

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """The epoch decides how an unknown label is mixed."""
        return KernelForm(
            "robust", (self.q2, self.q3, self.last_epoch, *self.alpha, *self.beta), epoch=self.epoch_tensor
        )

    def fused(self, logits: Tensor, labels: Tensor) -> Fused | None:
        """See ``robust_form``."""
        logits = with_heads(logits, self.q2, self.q3)
        q2, q3 = over_batch(self.q2, logits), over_batch(self.q3, logits)
        w, b, center, width = schedule(*self.shares(logits), self.alpha, self.beta)
        numbers: Any = {"w": w, "b": b, "center": center, "width": width, "q2": q2, "q3": q3}
        return Fused(lambda x, labels: robust_form(x, labels, **numbers), [logits], [labels])


class GeneralizedPriorRobustLoss(PerImageState, GeneralizedRobustLoss):
    r"""`gr`, and the soft labels t of a teacher: see ``taught_robust``; final. Without any it is `gr`.

    What the teacher calls present, :math:`t \ge \frac12`, counts as present. After each step the labels of its images
    follow the classifier, :math:`t \leftarrow \rho\,t + (1 - \rho)\,p`. The soft labels are those of the table that the
    loss is prepared with; s is their weight. The penalty
    :math:`0.05\,\bigl(\frac1B \sum_{b,k} p_{bk} - \kappa\bigr)^2 / K^2` is on every entry, as in `epr`.

    Args:
        momentum: ρ.
        limits: l and h, the smallest and the largest weight of a label that the teacher calls present.
        expected_positives: κ; by default the mean of the labels that are known and the targets of the others.
        expected_weight: the weight of the penalty.
    """

    batch_dependent = True
    takes_soft = True
    teacher: Tensor
    trust: Tensor

    def __init__(
        self,
        momentum: Number = 0.9,
        limits: Sequence[float] = (0.4, 0.7),
        expected_positives: Number | None = None,
        expected_weight: Number = 0.05,
        q2: Number = 0.01,
        q3: Number = 1.0,
        alpha: Sequence[float] = ALPHA,
        beta: Sequence[float] = BETA,
        eps: Number = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(q2, q3, alpha, beta, eps, reduction)
        self.momentum = check_number("momentum", momentum, 0, 1)
        if isinstance(limits, str) or len(limits) != 2 or limits[0] > limits[1]:
            raise InputError(f"limits={limits!r}: the smallest and the largest weight, e.g. limits=0.4,0.7.")
        low, high = (float(check_number("limits", limit, 0, 1)) for limit in limits)
        self.limits = low, high
        given = expected_positives
        self.expected_positives = None if given is None else check_number("expected_positives", given, 0, above=True)
        self.expected_weight = check_number("expected_weight", expected_weight, 0)
        self._expected: Number | None = self.expected_positives

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Copy the soft labels of the table: eight bytes for each image and class."""
        super().prepare(table, epochs, seed)
        for name in ("teacher", "trust"):
            self.register_buffer(name, self.allocate(torch.float32, 0.0))
        if table.soft is None:
            return
        self.teacher.copy_(torch.from_numpy(table.soft.target))
        self.trust.copy_(torch.from_numpy(table.soft.weight))
        if self.expected_positives is None:
            codes = table.to_dense()
            self._expected = float((codes == PRESENT).sum() + table.soft.target[codes == UNKNOWN].sum()) / len(table)

    def kernel_form(self, rows: int, classes: int) -> KernelForm | None:
        """No kernel knows a teacher."""
        return None

    @torch.no_grad()
    def modified(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Mark the unknown entries that the teacher calls present."""
        called = is_unknown(labels) & (self.state_rows("teacher", index) >= 0.5)
        return called & (self.state_rows("trust", index) > 0)

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Follow the teacher where it calls a label present; ``after_step`` moves it towards the classifier."""
        *_, center, width = schedule(*self.shares(logits), self.alpha, self.beta)
        probability = torch.sigmoid(logits)
        fit = expected_fit(probability.detach(), center, width)
        called, trust = self.modified(logits, labels, index), self.state_rows("trust", index)
        entries = taught_robust(self.entries(logits, labels), logits, called, trust, fit, self.limits)
        if self._expected is not None:
            penalty = expected_positive_regularization(probability, self._expected)
            entries = entries + (self.expected_weight * penalty)[..., None, None]
        assert index is not None
        return self.mark(self.reduce(entries), index, probability)

    def commit(self, *values: Tensor) -> None:
        """Move the labels of a step's images towards the classifier, in every process."""
        index, probability = values
        index, probability = gather_rows(index.to(self.teacher.device)), gather_rows(probability, dim=-2)
        before = self.teacher.index_select(-2, index)
        moved = torch.lerp(probability.to(before.dtype), before, per_head(self.momentum, before))
        self.teacher.index_copy_(-2, index, moved)
