"""Similar images for the page: their features are loaded in the background, so that nothing waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.live import FeatureScale
from labelgap.core.errors import LabelGapError
from labelgap.review.new_classes.similarity import ImageSimilarity

PATIENCE: Final = 2.0
"""Seconds that a request waits for features that are being loaded."""


class SimilarImages:
    """The order of images by similarity, once features are there.

    Args:
        load: returns the features of the M images; it is called when they are first needed, in a thread.

    Attributes:
        problem: why there are no features; empty while there are, or may be.
    """

    def __init__(self, load: Callable[[], NDArray[np.float32]]) -> None:
        self.problem = ""
        self._load, self._lock = load, threading.Lock()
        self._loaded = threading.Event()
        self._similarity: ImageSimilarity | None = None
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Start to load the features, unless that was done."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="labelgap-similar", daemon=True)
                self._thread.start()

    def positions(self, image: int, patience: float = PATIENCE) -> NDArray[np.int64] | None:
        """Return ``(M,)`` the place of each image by its similarity to one; None before the features are loaded."""
        self.prepare()
        self._loaded.wait(patience)
        if self._similarity is None:
            return None
        order = np.concatenate([[image], self._similarity.nearest(image)])
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        return places

    def _run(self) -> None:
        try:
            self._similarity = ImageSimilarity(FeatureScale.of(self._load()))
        except (LabelGapError, OSError, RuntimeError, ImportError) as error:
            self.problem = str(error)
        self._loaded.set()
