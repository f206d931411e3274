"""Who asks for a page, and which open candidates the page is given: none that somebody else looks at."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from labelgap.review.live.feed import Feed, FeedPage, interleave, paginate
from labelgap.review.queues.feeds import decided_rows
from labelgap.review.routes.context import AppContext
from labelgap.review.store.events import ASKED, SECOND
from labelgap.review.team import Holder, is_doubled


@dataclass(frozen=True)
class Visitor:
    """A browser that is about to be shown a page.

    Attributes:
        context: the review.
        browser: id of the browser.
        page: id of the page, by which it renews its lease.
    """

    context: AppContext
    browser: str
    page: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def holder(self) -> Holder:
        """The page, as a holder of leases."""
        return Holder(self.browser, self.page)

    def held(self) -> NDArray[np.int64]:
        """Return the candidates that others look at."""
        return self.context.leases.held_by_others(self.browser)

    def take(self, numbers: NDArray[np.int64], class_number: int | None = None) -> None:
        """Lease candidates that the page shows in any case."""
        self.context.leases.take(self.holder, numbers, place=class_number)

    def select(self, class_number: int, wrong: bool, feed: Feed, number: int, size: int) -> FeedPage:
        """Return a page of the feed of a class, with second opinions; see ``select_from``."""
        return self.select_from(class_number, self._with_second_opinions(feed, class_number, wrong), number, size)

    def select_from(self, class_number: int | None, feed: Feed, number: int, size: int) -> FeedPage:
        """Return a page of what nobody else looks at, and lease it; ``class_number`` is None for several classes."""
        free = feed[~np.isin(feed.numbers, self.held())]
        page = paginate(free, number, size)
        shown = self._lease(class_number, free[(page.number - 1) * size :], size)
        return FeedPage(shown, page.number, page.pages, len(feed) - len(free))

    def _lease(self, class_number: int | None, feed: Feed, size: int) -> Feed:
        """Lease the first open candidates of a feed: since it was made, others may have answered and left some."""
        current = self.context.review.current
        while True:
            granted = self.context.leases.take(self.holder, feed.numbers, size, place=class_number)
            leased = np.isin(feed.numbers, granted)
            current.refresh()
            with current.lock:
                closed = current.decided[feed.numbers] & (feed.asked != ASKED.index(SECOND))
            if not (leased & closed).any():
                return feed[leased]
            feed = feed[~closed]

    def _with_second_opinions(self, feed: Feed, class_number: int, wrong: bool) -> Feed:
        """Mix labels that somebody else has decided into a feed, at unpredictable places."""
        numbers = self._second_opinions(class_number, wrong)
        if not len(numbers):
            return feed
        ids = self.context.review.candidates.columns.ids
        mixed, second = interleave(feed.numbers, numbers, ids[numbers])
        asked = np.full(len(mixed), ASKED.index(SECOND), dtype=np.int8)
        asked[~second] = feed.asked
        return Feed(mixed, asked, feed.ranking)

    def _second_opinions(self, class_number: int, wrong: bool) -> NDArray[np.int64]:
        """Return the labels of a class that this person is to be the second to answer, the oldest decision first."""
        review, share = self.context.review, self.context.double
        rows = decided_rows(review, class_number, wrong)[::-1] if share else np.empty(0, dtype=np.int64)
        rows = rows[is_doubled(review.candidates.columns.ids[rows], review.store.id, share)]
        answered = review.opinions.answered() if len(rows) else set()
        reviewer = self.context.leases.reviewer(self.browser) or self.context.reviewer
        asked = [
            row
            for row in rows.tolist()
            if review.current.decided_by(row) != reviewer and review.candidates.key(row) not in answered
        ]
        return np.array(asked, dtype=np.int64)
