"""Rank the candidates of an audit: missing labels, labels that look wrong, and a random sample of unknown labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.audit.calibration import ScoreCalibration, fit_calibration
from labelgap.audit.estimate import MissingEstimate
from labelgap.audit.sampling import draw_unknown
from labelgap.audit.score_sample import MAX_SAMPLED_SCORES, count_unknown_above, sample_scores
from labelgap.audit.scorers import ScoreBlock, Scorer, score_blocks
from labelgap.audit.top_candidates import RankedCandidates, TopCandidates
from labelgap.labels import PRESENT, UNKNOWN, LabelTable
from labelgap.metrics.thresholds import MIN_PRESENT

WRONG_SHARE: Final = 10
"""At most ``limit`` divided by this many labels that look wrong are kept."""


@dataclass(frozen=True)
class CandidateLimits:
    """How many candidates are kept.

    Attributes:
        per_class: missing labels of a class.
        limit: missing labels in all.
        random: random labels for each missing one.
    """

    per_class: int = 2_000
    limit: int = 100_000
    random: float = 0.1


@dataclass(frozen=True, eq=False)
class CandidateList:
    """Candidates of one kind in the order of their ranks; each array is ``(C,)``.

    Attributes:
        rows: image numbers, counted over all splits.
        columns: class numbers.
        scores: calibrated, from 0 to 1.
        observed: codes of the observed labels.
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
class CandidateRanking:
    """The result of an audit.

    Attributes:
        missing: unknown labels that are probably present, the most probable first.
        wrong: known labels that look wrong, the least plausible first.
        random: unknown labels in the order in which they were drawn.
        calibration: turns logits into scores.
        estimate: how many labels are missing; None where too few labels are known.
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
    calibration, known = _calibrate(tagged, scorers, seed, max_sampled, advance, prior)
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
        MissingEstimate(by_class, known) if known.sum() >= MIN_PRESENT else None,
    )


def _calibrate(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    seed: int,
    max_sampled: int,
    advance: Callable[[int], None],
    prior: bool,
) -> tuple[ScoreCalibration, NDArray[np.int64]]:
    """Return the calibration, and how many labels of each class are known present."""
    sample = sample_scores(tables, scorers, seed, max_sampled, advance)
    counter = partial(count_unknown_above, tables, scorers, advance=advance)
    calibration = fit_calibration(sample, None if sample.scale <= 1 else counter, prior=prior)
    return calibration, np.bincount(sample.present_class, minlength=sample.classes)


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
