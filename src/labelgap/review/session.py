"""One review: candidates, the data they are about, and the decisions so far; what page and commands ask of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import RunError
from labelgap.data.dataset import Split
from labelgap.labels.codes import UNKNOWN
from labelgap.review.candidates import FILE as CANDIDATES
from labelgap.review.candidates import WRONG, Candidates
from labelgap.review.folder import ReviewFolder
from labelgap.review.progress import CurrentDecisions
from labelgap.review.sample_estimate import SampleEstimate, estimate_from_sample, first_undecided
from labelgap.review.store import FILE as STORE
from labelgap.review.store import DecisionStore

__all__ = ["ClassProgress", "Progress", "Review"]

_NOWHERE: Final = np.int64(2**62)
_REMEMBERED: Final = 32


@dataclass(frozen=True)
class Progress:
    """How far a review is.

    Attributes:
        total: candidates that may be missing, the random ones among them.
        decided: of these.
        found: of these, missing labels that are there.
        unsure: of these, where nobody could tell.
        wrong: candidates that look wrong.
        wrong_decided: of these.
        corrected: of these, labels that were wrong.
    """

    total: int
    decided: int
    found: int
    unsure: int
    wrong: int
    wrong_decided: int
    corrected: int


@dataclass(frozen=True)
class ClassProgress:
    """How far a review of one class is.

    Attributes:
        number: of the class.
        name: of the class.
        total: candidates that may be missing.
        decided: of these.
        found: of these.
        expected: how many of those not decided the model expects to be there; 0 where no model was asked.
        wrong: candidates that look wrong.
        wrong_decided: of these.
    """

    number: int
    name: str
    total: int
    decided: int
    found: int
    expected: float
    wrong: int
    wrong_decided: int


class Review:
    """A folder with candidates and decisions, opened.

    Args:
        folder: a run that was audited, or a review of random images.
        split: leave out the candidates of other splits.
    """

    def __init__(self, folder: ReviewFolder, split: str | None = None) -> None:
        self.folder, self.split = folder, split
        self.name = folder.path.resolve().name
        self.candidates = Candidates(folder.path / CANDIDATES, folder.classes, split)
        if not len(self.candidates):
            raise RunError(f"{folder.path} has no candidates{f' of {split}' if split else ''}: nothing to review.")
        self.store = DecisionStore(folder.path / STORE)
        self._memory: dict[str, tuple[int, Any]] = {}

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    def close(self) -> None:
        """Close the file of the decisions."""
        self.store.close()

    @cached_property
    def standing(self) -> CurrentDecisions:
        """What stands for every candidate."""
        return CurrentDecisions(self.candidates, self.store)

    def remembered(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what was made after the last decision, or make it: much is asked for again before anybody decides."""
        self.standing.refresh()
        last = self.standing.last
        if key not in self._memory or self._memory[key][0] != last:
            self._memory[key] = (last, make())
            while len(self._memory) > _REMEMBERED:
                self._memory.pop(next(iter(self._memory)))
        return self._memory[key][1]

    def place(self, image: int) -> tuple[Split, int] | None:
        """Return where the pixels of an image are: its split and row; None where the data have lost it."""
        row = int(self._rows[image])
        if row == _NOWHERE:
            return None
        return self.folder.data.split(self.candidates.columns.places[image][0]), row

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        places = self.candidates.columns.places
        number = {place: at for at, place in enumerate(places)}
        rows = np.full(len(places), _NOWHERE, dtype=np.int64)
        for split in self.folder.data.splits:
            for row, name in enumerate(split.labels.images):
                at = number.get((split.name, name))
                if at is not None:
                    rows[at] = row
        return rows

    def progress(self) -> Progress:
        """Count."""
        standing, wrong = self.standing, self.candidates.columns.kind == WRONG
        with standing.lock:
            standing.refresh()
            found, done = standing.found(), standing.decided
            unsure = done & ~wrong & (standing.value == UNKNOWN)
            return Progress(
                total=int((~wrong).sum()),
                decided=int((done & ~wrong).sum()),
                found=int((found & ~wrong).sum()),
                unsure=int(unsure.sum()),
                wrong=int(wrong.sum()),
                wrong_decided=int((done & wrong).sum()),
                corrected=int((found & wrong).sum()),
            )

    def classes(self) -> list[ClassProgress]:
        """Count by class; classes without candidates are left out."""
        columns, standing = self.candidates.columns, self.standing
        with standing.lock:
            standing.refresh()
            wrong, done, found = columns.kind == WRONG, standing.decided.copy(), standing.found()
        expected = np.where(done | wrong, 0.0, np.nan_to_num(columns.score.astype(np.float64)))

        def counted(mask: NDArray[np.bool_]) -> list[int]:
            counts: list[int] = np.bincount(columns.class_number[mask], minlength=len(self.candidates.classes)).tolist()
            return counts

        sums = np.bincount(columns.class_number, weights=expected, minlength=len(self.candidates.classes)).tolist()
        rows = zip(
            range(len(self.candidates.classes)),
            self.candidates.classes,
            counted(~wrong),
            counted(done & ~wrong),
            counted(found & ~wrong),
            sums,
            counted(wrong),
            counted(done & wrong),
            strict=True,
        )
        return [ClassProgress(*row) for row in rows if row[2] or row[6]]

    def estimate(self, class_number: int | None = None) -> SampleEstimate | None:
        """Estimate how many labels are missing, of one class or of all; None where no random label counts yet."""
        columns, standing = self.candidates.columns, self.standing
        shown, sampled = self.candidates.keys
        with standing.lock:
            standing.refresh()
            listed = columns.kind != WRONG
            gaps = first_undecided(
                columns.class_number[listed], shown[listed], standing.decided[listed], len(self.candidates.classes)
            )
            counts = (columns.random_rank > 0) & standing.decided & (sampled < gaps[columns.class_number])
            if class_number is not None:
                counts &= columns.class_number == class_number
            return estimate_from_sample(columns.class_number[counts], standing.value[counts], self._unknown)

    @cached_property
    def _unknown(self) -> NDArray[np.int64]:
        """How many labels of every class are unknown where the random sample was drawn."""
        if self.split is not None and self.folder.run is not None:
            return self.folder.data.split(self.split).labels.counts().unknown
        told = self.candidates.about.get("unknown_per_class") or {}
        return np.array([int(told.get(name, 0)) for name in self.candidates.classes], dtype=np.int64)
