"""Which images look like a given one: the nearest in feature space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.live import FeatureScale

_BLOCK: Final = 2048
"""Images whose features are read at a time."""


class ImageSimilarity:
    r"""The cosine between the centered features of images.

    .. math:: \cos(i, q) = \frac{(x_i - \mu) \cdot (x_q - \mu)}{\lVert x_i - \mu \rVert\, \lVert x_q - \mu \rVert}

    with the mean :math:`\mu` over all images; 0 where an image has no length. Exact: every image is compared. The
    lengths are computed once, in one pass over the features; a query is one more. Both read blocks of rows, so the
    features may be a memory-mapped file.

    Args:
        scale: the features of all images, and their mean.
    """

    def __init__(self, scale: FeatureScale) -> None:
        self.scale = scale
        lengths = [np.linalg.norm(block - scale.mean, axis=1) for block in self._blocks()]
        self._lengths = np.concatenate(lengths) if lengths else np.empty(0, dtype=np.float32)

    def cosine(self, row: int) -> NDArray[np.float32]:
        """Return ``(N,)`` the cosine of every image with the one of a row, from −1 to 1."""
        mean = self.scale.mean
        query = np.asarray(self.scale.features[row], dtype=np.float32) - mean
        products = np.concatenate([block @ query for block in self._blocks()]) - mean @ query
        scale = self._lengths * self._lengths[row]
        cosine = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
        return np.asarray(np.clip(cosine, -1, 1))

    def nearest(self, row: int) -> NDArray[np.int64]:
        """Return the rows of all other images, the most similar first; of equal ones the first row."""
        order = np.argsort(-self.cosine(row), kind="stable")
        return np.asarray(order[order != row])

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the features in single precision, in blocks of rows."""
        for start in range(0, len(self.scale.features), _BLOCK):
            yield np.asarray(self.scale.features[start : start + _BLOCK], dtype=np.float32)
