"""How good an order of candidates is for somebody who reviews them from the top.

``weights`` count a candidate several times, or not at all, as a bootstrap does that draws whole images.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from labelgap.metrics.validation import format_hits

__all__ = ["precision_at_k", "recall_at_k"]


def precision_at_k(hits: ArrayLike, k: int, weights: ArrayLike | None = None) -> float:
    """Return the share of hits among the first ``k`` candidates; NaN where there is none.

    Args:
        hits: ``(C,)`` whether each candidate is right, in the order of review.
        k: how many are reviewed.
        weights: ``(C,)`` how often each candidate counts; once when None.

    Example:
        >>> precision_at_k([True, False, True, True], 2)
        0.5
    """
    first = np.repeat(*format_hits(hits, weights))[:k]
    return float(first.mean()) if len(first) else float("nan")


def recall_at_k(hits: ArrayLike, k: float, weights: ArrayLike | None = None) -> float:
    """Return which share of all hits lies among the first ``k`` candidates; NaN where there is no hit.

    Example:
        >>> recall_at_k([True, False, True, True], 3)
        0.6666666666666666
    """
    repeated = np.repeat(*format_hits(hits, weights))
    total = int(repeated.sum())
    return int(repeated[: round(k)].sum()) / total if total else float("nan")
