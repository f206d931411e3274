"""How many labels of each state there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LabelCounts"]


@dataclass(frozen=True)
class LabelCounts:
    """How many labels of each state there are, per class.

    Attributes:
        present: ``(K,)``
        absent: ``(K,)``
        unknown: ``(K,)``
    """

    present: NDArray[np.int64]
    absent: NDArray[np.int64]
    unknown: NDArray[np.int64]

    @property
    def total(self) -> tuple[int, int, int]:
        """Present, absent and unknown over all classes."""
        return int(self.present.sum()), int(self.absent.sum()), int(self.unknown.sum())
