"""The scores of all heads on val: average precision of all heads and classes at once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.metrics.average_precision import average_precision_of_rankings, average_precision_on_device
from labelgap.metrics.validation import unknown_as_absent
from labelgap.training.heads.stack import CHUNK, HeadStack
from labelgap.training.selection import Selection


class ValScorer:
    """Scores heads as ``Selection.score`` scores one run.

    Args:
        features: ``(N, D)`` of val.
        selection: the rule, and the labels it uses.
        stack: the heads.
    """

    def __init__(self, features: Tensor, selection: Selection, stack: HeadStack) -> None:
        assert selection.labels is not None
        if features.ndim != 2 or features.shape != (len(selection.labels), stack.width):
            raise InputError(
                f"features of val have shape {tuple(features.shape)}; labels of {len(selection.labels):,} images were "
                f"given, and the training images have {stack.width:,} features."
            )
        if selection.labels.classes != stack.plans[0].labels.classes:
            raise InputError("the labels of val have other classes than those of the training images.")
        codes = selection.labels.to_dense().T
        self.codes = np.ascontiguousarray(unknown_as_absent(codes) if selection.rule == "observed" else codes)
        present, absent = (np.count_nonzero(self.codes == state, axis=1) for state in (PRESENT, ABSENT))
        self.counted = (present > 0) & (absent > 0)
        self.stack, self.features = stack, stack.coordinates(features)
        self.on_device = torch.from_numpy(self.codes).to(stack.device) if stack.device.type == "cuda" else None

    @torch.no_grad()
    def scores(self) -> NDArray[np.float64]:
        """Return the mean average precision of every plan's head, ``(M,)``; NaN where its logits are not finite."""
        classes, stack = self.codes.shape[0], self.stack
        found = np.full(len(stack.plans), np.nan)
        step = max(1, CHUNK // max(self.codes.size, 1))
        for first in range(0, len(found), step):
            part = slice(first * classes, (first + step) * classes)
            logits = torch.addmm(stack.bias[part, None], stack.weight[part], self.features.t())
            heads = logits.view(-1, classes, len(self.features))
            good = heads.isfinite().all(dim=2).all(dim=1).cpu().numpy()
            values = self._precision(heads[torch.from_numpy(good).to(heads.device)])
            found[first : first + len(good)][good] = values[:, self.counted].mean(axis=1)
        by_plan: NDArray[np.float64] = found[stack.row_of_plan.cpu().numpy()]
        return by_plan

    def _precision(self, logits: Tensor) -> NDArray[np.float64]:
        """Return the average precision of heads and classes, ``(m, K)``."""
        if self.on_device is not None:
            ranked: NDArray[np.float64] = average_precision_on_device(logits, self.on_device).cpu().numpy()
            return ranked
        codes = np.broadcast_to(self.codes, logits.shape).reshape(-1, logits.shape[-1])
        return average_precision_of_rankings(logits.flatten(0, 1).cpu().numpy(), codes).reshape(logits.shape[:2])
