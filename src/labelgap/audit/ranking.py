"""Rank the candidates of an audit: missing labels, labels that look wrong, and a random sample of unknown labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.audit.calibration import (
    MAX_SAMPLED_SCORES,
    ScoreCalibration,
    count_unknown,
    fit_calibration,
    sample_scores,
)
from labelgap.audit.scorers import ScoreBlock, Scorer, score_blocks
from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.labels import PRESENT, UNKNOWN, LabelTable
from labelgap.metrics.label_model import round_to_sum
from labelgap.metrics.thresholds import MIN_PRESENT

WRONG_SHARE: Final = 10
"""At most ``limit`` divided by this many labels that look wrong are kept."""


@dataclass(frozen=True)
class CandidateLimits:
    """How many missing labels are kept, of a class and in all, and random ones for each missing one."""

    per_class: int = 2_000
    limit: int = 100_000
    random: float = 0.1


@dataclass(frozen=True, eq=False)
class CandidateList:
    """Candidates of one kind in the order of their ranks; each array is ``(C,)``.

    ``rows`` are image numbers, counted over all splits; ``columns`` class numbers; ``scores`` are calibrated, from 0 to
    1; ``observed`` are the codes of the observed labels.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.integer[Any]]
    scores: NDArray[np.float32]
    observed: NDArray[np.int8]

    @classmethod
    def of_unknown(
        cls, rows: NDArray[np.int64], columns: NDArray[np.integer[Any]], scores: NDArray[np.float32]
    ) -> CandidateList:
        """Return candidates whose labels are unknown."""
        return cls(rows, columns, scores, np.full(len(rows), UNKNOWN, dtype=np.int8))

    def select(self, positions: NDArray[np.int64]) -> CandidateList:
        """Return some of the candidates, in the order given."""
        parts = (self.rows, self.columns, self.scores, self.observed)
        return CandidateList(*(part[positions] for part in parts))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class MissingEstimate:
    """How many unknown labels are present, estimated before a review.

    Attributes:
        by_class: ``(K,)`` the sum of the scores of each class's unknown labels.
        known: ``(K,)`` known present labels.
        range: how few and how many may be missing in all: the 95 % interval of the label model.
        spread: how wrong the log-odds of all classes may be, downwards and upwards; a review starts from it.
    """

    by_class: NDArray[np.float64]
    known: NDArray[np.int64]
    range: tuple[int, int]
    spread: tuple[float, float]

    @property
    def missing(self) -> float:
        """Missing labels of all classes."""
        return float(self.by_class.sum())

    def to_json(self, classes: Sequence[str]) -> dict[str, Any]:
        """Return the metadata for ``candidates.parquet``; the integers of all classes sum to the total."""
        by_class = round_to_sum(self.by_class).tolist()
        return {
            "missing": sum(by_class),
            "range": [min(self.range[0], sum(by_class)), max(self.range[1], sum(by_class))],
            "spread": list(self.spread),
            "known": int(self.known.sum()),
            "missing_per_class": dict(zip(classes, by_class, strict=True)),
        }


@dataclass(frozen=True, eq=False)
class CandidateRanking:
    """The result of an audit: missing labels, those that look wrong, and random ones in the order of their draw.

    There is no estimate where too few labels are known.
    """

    missing: CandidateList
    wrong: CandidateList
    random: CandidateList
    calibration: ScoreCalibration
    estimate: MissingEstimate | None


def rank_candidates(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    limits: CandidateLimits | None = None,
    seed: int = 0,
    max_sampled: int = MAX_SAMPLED_SCORES,
    advance: Callable[[int], None] = lambda count: None,
    reviewed: NDArray[np.int64] | None = None,
    *,
    prior: bool = False,
) -> CandidateRanking:
    """Rank the unknown labels of some splits by the probability that they are present.

    Images are scored in blocks: no array of the size images × classes is held. Small data are scored twice, to
    calibrate and to rank; where the calibration sees only a sample, once more between the two, to count.

    Args:
        tables: labels of each split.
        scorers: one for each run.
        limits: how many candidates to keep.
        seed: of everything that is drawn.
        max_sampled: largest number of scores of unknown labels for the calibration.
        advance: called with the number of images of each block.
        reviewed: labels that a person decided, ``row · K + class``: none looks wrong; the calibration: `_without`.
        prior: whether the last scorer is a prior, standardized for each class, and not a run.

    A known label *looks wrong* if it is observed present and scores below the mean of the class's labels that are not,
    or observed absent and scores above the mean of those observed present (the thresholds of confident learning:
    Northcutt et al., JAIR 2021).
    """
    limits = limits or CandidateLimits()
    classes = len(next(iter(tables.values())).classes)
    tagged = tables if reviewed is None or not len(reviewed) else _without(tables, reviewed)
    sample = sample_scores(tagged, scorers, seed, max_sampled, advance)
    counter = partial(count_unknown, tagged, scorers, advance=advance)
    calibration = fit_calibration(sample, None if sample.scale <= 1 else counter, prior=prior)
    known = np.bincount(sample.present_class, minlength=classes)
    del sample
    missing = TopCandidates(classes, limits.per_class, limits.limit)
    wrong = TopCandidates(classes, limits.per_class, max(limits.limit // WRONG_SHARE, 1))
    unknown = sum(table.counts().total[2] for table in tables.values())
    count = min(round(limits.random * min(limits.limit, limits.per_class * classes, unknown)), unknown)
    rows, columns = draw_unknown(list(tables.values()), count, seed)
    order = np.argsort(rows, kind="stable")
    scores, by_class = np.empty(len(order), dtype=np.float32), np.zeros(classes)
    for block in score_blocks(tables, scorers):
        odds = calibration.log_odds(block.logits)
        _update_wrong(wrong, block, expit(odds.reshape(-1)[block.known]), calibration, reviewed)
        first, last = np.searchsorted(rows[order], [block.first, block.first + len(odds)])
        drawn = order[first:last]
        scores[drawn] = expit(odds[rows[drawn] - block.first, columns[drawn]])
        odds.reshape(-1)[block.known] = -np.inf
        missing.update(odds, block.first)
        by_class += expit(odds).sum(axis=0, dtype=np.float64)
        advance(len(odds))
    best = missing.ranked()
    return CandidateRanking(
        CandidateList.of_unknown(best.rows, best.columns, expit(best.keys)),
        _wrong_candidates(wrong.ranked(), tables),
        CandidateList.of_unknown(rows, columns, scores),
        calibration,
        MissingEstimate(by_class, known, calibration.range, calibration.spread) if known.sum() >= MIN_PRESENT else None,
    )


def _without(tables: Mapping[str, LabelTable], labels: NDArray[np.int64]) -> dict[str, LabelTable]:
    """Return the tables with some labels unknown, ``row · K + class``; rows are counted over all tables.

    The calibration needs the labels as they were tagged: people decide the most probable ones first.
    """
    result, before = {}, 0
    for name, table in tables.items():
        positions = (before + table.rows) * len(table.classes) + table.columns
        result[name] = table.keep(~np.isin(positions, labels))
        before += len(table)
    return result


def _update_wrong(
    wrong: TopCandidates,
    block: ScoreBlock,
    scores: NDArray[np.float32],
    calibration: ScoreCalibration,
    reviewed: NDArray[np.int64] | None = None,
) -> None:
    """Add the known labels of a block that look wrong; the key is the distance between score and observed label."""
    classes = len(calibration.offset)
    columns = (block.known % classes).astype(np.int32)
    present = block.values == PRESENT
    looks_wrong = np.where(
        present, scores < calibration.mean_not_present[columns], scores > calibration.mean_present[columns]
    )
    if reviewed is not None and len(reviewed):
        looks_wrong &= ~np.isin(block.first * classes + block.known, reviewed)
    keys = np.where(present, 1 - scores, scores)[looks_wrong].astype(np.float32)
    wrong.update_entries(keys, block.first + block.known[looks_wrong] // classes, columns[looks_wrong])


def _wrong_candidates(ranked: RankedCandidates, tables: Mapping[str, LabelTable]) -> CandidateList:
    observed = np.empty(len(ranked.rows), dtype=np.int8)
    before = 0
    for table in tables.values():
        members = np.flatnonzero((ranked.rows >= before) & (ranked.rows < before + len(table)))
        observed[members] = table.codes_at(ranked.rows[members] - before, ranked.columns[members])
        before += len(table)
    scores = np.where(observed == PRESENT, 1 - ranked.keys, ranked.keys).astype(np.float32)
    return CandidateList(ranked.rows, ranked.columns, scores, observed)


class RankedCandidates(NamedTuple):
    """Candidates, the highest key first; each array is ``(C,)``."""

    keys: NDArray[np.float32]
    rows: NDArray[np.int64]
    columns: NDArray[np.int32]

    def select(self, index: NDArray[np.int64]) -> RankedCandidates:
        """Return the candidates at some positions."""
        return RankedCandidates(self.keys[index], self.rows[index], self.columns[index])


class TopCandidates:
    """Keeps the first ``per_class`` candidates of every class and, of those, the first ``limit``.

    Half of the limit is divided evenly: the first ``limit // (2 K)`` of every class are kept however low they score, so
    that rare classes can be reviewed too. Equal keys are ordered by row, then class. The result does not depend on the
    block size, as long as rows arrive in ascending order.
    """

    def __init__(self, classes: int, per_class: int, limit: int) -> None:
        if per_class < 1 or limit < 1:
            raise InputError(f"{per_class} candidates per class, {limit} in all: at least one of each.")
        self.classes, self.per_class, self.limit = classes, per_class, limit
        self.guaranteed = min(limit // (2 * max(classes, 1)), per_class)
        self._chunks: list[RankedCandidates] = []
        self._size = 0
        self._threshold = np.full(classes, -np.inf, dtype=np.float32)
        """The key that an entry of each class must exceed."""

    def update(self, keys: NDArray[np.float32], first_row: int = 0) -> None:
        """Add all entries ``(B, K)`` of a block of images; −inf for an entry that is no candidate."""
        step = max(1, 2 * self.limit // max(self.classes, 1))
        for start in range(0, len(keys), step):
            part = keys[start : start + step]
            rows, columns = np.nonzero(part > self._threshold)
            self._append(RankedCandidates(part[rows, columns], rows + first_row + start, columns.astype(np.int32)))

    def update_entries(self, keys: NDArray[np.float32], rows: NDArray[np.int64], columns: NDArray[np.int32]) -> None:
        """Add single entries; each array is ``(C,)``."""
        above = np.flatnonzero(keys > self._threshold[columns])
        self._append(RankedCandidates(keys, rows, columns).select(above))

    def ranked(self) -> RankedCandidates:
        """Return the candidates that are kept, the highest key first."""
        self._compact()
        (kept,) = self._chunks
        return kept.select(np.lexsort((kept.columns, kept.rows, -kept.keys)))

    def _append(self, chunk: RankedCandidates) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk.keys)
        if self._size > 2 * self.limit:
            self._compact()

    def _compact(self) -> None:
        """Drop the entries that can no longer be kept, and raise the thresholds."""
        empty = RankedCandidates(np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int32))
        held = RankedCandidates(*(np.concatenate(parts) for parts in zip(*(self._chunks or [empty]), strict=True)))
        held = held.select(np.lexsort((held.rows, -held.keys, held.columns)))
        rank = class_ranks(held.columns)
        others = np.flatnonzero((rank > self.guaranteed) & (rank <= self.per_class))
        free = self.limit - int((rank <= self.guaranteed).sum())
        limit_key = np.float32(-np.inf)
        if len(others) > free:
            order = np.lexsort((held.columns[others], held.rows[others], -held.keys[others]))
            others = others[order[:free]]
            limit_key = held.keys[others[-1]] if free > 0 else np.float32(np.inf)
        class_key, guaranteed_key = self._key_at(held, rank, self.per_class), self._key_at(held, rank, self.guaranteed)
        self._threshold = np.maximum(class_key, np.minimum(guaranteed_key, limit_key))
        kept = held.select(np.concatenate([np.flatnonzero(rank <= self.guaranteed), others]))
        self._chunks, self._size = [kept], len(kept.keys)

    def _key_at(self, held: RankedCandidates, rank: NDArray[np.int64], place: int) -> NDArray[np.float32]:
        """Return the key of the entry at a rank of each class; −inf where a class has fewer, inf at rank 0."""
        keys = np.full(self.classes, -np.inf if place else np.inf, dtype=np.float32)
        at = np.flatnonzero(rank == place)
        keys[held.columns[at]] = held.keys[at]
        return keys


def class_ranks(columns: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the rank of every entry within its class, from 1, where entries are sorted by class."""
    starts = np.flatnonzero(np.diff(columns, prepend=np.int32(-2)))
    lengths = np.diff(starts, append=len(columns))
    return np.arange(len(columns)) - np.repeat(starts, lengths) + 1


def draw_unknown(
    tables: Sequence[LabelTable], count: int, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw unknown labels of several tables uniformly, without replacement, in random order: rows and class numbers.

    Rows are counted over all tables. No array of the size rows × classes is made.
    """
    table = tables[0] if len(tables) == 1 else LabelTable.concatenate(tables, keep_names=False)
    ends = np.cumsum(len(table.classes) - np.diff(table.starts))
    total = int(ends[-1]) if len(ends) else 0
    random = numpy_generator(seed, "random candidates")
    if 4 * count >= total:
        numbers = random.permutation(total)[:count]
    else:
        numbers = np.empty(0, dtype=np.int64)
        while len(numbers) < count:
            drawn = np.concatenate([numbers, random.integers(total, size=count + 16)])
            numbers = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        numbers = numbers[:count]
    rows = np.searchsorted(ends, numbers, side="right")
    before = np.concatenate([[0], ends])[rows]
    return rows, nth_unknown(table, rows, numbers - before)


def nth_unknown(table: LabelTable, rows: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class number of the n-th unknown label (from 0) of each row.

    The known classes c₀ < c₁ < … of a row leave its n-th unknown label at n + #{i : cᵢ − i ≤ n}.
    """
    width = len(table.classes) + 1
    order = np.arange(len(table.columns)) - np.repeat(table.starts[:-1], np.diff(table.starts))
    gaps = table.rows * width + table.columns - order
    skipped: NDArray[np.int64] = np.searchsorted(gaps, rows * width + n, side="right") - table.starts[rows]
    return n + skipped
