"""The classes that people added to a review, as its servers see them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from labelgap.core.errors import InputError, LabelGapError
from labelgap.data.dataset import Dataset
from labelgap.review.candidates import Candidates
from labelgap.review.folder import ReviewFolder, drawn_rows
from labelgap.review.new_classes.extension import AddedClasses, extend_candidates
from labelgap.review.new_classes.names import check_class_name, folded_name, taken_names
from labelgap.review.store import DecisionStore

INTERVAL: Final = 0.5
"""Seconds after which another look at the store may be taken."""
MAX_LABELS: Final = 10_000_000
"""Candidates that added classes may have together: a few hundred megabytes."""


class AddedClassNames:
    """The classes that a store has beside those of the data.

    Args:
        folder: of the review.
        store: of the review.
        metadata: of the audit.
        split: the only split that is reviewed, if so.

    Attributes:
        lock: for whoever extends something by them.
    """

    def __init__(
        self, folder: ReviewFolder, store: DecisionStore, metadata: Mapping[str, Any], split: str | None
    ) -> None:
        self._folder, self._store, self._split = folder, store, split
        self._splits = [split] if split else metadata.get("splits")
        self._count, self._asked = 0, -np.inf
        self.lock = threading.RLock()

    def changed(self) -> bool:
        """Return whether there are more classes than ``extend`` has seen; the store is asked every half second."""
        now = time.monotonic()
        if now - self._asked < INTERVAL:
            return False
        self._asked = now
        return len(self._store.classes()) != self._count

    def extend(self, candidates: Candidates) -> Candidates:
        """Return candidates with those of all added classes.

        A review that is only read, and whose data cannot be loaded, stays as it is.
        """
        with self.lock:
            names = [each.name for each in self._store.classes()]
            if names:
                try:
                    candidates = extend_candidates(candidates, self._added(candidates, names))
                except LabelGapError:
                    if not self._store.read_only:
                        raise
            self._count, self._asked = len(names), time.monotonic()
            return candidates

    def add(self, name: str, reviewer: str, candidates: Candidates) -> str:
        """Add a class, and return its name; an ``InputError`` says why that is not possible."""
        with self.lock:
            data: Dataset = self._folder.data
            added = [each.name for each in self._store.classes()]
            name = check_class_name(name, [*data.classes, *added], len(added), taken_names(data))
            images = len(self._images(candidates))
            if (len(added) + 1) * images > MAX_LABELS:
                raise InputError(
                    f"with {images:,} images at most {MAX_LABELS // images:,} classes can be added. Apply the "
                    "decisions, and train again: added classes are as others then."
                )
            self._store.add_class(name, reviewer)
            self._asked = -np.inf
            return name

    def _added(self, candidates: Candidates, names: list[str]) -> AddedClasses:
        """Return what makes candidates of the names; of two spellings of a name only the first counts."""
        known = {folded_name(name) for name in self._folder.classes}
        first = {folded_name(name): name for name in reversed(names) if folded_name(name) not in known}
        kept = tuple(name for name in names if first.get(folded_name(name)) == name)
        return AddedClasses(kept, self._images(candidates), self._store.id, self._folder.random)

    def _images(self, candidates: Candidates) -> list[tuple[str, str]]:
        """Return split and name of every image that was audited, or drawn."""
        data = self._folder.data
        if self._folder.random:
            split = data.split(candidates.columns.images[0][0])
            return [(split.name, split.labels.images[row]) for row in drawn_rows(self._folder).tolist()]
        splits = self._splits or sorted({split for split, _ in candidates.columns.images})
        return [(name, image) for name in splits for image in data.split(name).labels.images]
