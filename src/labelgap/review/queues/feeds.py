"""Which candidates are asked next: of one class, for the classifier, of the random draw, and labels that look wrong."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.live import Aim
from labelgap.labels.codes import PRESENT
from labelgap.metrics.label_model import to_log_odds
from labelgap.review.candidates import MISSING, WRONG
from labelgap.review.live.feed import Feed, mix
from labelgap.review.new_classes import FEWEST_EXAMPLES
from labelgap.review.session import Review

_LIMIT: Final = 200
"""Candidates for the classifier before there is a ranking for that aim."""

Numbers = NDArray[np.int64]


def has_aims(review: Review) -> bool:
    """Return whether there is something to choose: a model has ranked candidates."""
    columns = review.candidates.columns
    return bool(((columns.kind == MISSING) & ~np.isnan(columns.score)).any())


def class_feed(review: Review, class_number: int, wrong: bool = False, near: Numbers | None = None) -> Feed:
    """Return the open candidates of a class, one for all copies, as they are asked or by places of the M images."""
    rows, columns = review.listed(class_number, wrong), review.candidates.columns
    with review.current.lock:
        rows = rows[~review.current.decided[rows]]
    ranking = None if lacks_examples(review, class_number) else review.ranking()
    number = review.audit_ranking if ranking is None else ranking.number
    if near is not None:
        return Feed.of(rows[np.argsort(near[columns.image[rows]], kind="stable")], "other", number)
    if wrong:
        return Feed.of(rows, "wrong", review.audit_ranking)
    position = columns.class_rank if ranking is None else ranking.position
    ranked, drawn = rows[columns.kind[rows] == MISSING], rows[columns.random_rank[rows] > 0]
    ranked = ranked[np.lexsort((columns.class_rank[ranked], position[ranked]))]
    drawn = drawn[np.argsort(columns.random_rank[drawn], kind="stable")]
    return mix(ranked, drawn, columns.ids, "missing", number)


def lacks_examples(review: Review, class_number: int) -> bool:
    """Return whether too few examples of an added class are known to rank it: its order is random until then."""
    return class_number >= len(review.folder.classes) and count_present(review, class_number) < FEWEST_EXAMPLES


def count_present(review: Review, class_number: int) -> int:
    """Return how many candidates of a class are decided to be present."""
    rows = review.listed(class_number)
    with review.current.lock:
        return int((review.current.decided[rows] & (review.current.value[rows] == PRESENT)).sum())


def decided_rows(review: Review, class_number: int, wrong: bool = False) -> Numbers:
    """Return the decided candidates of a class, the newest decision first."""
    rows = review.listed(class_number, wrong)
    with review.current.lock:
        rows = rows[review.current.decided[rows]]
        return rows[np.argsort(-review.current.version[rows], kind="stable")]


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
