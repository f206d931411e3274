"""Rank the open candidates again, after some of them were decided.

Three aims: "missing", the most probable first; "classifier", uncertain ones that differ from each other, over all
classes; "random", the draw of the audit, which is never ranked again: what it estimates would be biased otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.audit.live.heads import DecisionHeads, FeatureScale, fit_decisions
from labelgap.audit.ranking import CandidateList
from labelgap.core.errors import InputError
from labelgap.labels import PRESENT, UNKNOWN

Aim = Literal["missing", "classifier", "random"]
AIMS: Final[tuple[Aim, ...]] = get_args(Aim)
POOL: Final = 4
"""Of so many uncertain candidates of a class, one is chosen for the aim "classifier"."""
DIVERSE_LIMIT: Final = 200
"""How many are ranked for the aim "classifier" where no limit is given."""
_LOWEST: Final = 1e-7
"""Scores are in single precision: nearer to 0 or 1 they say no more."""


@dataclass(frozen=True, eq=False)
class Decisions:
    """Candidates that a person decided, in any order.

    Attributes:
        candidates: with the scores that the audit gave them, out-of-fold.
        values: ``(M,)`` PRESENT, ABSENT, or UNKNOWN where the person is unsure: nothing is learned from those.
    """

    candidates: CandidateList
    values: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class LiveRanking:
    """Open candidates in the order in which to decide them.

    Attributes:
        number: of this ranking; 0 is the audit's own.
        aim: of the order.
        model: digest of the heads; empty for the random draw, which no model orders.
        decisions: how many decisions the heads have learned from.
        candidates: open ones, with the probability that they are present. The sum of the first n probabilities is the
            expected number of present ones among them.
    """

    number: int
    aim: Aim
    model: str
    decisions: int
    candidates: CandidateList


def rank_open(
    features: FeatureScale,
    candidates: CandidateList,
    decisions: Decisions,
    classes: int,
    aim: Aim = "missing",
    *,
    limit: int | None = None,
    number: int = 0,
) -> LiveRanking:
    """Learn from the decisions, and rank the candidates that are still open.

    A function of its arguments alone: the same decisions, in any order, give the same heads and the same ranking.
    Labels that were observed, and decided labels that look wrong, are not learned from.

    Args:
        features: of all images.
        candidates: of the audit, with its scores: the missing labels, or for "random" the random draw in its order.
        decisions: on candidates of any list.
        classes: K.
        aim: what the decisions are for.
        limit: how many to return; when None all, or ``DIVERSE_LIMIT`` for the aim "classifier".
        number: of the ranking.
    """
    if aim not in AIMS:
        raise InputError(f"aim {aim!r}: it is {', '.join(AIMS[:-1])} or {AIMS[-1]}.")
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit}: at least one candidate.")
    positions = candidates.rows * classes + candidates.columns
    decided = decisions.candidates
    is_open = ~np.isin(positions, decided.rows * classes + decided.columns)
    rows, columns = candidates.rows[is_open], candidates.columns[is_open]
    if aim == "random":
        kept = slice(limit)
        unchanged = CandidateList.of_unknown(rows[kept], columns[kept], candidates.scores[is_open][kept])
        return LiveRanking(number, aim, "", 0, unchanged)
    learned = (decisions.values != UNKNOWN) & (decided.observed == UNKNOWN)
    heads = _fit(features, decisions, learned, classes)
    odds = heads.log_odds(features, rows, columns, _log_odds(candidates.scores[is_open]))
    if aim == "missing":
        order = np.lexsort((columns, rows, -odds))[:limit]
    else:
        order = _diverse_order(features, rows, columns, odds, limit or DIVERSE_LIMIT)
    ranked = CandidateList.of_unknown(rows[order], columns[order], expit(odds[order]).astype(np.float32))
    return LiveRanking(number, aim, heads.digest, int(learned.sum()), ranked)


def _fit(features: FeatureScale, decisions: Decisions, learned: NDArray[np.bool_], classes: int) -> DecisionHeads:
    decided, present = decisions.candidates, decisions.values[learned] == PRESENT
    audited = _log_odds(decided.scores[learned])
    return fit_decisions(features, decided.rows[learned], decided.columns[learned], audited, present, classes)


def _log_odds(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    clipped = np.clip(scores.astype(np.float64), _LOWEST, 1 - _LOWEST)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def _diverse_order(
    features: FeatureScale,
    rows: NDArray[np.int64],
    columns: NDArray[np.integer[Any]],
    odds: NDArray[np.float64],
    limit: int,
) -> NDArray[np.int64]:
    """Return positions: one candidate of every class in turn, each uncertain and unlike those before it of its class.

    The key of a candidate is :math:`p(1-p)` times the squared distance to the nearest one that was chosen of its class.
    """
    order = np.lexsort((columns, rows, np.abs(odds), columns))
    starts = np.flatnonzero(np.diff(columns[order], prepend=-1))
    parts = np.split(order, starts[1:])
    each = -(-limit // max(len(parts), 1))
    turns, keys, chosen = [], [], []
    for part in parts:
        pool = part[: POOL * each]
        uncertainty = expit(odds[pool]) * expit(-odds[pool])
        picked, key = _greedy(features.rows(rows[pool]), uncertainty, min(each, len(pool)))
        turns.append(np.arange(len(picked)))
        keys.append(key)
        chosen.append(pool[picked])
    if not chosen:
        return np.empty(0, dtype=np.int64)
    positions = np.concatenate(chosen)
    return np.asarray(positions[np.lexsort((positions, -np.concatenate(keys), np.concatenate(turns)))][:limit])


def _greedy(
    inputs: NDArray[np.float32], uncertainty: NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the members chosen one after the other, and their keys."""
    distance = np.ones(len(inputs))
    picked, keys = np.empty(count, dtype=np.int64), np.empty(count)
    is_free = np.ones(len(inputs), dtype=bool)
    for turn in range(count):
        key = np.where(is_free, uncertainty * distance, -1.0)
        picked[turn] = best = int(key.argmax())
        keys[turn], is_free[best] = key[best], False
        apart = ((inputs - inputs[best]) ** 2).sum(axis=1, dtype=np.float64)
        distance = apart if turn == 0 else np.minimum(distance, apart)
    return picked, keys
