"""A review that is open: the candidates, the data they are about, and the decisions so far."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.audit.candidates import KINDS
from labelgap.audit.live import Aim
from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Split
from labelgap.review.additions import AddedClassNames, SimilarImages
from labelgap.review.candidates import WRONG, Candidates, Copies, find_copies
from labelgap.review.database import FILE as STORE
from labelgap.review.estimates import AuditCounts, ReviewEstimate, SampleEstimate, count_audited, estimate_current
from labelgap.review.folder import ReviewFolder, open_review_folder
from labelgap.review.live import LiveRankings, Ranking, RankingJob, image_features
from labelgap.review.progress import ClassProgress, CurrentDecisions, ReviewProgress, count_classes, count_progress
from labelgap.review.store import ASKED, Decision, DecisionStore, LabelKey
from labelgap.review.team import SecondOpinions

_CACHE_SIZE: Final = 64
_WORK: Final = 5  # a value that may be old is computed again after five times as long as that takes


class VersionedCache:
    """A few values by name, computed once for one version of the decisions. Threads may share it.

    Where the caller tolerates it, a value that is a little old is returned, also while another thread computes the new
    one.
    """

    def __init__(self) -> None:
        self._values: dict[str, tuple[int, float, Any]] = {}  # version, until when it is good enough, and value
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._local = threading.local()

    def get(self, key: str, version: int, compute: Callable[[], Any]) -> Any:
        """Return the value of a key, computed again where it is of another version."""
        of, good_until, value = self._values.get(key, (-1, 0.0, None))
        tolerance, lock = getattr(self._local, "tolerance", 0.0), self._locks[key]
        if of == version or (tolerance and of >= 0 and time.monotonic() < good_until + tolerance):
            return value
        if not lock.acquire(blocking=of < 0 or not tolerance):
            return value  # another thread computes it
        try:
            of, _, value = self._values.get(key, (-1, 0.0, None))
            if of < version:
                start = time.monotonic()
                with self.tolerating(0.0):  # what it is computed from must be of its version
                    value = compute()
                end = time.monotonic()
                self._values[key] = version, end + _WORK * (end - start), value
                while len(self._values) > _CACHE_SIZE:
                    self._values.pop(next(iter(self._values)), None)
            return value
        finally:
            lock.release()

    @contextmanager
    def tolerating(self, seconds: float) -> Iterator[None]:
        """In this block and thread, return values that are up to so many seconds old."""
        before, self._local.tolerance = getattr(self._local, "tolerance", 0.0), seconds
        try:
            yield
        finally:
            self._local.tolerance = before


class Review:
    """A folder with candidates and decisions, opened, of one split or all, maybe ``read_only``."""

    def __init__(
        self, folder: ReviewFolder, split: str | None = None, *, read_only: bool = False, precision: float = 0.95
    ) -> None:
        if not 0.5 <= precision <= 0.999:
            raise InputError(f"--precision {precision}: a share from 0.5 to 0.999, e.g. 0.95")
        self.folder, self.split, self.precision = folder, split, precision
        self.path: Path = folder.path
        self.name = folder.path.resolve().name
        self.candidates = Candidates(folder.path / CANDIDATES, folder.classes, split)
        if not len(self.candidates):
            raise RunError(f"{folder.path} has no candidates{self.candidates.why_none()}")
        self.store = DecisionStore(folder.path / STORE, read_only=read_only)
        self.rankings: LiveRankings | None = None
        self.cache, self.opinions = VersionedCache(), SecondOpinions(self.store)
        self.added = AddedClassNames(folder, self.store, self.candidates.metadata, split)
        self.candidates = self.added.extend(self.candidates)

    def close(self) -> None:
        """End the live order, and close the store."""
        if self.rankings is not None:
            self.rankings.stop()
        self.store.close()

    def reopened(self) -> Review:
        """Return the review of the folder as it is now, and close this one."""
        folder = open_review_folder(self.path, self.folder.source, **self.folder.options)
        fresh = Review(folder, self.split, precision=self.precision)
        self.close()
        return fresh

    def start_ranking(self) -> None:
        """Rank what is open again while people decide, in a process of its own; random images stay in their order."""
        if not self.folder.random and not np.isnan(self.candidates.columns.score).all():
            self.rankings = LiveRankings(RankingJob.of(self.folder, self.candidates), self.store, self._decisions)

    def refresh_classes(self, now: bool = False) -> None:
        """Take classes into account that people added since; ``now``: also what another thread has just seen."""
        if now or self.added.changed():
            with self.added.lock:
                candidates = self.added.extend(self.candidates)
                if candidates is not self.candidates:
                    self._extend(candidates)

    def _extend(self, candidates: Candidates) -> None:
        """Replace all that depends on the candidates at once: other threads are using it."""
        extended = copy(self)
        names = ["current", "copies", "image_order", "_rows", "_counts"]
        if candidates.columns.images != self.candidates.columns.images:
            names.append("similar")
        vars(extended).update(candidates=candidates, cache=VersionedCache())
        for name in names:
            vars(extended).pop(name, None)
        replaced = {name: getattr(extended, name) for name in ("candidates", "cache", *names)}
        if self.rankings is not None:  # first: an order of more candidates than there are does no harm
            self.rankings.job = RankingJob.of(self.folder, candidates)
        vars(self).update(replaced)

    def _decisions(self) -> tuple[NDArray[np.int64], NDArray[np.int8], int]:
        current = self.current  # and its candidates: another thread may be replacing both
        with current.lock:
            current.refresh()
            numbers = np.flatnonzero(current.decided & (current.candidates.columns.kind != WRONG))
            return numbers, current.value[numbers], current.last_id

    @cached_property
    def current(self) -> CurrentDecisions:
        """The decision in force for every candidate."""
        return CurrentDecisions(self.candidates, self.store, self._first_ranking())

    def _first_ranking(self) -> int:
        """Return the number of the first ranking of this audit; 0 where there was no other before it."""
        if not self.candidates.metadata.get("replaces"):
            return 0
        if not self.store.read_only:
            return self.audit_ranking
        known = (number for number, _, model, *_ in self.store.rankings() if model == self._digest)
        return next(known, np.iinfo(np.int64).max)

    def splits(self) -> list[str]:
        """Return the splits that the candidates are of."""
        return sorted({split for split, _ in self.candidates.columns.images})

    def cached(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return a value that is computed again only after a new event; see ``VersionedCache.tolerating``."""
        self.current.refresh()
        return self.cache.get(key, self.current.last_id, compute)

    def locate(self, image: int) -> tuple[Split, int] | None:
        """Return the split and row of an image in the data; None when the data no longer have it."""
        key = self.candidates.columns.images[image]
        return (self.folder.data.split(key[0]), self._rows[key]) if key in self._rows else None

    @cached_property
    def _rows(self) -> dict[tuple[str, str], int]:
        asked, rows = {*self.candidates.columns.images}, dict[tuple[str, str], int]()
        for split in self.folder.data.splits:
            names = enumerate(split.labels.images)
            rows |= {(split.name, name): row for row, name in names if (split.name, name) in asked}
        return rows

    @cached_property
    def copies(self) -> Copies:
        """The copies of images in the data, and which candidates are asked about."""
        return find_copies(self.folder.data, self.candidates, self.current.decided)

    def listed(self, class_number: int, wrong: bool = False) -> NDArray[np.int64]:
        """Return the candidates of a class in the order of the audit, decided or not; one for all copies."""
        rows = self.candidates.listed(class_number, wrong)
        return rows[self.copies.shown[rows]]

    def is_open(self) -> NDArray[np.bool_]:
        """Return ``(C,)`` which candidates are asked about, and nobody has decided."""
        with self.current.lock:
            return self.copies.shown & ~self.current.decided

    def ranking(self, aim: Aim = "missing") -> Ranking | None:
        """Return the newest ranking of the open candidates; None before the first, where the order is the audit's."""
        return None if self.rankings is None else self.rankings.newest(aim)

    @cached_property
    def similar(self) -> SimilarImages:
        """The images by their similarity to one of them."""
        return SimilarImages(lambda: image_features(self.folder, self.candidates.columns.images))

    @cached_property
    def audit_ranking(self) -> int:
        """The number of the audit's own order in the store; 0 where nothing can be stored."""
        if self.store.read_only:
            return 0
        aim = "random" if self.folder.random else "missing"
        return self.store.add_ranking(aim, self._digest, 0, self.store.last_id())

    @cached_property
    def _digest(self) -> str:
        return hashlib.blake2b((self.path / CANDIDATES).read_bytes(), digest_size=16).hexdigest()

    def of_image(self, image: int) -> NDArray[np.int64]:
        """Return the candidates of an image that are asked about, the most probable first."""
        rows = self.candidates.of_image(image)
        return rows[self.copies.shown[rows]]

    @cached_property
    def image_order(self) -> NDArray[np.int64]:
        """The images that something is asked about, by the rank of their best candidate."""
        asked = np.zeros(len(self.candidates.columns.images), dtype=np.bool_)
        asked[self.candidates.columns.image[self.copies.shown]] = True
        order = self.candidates.image_order
        return order[asked[order]]

    def decision(
        self,
        number: int,
        value: int,
        request_id: str,
        base_version: int,
        asked: str | None = None,
        ranking: int = 0,
        place: int = 0,
    ) -> Decision:
        """Return a decision on a candidate and its copies, with its score now, of the kind that it was asked as.

        A decision that replaces another keeps its kind: a random answer that is corrected is still one.
        """
        columns, current = self.candidates.columns, self.current
        score, kind = float(columns.score[number]), KINDS[columns.kind[number]]
        if asked is not None:
            possible = kind, "random" if columns.random_rank[number] else "", "classifier" if kind == "missing" else ""
            kind = asked if asked in possible else "other"
        if asked is not None or self.folder.random:  # another tool may show images in the order of their scores
            ranking = ranking or self.audit_ranking
        with current.lock:
            if current.decided[number]:
                kind, ranking = ASKED[current.asked[number]], int(current.ranking[number])
        known, key = None if np.isnan(score) else score, self.candidates.key(number)
        return Decision(key, value, request_id, base_version, kind, known, self.copies_of(number), ranking, place)

    def copies_of(self, number: int) -> tuple[LabelKey, ...]:
        """Return the labels of copies that a decision is about: unknown ones, unless a known label may be wrong."""
        wrong = bool(self.candidates.columns.kind[number] == WRONG)
        return self.copies.of(self.candidates.key(number), known=wrong)

    def progress(self) -> ReviewProgress:
        """Return how far the review is."""
        return count_progress(self.current)

    def classes(self) -> list[ClassProgress]:
        """Return how far the review of each class is; classes without candidates are left out."""
        return count_classes(self.current)

    def estimate(self, class_number: int | None = None) -> SampleEstimate | None:
        """Estimate how many labels are missing, of one class or of all; None where nothing supports an estimate."""
        estimates = self.estimates()
        return estimates.total if class_number is None else estimates.by_class[class_number]

    def estimates(self) -> ReviewEstimate:
        """Estimate how many labels are missing, of each class and of all, and how probable each candidate is."""
        found: ReviewEstimate = self.cached("estimates", self._estimate)
        return found

    def _estimate(self) -> ReviewEstimate:
        # a summary does not open the data: random labels after an open copy then count later than on the page
        shown = self.copies.shown if "copies" in vars(self) else np.ones(len(self.candidates), dtype=np.bool_)
        audited = [self.split] if self.split else self.candidates.metadata.get("splits") or self.splits()
        return estimate_current(self.folder, self.current, self._counts, audited, shown)

    @cached_property
    def _counts(self) -> AuditCounts:
        return count_audited(self.folder, self.candidates, self.split)
