"""The feed of a class: its open candidates in the order in which they are asked.

A random slot at an unpredictable place among every ten holds the first label of the class's random draw that is still
open. So each random answer is about a label that was drawn uniformly from those that were open, whatever was decided
before and in whatever order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelgap.review.candidates import RANDOM_INTERVAL
from labelgap.review.store.events import ASKED

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Feed:
    """Open candidates in order.

    Attributes:
        numbers: ``(n,)`` of the candidates.
        asked: ``(n,)`` as what each is asked, an index into ``ASKED``.
        ranking: number of the ranking that they are in the order of.
    """

    numbers: Numbers
    asked: NDArray[np.int8]
    ranking: int

    @classmethod
    def of(cls, numbers: Numbers, kind: str, ranking: int) -> Feed:
        """Return a feed of candidates that are all asked as the same."""
        return cls(numbers, np.full(len(numbers), ASKED.index(kind), dtype=np.int8), ranking)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> Feed:
        return Feed(self.numbers[part], self.asked[part], self.ranking)


@dataclass(frozen=True, eq=False)
class FeedPage:
    """A page of a feed.

    Attributes:
        feed: what the page shows.
        number: of the page, from 1.
        pages: how many there are.
        held: how many open candidates are left out because others look at them.
    """

    feed: Feed
    number: int
    pages: int
    held: int = 0


def paginate(feed: Feed, number: int, size: int) -> FeedPage:
    """Return a page of a feed, the last one where there are fewer."""
    pages = max(1, -(-len(feed) // size))
    number = min(number, pages)
    return FeedPage(feed[(number - 1) * size : number * size], number, pages)


def mix(ranked: Numbers, drawn: Numbers, ids: NDArray[np.uint64], kind: str, ranking: int) -> Feed:
    """Return a feed of ranked candidates, and of drawn ones in random slots; one that is both comes once.

    Args:
        ranked: candidates in the order of a ranking.
        drawn: candidates in the order of the random draw.
        ids: ``(C,)`` of all candidates: the place of a random slot depends on the id of what it holds.
        kind: as what the ranked ones are asked.
        ranking: its number.
    """
    numbers, random = interleave(ranked, drawn, ids[drawn])
    _, first = np.unique(numbers, return_index=True)
    first.sort()
    asked = np.where(random[first], ASKED.index("random"), ASKED.index(kind)).astype(np.int8)
    return Feed(numbers[first], asked, ranking)


def interleave(ranked: Numbers, drawn: Numbers, ids: NDArray[np.uint64]) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return both lists as one, and which of its members are drawn.

    Example:
        >>> interleave(np.arange(12), np.array([50, 51]), np.array([1, 0], dtype=np.uint64))[0].tolist()
        [0, 50, 1, 2, 3, 4, 5, 6, 7, 8, 51, 9, 10, 11]
    """
    offset = (ids % np.uint64(RANDOM_INTERVAL)).astype(np.int64)
    places = np.concatenate([2 * np.arange(len(ranked)) + 1, 2 * (RANDOM_INTERVAL * np.arange(len(drawn)) + offset)])
    order = np.argsort(places, kind="stable")
    return np.concatenate([ranked, drawn])[order], order >= len(ranked)
