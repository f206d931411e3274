"""One pass over all images, or two: what is missing, what looks wrong, and how many are missing in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.audit.calibration import ScoreCalibration, fit_calibration
from labelgap.audit.estimate import MissingEstimate
from labelgap.audit.sampling import draw_unknown
from labelgap.audit.score_sample import MAX_SAMPLED_SCORES, count_unknown_above, sample_scores
from labelgap.audit.scorers import ScoreBlock, Scorer, score_blocks
from labelgap.audit.top_candidates import RankedCandidates, TopCandidates
from labelgap.labels import PRESENT, LabelTable

__all__ = ["CandidateLimits", "CandidateRanking", "RandomCandidates", "WrongCandidates", "rank_candidates"]

WRONG_SHARE: Final = 10
"""Of labels that look wrong, as many as this part of ``limit`` are kept."""


@dataclass(frozen=True)
class CandidateLimits:
    """How many candidates are kept.

    Attributes:
        per_class: missing ones of a class.
        limit: missing ones in all.
        random: random ones for each missing one.
    """

    per_class: int = 2_000
    limit: int = 100_000
    random: float = 0.1


@dataclass(frozen=True, eq=False)
class RandomCandidates:
    """Unknown labels drawn at random, in the order of the draw; each ``(C,)``."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    scores: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class WrongCandidates:
    """Known labels that look wrong, the worst first; each ``(C,)``."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int32]
    scores: NDArray[np.float32]
    observed: NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class CandidateRanking:
    """What an audit finds; rows are counted over all splits that were looked at.

    Attributes:
        missing: unknown labels that are probably present, the most probable first; their keys are log-odds.
        wrong: known labels that look wrong.
        random: unknown labels drawn at random.
        calibration: what makes scores of logits.
        estimate: how many labels are missing; None where too little is known to tell.
    """

    missing: RankedCandidates
    wrong: WrongCandidates
    random: RandomCandidates
    calibration: ScoreCalibration
    estimate: MissingEstimate | None

    @property
    def scores(self) -> NDArray[np.float32]:
        """The scores of the missing ones, from 0 to 1."""
        scores: NDArray[np.float32] = expit(self.missing.keys)
        return scores


def rank_candidates(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    amounts: CandidateLimits | None = None,
    seed: int = 0,
    sampled: int = MAX_SAMPLED_SCORES,
    advance: Callable[[int], None] = lambda count: None,
) -> CandidateRanking:
    """Rank the unknown labels of some splits by the chance that they are present.

    Images pass by in blocks: nothing of the size of images × classes is ever held. Small data are gone through twice,
    to calibrate and to rank; where only a sample fits the calibration, once more between the two, to count.

    Args:
        tables: labels of each split that is looked at.
        scorers: one for each run.
        amounts: how many candidates to keep.
        seed: of everything that is drawn.
        sampled: scores of unknown labels that the calibration may look at.
        advance: told how many images were gone through.

    A known label *looks wrong* if it is given as present and scores lower than the class's labels do on average that
    are not, or given as absent and scores higher than those given as present do on average (the thresholds of confident
    learning: Northcutt et al., JAIR 2021).
    """
    amounts = amounts or CandidateLimits()
    classes = len(next(iter(tables.values())).classes)
    evidence = sample_scores(tables, scorers, seed, sampled, advance)
    whole = evidence.scale <= 1
    calibration, estimate = fit_calibration(
        evidence, None if whole else lambda odds, cuts: count_unknown_above(tables, scorers, odds, cuts, advance)
    )
    del evidence
    missing = TopCandidates(classes, amounts.per_class, amounts.limit)
    wrong = TopCandidates(classes, amounts.per_class, max(amounts.limit // WRONG_SHARE, 1))
    unknown = sum(table.counts().total[2] for table in tables.values())
    wanted = min(round(amounts.random * min(amounts.limit, amounts.per_class * classes, unknown)), unknown)
    drawn = draw_unknown(list(tables.values()), wanted, seed)
    order = np.argsort(drawn[0], kind="stable")
    scores = np.empty(len(order), dtype=np.float32)
    for block in score_blocks(tables, scorers):
        odds = calibration.log_odds(block.logits)
        _take_wrong(wrong, block, expit(odds.reshape(-1)[block.places]), calibration)
        first, last = np.searchsorted(drawn[0][order], [block.first, block.first + len(odds)])
        here = order[first:last]
        scores[here] = expit(odds[drawn[0][here] - block.first, drawn[1][here]])
        odds.reshape(-1)[block.places] = -np.inf
        missing.take(odds, block.first)
        advance(len(odds))
    return CandidateRanking(
        missing.ranked(), _wrong(wrong.ranked(), tables), RandomCandidates(*drawn, scores), calibration, estimate
    )


def _take_wrong(
    wrong: TopCandidates, block: ScoreBlock, scores: NDArray[np.float32], calibration: ScoreCalibration
) -> None:
    """Keep the known labels of a block that look wrong, by how far their score is from what was said."""
    classes = len(calibration.offset)
    columns = (block.places % classes).astype(np.int32)
    present = block.values == PRESENT
    strange = np.where(present, scores < calibration.usual[columns], scores > calibration.present[columns])
    keys = np.where(present, 1 - scores, scores)[strange].astype(np.float32)
    wrong.add(keys, block.first + block.places[strange] // classes, columns[strange])


def _wrong(ranked: RankedCandidates, tables: Mapping[str, LabelTable]) -> WrongCandidates:
    observed = np.empty(len(ranked.rows), dtype=np.int8)
    before = 0
    for table in tables.values():
        here = np.flatnonzero((ranked.rows >= before) & (ranked.rows < before + len(table)))
        observed[here] = table.codes_at(ranked.rows[here] - before, ranked.columns[here])
        before += len(table)
    scores = np.where(observed == PRESENT, 1 - ranked.keys, ranked.keys).astype(np.float32)
    return WrongCandidates(ranked.rows, ranked.columns, scores, observed)
