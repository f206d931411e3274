"""Feeds over all classes: candidates for the classifier, the random draw, and known labels that look wrong."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.live import Aim
from labelgap.review.candidates import MISSING, WRONG
from labelgap.review.estimates.shifts import to_log_odds
from labelgap.review.live.feed import Feed
from labelgap.review.session import Review

__all__ = ["aim_feed", "has_aims", "wrong_rows"]

_LIMIT: Final = 200
"""Candidates for the classifier before there is a ranking for that aim."""

Numbers = NDArray[np.int64]


def has_aims(review: Review) -> bool:
    """Return whether there is something to choose: a model has ranked candidates."""
    columns = review.candidates.columns
    return bool(((columns.kind == MISSING) & ~np.isnan(columns.score)).any())


def aim_feed(review: Review, aim: Aim, class_number: int | None = None) -> Feed:
    """Return the open candidates for the aim "classifier" or "random" in their order, of all classes or of one."""
    columns = review.candidates.columns
    is_open = review.copies.shown & (columns.kind != WRONG)
    if class_number is not None:
        is_open &= columns.class_number == class_number
    with review.current.lock:
        is_open &= ~review.current.decided
    rows = np.flatnonzero(is_open)
    if aim == "random":
        drawn = rows[columns.random_rank[rows] > 0]
        return Feed.of(drawn[_random_order(review, drawn)], "random", review.audit_ranking)
    rows = rows[(columns.kind[rows] == MISSING) & ~np.isnan(columns.score[rows])]
    ranking = review.ranking("classifier")
    if ranking is None:
        return Feed.of(rows[_uncertain_order(review, rows)][:_LIMIT], "classifier", review.audit_ranking)
    ranked = rows[~np.isnan(ranking.probability[rows])]
    return Feed.of(ranked[np.argsort(ranking.position[ranked], kind="stable")], "classifier", ranking.number)


def wrong_rows(review: Review) -> Numbers:
    """Return the known labels that look wrong, decided or not, the least plausible first."""
    columns = review.candidates.columns
    rows = np.flatnonzero((columns.kind == WRONG) & review.copies.shown)
    return rows[np.argsort(columns.rank[rows], kind="stable")]


def _random_order(review: Review, rows: Numbers) -> Numbers:
    """Return the order of the random draw: each class in its own order, all classes equally far at any time."""
    columns = review.candidates.columns
    size = np.bincount(columns.class_number[columns.random_rank > 0], minlength=len(review.candidates.classes))
    share = (columns.random_rank[rows] - 0.5) / size[columns.class_number[rows]]
    return np.lexsort((columns.ids[rows], share))


def _uncertain_order(review: Review, rows: Numbers) -> Numbers:
    """Return the order without a ranking: one candidate of every class in turn, the most uncertain first."""
    columns = review.candidates.columns
    distance = np.abs(to_log_odds(columns.score[rows].astype(np.float64)))
    group = columns.class_number[rows]
    order = np.lexsort((columns.ids[rows], distance, group))
    turn = np.empty(len(rows), dtype=np.int64)
    turn[order] = np.arange(len(rows)) - np.searchsorted(group[order], group[order])
    return np.lexsort((distance, turn))
