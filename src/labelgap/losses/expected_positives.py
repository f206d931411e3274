"""How many positives to expect (Cole et al., "Multi-Label Learning from Single Positive Labels", CVPR 2021).

Where only positives are known, learning from them alone predicts everything as present. One number prevents it: how
many labels an image has on average. A batch whose probabilities add up to more or to less is penalized (`epr`).
"""

from __future__ import annotations

from abc import ABC
from typing import Any

import numpy as np

from labelgap.core.errors import InputError
from labelgap.core.text import pluralize
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT
from labelgap.losses.base.mixture import IGNORED, Mixture
from labelgap.losses.base.mixture_loss import MixtureLoss
from labelgap.losses.base.option_checks import check_number
from labelgap.losses.base.papers import COLE_2021
from labelgap.losses.base.registry import method
from labelgap.losses.base.terms import Number

MIN_IMAGES = 100
"""Fully labeled images that are enough to estimate the number of positives, where others are labeled in part."""


def mean_positives(table: LabelTable) -> tuple[float, int] | None:
    """Return the mean number of positives over the images whose labels are all known, and how many these are.

    None where they are few and not all: which images were labeled in full may depend on what they show.

    Example:
        >>> mean_positives(LabelTable.from_dense([[1, 0], [1, 1]]))
        (1.5, 2)
    """
    full = np.diff(table.starts) == len(table.classes)
    if not full.any() or (full.sum() < MIN_IMAGES and not full.all()):
        return None
    present = np.bincount(table.rows[table.values == PRESENT], minlength=len(table))
    return round(float(present[full].mean()), 4), int(full.sum())


class ExpectedPositivesLoss(MixtureLoss, ABC):
    """A mixture that must know the number of positives per image. Abstract.

    Args:
        expected_positives: κ, positives per image; may be set later, but before ``prepare`` or the first batch.
    """

    batch_dependent = True
    _expected_positives: Number | None

    def __init__(self, expected_positives: Number | None = None, eps: Number = 0.0, reduction: str = "mean") -> None:
        super().__init__(eps, reduction)
        self._expected_positives = None
        if expected_positives is not None:
            self.expected_positives = expected_positives

    @property
    def expected_positives(self) -> Number | None:
        """Positives per image; None until it is given, or found by ``initialize_from``."""
        return self._expected_positives

    @expected_positives.setter
    def expected_positives(self, value: Number) -> None:
        self.register_options(_expected_positives=check_number("expected_positives", value, 0, above=True))

    def initialize_from(self, table: LabelTable, val: LabelTable | None = None) -> dict[str, Any]:
        """Take the mean over fully labeled validation images, where the number is not given and there are enough."""
        found = None if val is None or self._expected_positives is not None else mean_positives(val)
        if found is None or not found[0]:
            return {}
        self.expected_positives, count = found
        self.initialized = f"expected_positives={found[0]:g}, the mean of {pluralize(count, 'fully known val image')}"
        return {"expected_positives": found[0]}

    def prepare(self, table: LabelTable, epochs: int = 10, seed: int = 0) -> None:
        """Raise ``InputError`` without the number, or with one that is larger than the number of classes."""
        super().prepare(table, epochs, seed)
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


@method(
    "epr", paper=COLE_2021, summary="expected positive regularization: known labels, and how many positives to expect"
)
class ExpectedPositiveRegularization(ExpectedPositivesLoss):
    r"""Known labels as they are, and probabilities that add up to the expected number of positives; final.

    .. math:: L = \operatorname{mean}\bigl([y=1](-\ln p) + [y=0](-\ln(1-p))\bigr)
        + \Bigl( \frac{\frac1B \sum_{b,k} p_{bk} - \kappa}{K} \Bigr)^2

    Unknown labels count only in the sum of probabilities. The regularizer belongs to the batch, so with "none" every
    entry carries it, and the mean of the matrix is the loss; "sum" is B·K times the mean. Options: see
    ``ExpectedPositivesLoss``.

    Example:
        >>> import torch
        >>> epr = ExpectedPositiveRegularization(expected_positives=1.0)
        >>> epr(torch.zeros(1, 4), torch.tensor([[1, -1, -1, -1]]))
        tensor(0.2358)
    """

    def weights(self, classes: int) -> Mixture:
        """Known labels as they are, and the number of positives."""
        return Mixture(unknown=IGNORED, expected_positives=self.required_positives())
