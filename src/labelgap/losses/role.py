"""Regularized online label estimation (Cole et al., "Multi-Label Learning from Single Positive Labels", CVPR 2021).

The unknown labels are parameters, learned together with the classifier: each is the other's teacher, both must agree
with the known labels, and both must have the expected number of positives.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.seeds import derive_seed
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT
from labelgap.losses.base.mixture import LabelEstimate, Mixture, mixture_entries
from labelgap.losses.base.papers import COLE_2021
from labelgap.losses.base.per_image_state import PerImageState
from labelgap.losses.base.registry import method
from labelgap.losses.base.terms import Number
from labelgap.losses.expected_positives import ExpectedPositivesLoss

__all__ = ["OnlineLabelEstimation", "initial_label_logits", "online_label_estimation"]

KNOWN_LOGIT = math.log(0.995 / 0.005)
INITIAL_RANGE = math.log(0.6 / 0.4)
MIN_PROBABILITY = 1e-5


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
    ten times that of the head. Adam keeps moving a row by its momentum also in steps that do not contain it. Options:
    see ``ExpectedPositivesLoss``.
    """

    phi: torch.nn.Parameter

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Create φ: four times N × K floats, with its gradient and Adam's two moments."""
        super().prepare(table, epochs, seed)
        self.reserve(16)
        self.phi = torch.nn.Parameter(initial_label_logits(table, seed, self.heads).to(self.epoch_tensor.device))

    @torch.no_grad()
    def handoff_state(self) -> dict[str, Tensor]:
        """Return the probabilities of the labels, ``(…, N, K)``."""
        self.prepared_table()
        return {"label_probabilities": torch.sigmoid(self.phi)}

    @torch.no_grad()
    def load_handoff_state(self, state: dict[str, Tensor]) -> None:
        """Start from the probabilities of an earlier phase, clipped to [1e-5, 1 − 1e-5]."""
        self.prepared_table()
        probabilities = state["label_probabilities"].to(self.phi)
        if probabilities.shape != self.phi.shape:
            raise InputError(f"the estimate has shape {tuple(probabilities.shape)}, φ {tuple(self.phi.shape)}.")
        self.phi.copy_(torch.logit(probabilities.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Give φ ten times the rate of the head."""
        self.prepared_table()
        return [{"params": [self.phi], "lr": 10 * lr}]

    def cost(self, logits: Tensor, labels: Tensor, index: Tensor | None, features: Tensor | None) -> Tensor:
        """Compare the classifier with the estimate of the rows."""
        mixture = _mixture(self.state_rows("phi", index).to(logits.dtype), self.required_positives())
        return self.reduce(mixture_entries(logits, labels, mixture, eps=self.eps))

    def weights(self, classes: int) -> Mixture:
        """The mixture with the estimate of all training images."""
        self.prepared_table()
        return _mixture(self.phi, self.required_positives())

    def mixture(self, classes: int) -> Mixture | None:
        """Return the mixture once the estimate exists."""
        return None if self.table is None else super().mixture(classes)
