"""Feature vectors in place of images: what a network computed elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.text import pluralize
from labelgap.data.images import NamedRows

_BLOCK: Final = 4096
FEATURES: Final = "features"
"""The name of the backbone that is no network: what comes in are its features."""


class FeatureVectors(NamedRows):
    """One vector of ``(N, D)`` floats per image in place of an ``ImageSource``; asked for pixels, an error says why."""

    row_fields = ("vectors",)

    def __init__(self, vectors: NDArray[np.floating[Any]], names: Sequence[str] | None = None) -> None:
        vectors = np.asarray(vectors)
        if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] == 0:
            raise InputError(f"features are (N, D) floats, not {vectors.shape} of {vectors.dtype}.")
        blocks = (vectors[start : start + _BLOCK] for start in range(0, len(vectors), _BLOCK))  # it may be in a file
        invalid = np.flatnonzero(
            np.concatenate([np.empty(0, bool), *(~np.isfinite(each).all(axis=1) for each in blocks)])
        )
        if len(invalid):
            raise InputError(
                f"the features of row {invalid[0]} are not finite ({pluralize(len(invalid), 'such row')} in all)."
            )
        self.set_names(names, len(vectors), "vectors")
        self.vectors = vectors

    @property
    def width(self) -> int:
        """D, the number of features."""
        return int(self.vectors.shape[1])

    def __getitem__(self, row: int) -> NoReturn:
        raise InputError(
            "these data are feature vectors, there are no pixels to show or to train a network on: "
            "use the protocol linear, or data with images."
        )

    def __repr__(self) -> str:
        return f"FeatureVectors({len(self):,} of {self.width:,} numbers)"

    def fingerprint(self) -> str:
        """Return a hash of the shape and every number."""
        digest = hashlib.blake2b(f"{self.vectors.shape} {self.vectors.dtype}".encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.vectors).data)
        return digest.hexdigest()
