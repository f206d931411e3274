"""What the routes share: the review, who asks for a page, which open candidates it is given, and how it is rendered."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import numpy as np
from fastapi import Depends, HTTPException, Query, Request, Response
from numpy.typing import NDArray

from labelgap.reporting.page import package_version
from labelgap.review.additions import NewPhotos
from labelgap.review.queues import Feed, FeedPage, decided_rows, mix, paginate
from labelgap.review.security import AccessPolicy
from labelgap.review.session import Review
from labelgap.review.store import ASKED, SECOND
from labelgap.review.team import Holder, Leases, is_doubled
from labelgap.review.thumbnails import HeatMaps, ReviewThumbnails
from labelgap.review.views import counters_context, panel_context, render

_PANEL_SECONDS: Final = 1.0
_MAX_WALKS: Final = 200
_BROWSER_ID: Final = re.compile(r"[0-9a-f]{32}")
_COOKIE_SECONDS: Final = 365 * 86400


@dataclass
class AppContext:
    """What the routes share."""

    review: Review  # candidates and decisions
    policy: AccessPolicy  # which requests are accepted
    reviewer: str  # author of the decisions until another name is typed in the page
    budget: int | None = None  # seconds that the review is meant to take; None for no limit
    double: float = 0.0  # share of the labels that are asked of a second person
    photos: NewPhotos | None = None  # what adds photos to the run; None where that is not offered
    started: float | None = None  # when the first page was opened
    reported: str = ""  # the last error that was printed to the terminal
    leases: Leases = field(default_factory=Leases)  # which candidates the open pages show
    walks: dict[tuple[str, int | None], dict[int, NDArray[np.int64]]] = field(default_factory=dict)
    """What the pages of a class, one after the other, showed in a browser; by how many were left out before each."""
    thumbnails: ReviewThumbnails = field(init=False)
    heat_maps: HeatMaps = field(init=False)

    def __post_init__(self) -> None:
        self.thumbnails = ReviewThumbnails(self.review)
        self.heat_maps = HeatMaps(self.thumbnails)

    def remember_walk(self, key: tuple[str, int | None], pages: dict[int, NDArray[np.int64]]) -> None:
        """Remember what pages showed; the oldest ones are forgotten."""
        self.walks = {**dict([*self.walks.items()][-_MAX_WALKS:]), key: pages}

    def known_class(self, number: int | None) -> int | None:
        """Return the number of a class, None where there is no such class."""
        return number if number is not None and number < len(self.review.candidates.classes) else None

    def remaining(self) -> int | None:
        """Return the seconds left of the budget, below 0 when it is used up; None without a budget."""
        if self.budget is None:
            return None
        if self.started is None:
            self.started = time.monotonic()
        return round(self.budget - (time.monotonic() - self.started))


def _context(request: Request) -> AppContext:
    context: AppContext = request.app.state.context
    context.review.refresh_classes()
    return context


def _browser(request: Request, response: Response) -> str:
    name = f"{_context(request).policy.cookie}-browser"
    identity = request.cookies.get(name, "")
    if not _BROWSER_ID.fullmatch(identity):
        identity = secrets.token_hex(16)
        response.set_cookie(name, identity, max_age=_COOKIE_SECONDS, httponly=True, samesite="strict")
    return identity


Context = Annotated[AppContext, Depends(_context)]
Browser = Annotated[str, Depends(_browser)]
ClassNumber = Annotated[int | None, Query(alias="class", ge=0, le=10**7)]


def counter_parts(context: AppContext, number: int | None, reviewer: str | None) -> dict[str, Any]:
    """Return the parts of a page that change with every decision."""
    counters = counters_context(context.review, context.known_class(number), reviewer or context.reviewer)
    return {"counters": render("counters.html", counters=counters), "remaining": context.remaining()}


def status_parts(context: AppContext, number: int | None, reviewer: str | None) -> dict[str, Any]:
    """Return the parts of a page that a poll brings; its panel is the same for everybody, and may be a little old."""
    review, known = context.review, context.known_class(number)
    with review.cache.tolerating(_PANEL_SECONDS):
        panel = review.cached(f"html {known}", lambda: render("panel.html", panel=panel_context(review, known)))
    return {"panel": panel, **counter_parts(context, known, reviewer)}


def check_class(context: AppContext, number: int | None) -> None:
    """Raise 404 where there is no class of this number."""
    if number is not None and context.known_class(number) is None:
        raise HTTPException(404, "there is no such class.")


def find_candidate(context: AppContext, identity: str) -> int:
    """Return the number of a candidate; 404 where there is none with this id."""
    number = context.review.candidates.index(identity)
    if number is None:
        raise HTTPException(404, "there is no such candidate: the list has changed, reload the page.")
    return number


def find_image(context: AppContext, identity: str) -> int:
    """Return the number of an image; 404 where there is none with this id."""
    number = context.review.candidates.image_index(identity)
    if number is None:
        raise HTTPException(404, "there is no such image among the candidates.")
    return number


@dataclass(frozen=True)
class Visitor:
    """A browser that is about to be shown a page."""

    context: AppContext  # the review
    browser: str  # id of the browser
    page: str = field(default_factory=lambda: secrets.token_hex(8))  # id of the page, by which it renews its lease
    last_id: int = 0  # the last event before the page is made: the next poll returns later ones

    @property
    def review(self) -> Review:
        """The review."""
        return self.context.review

    @property
    def holder(self) -> Holder:
        """The page, as a holder of leases."""
        return Holder(self.browser, self.page)

    def held(self) -> NDArray[np.int64]:
        """Return the candidates that others look at."""
        return self.context.leases.held_by_others(self.browser)

    def select(self, class_number: int, wrong: bool, feed: Feed, skip: int, size: int) -> FeedPage:
        """Return a page of the feed of a class, with second opinions; see ``select_from``."""
        second = Feed.of(self._second_opinions(class_number, wrong), SECOND, feed.ranking)
        return self.select_from(class_number, mix(feed, second, self.review.candidates.columns.ids), skip, size)

    def select_from(self, class_number: int | None, feed: Feed, skip: int, size: int) -> FeedPage:
        """Return a page of what nobody else looks at, without what the pages before it showed, and lease it."""
        free = feed[~np.isin(feed.numbers, self.held())]
        walk = self.context.walks.get((self.browser, class_number), {})
        before = {at: numbers for at, numbers in walk.items() if at < skip}
        seen = np.concatenate([*before.values()]) if before else paginate(free, 0, skip).feed.numbers
        rest = free[~np.isin(free.numbers, seen)]
        if not len(rest):
            before, rest = {}, free
        shown, skipped = self._lease(class_number, rest, size), len(free) - len(rest)
        self.context.remember_walk((self.browser, class_number), {**before, skipped: shown.numbers})
        return FeedPage(shown, skipped, len(free), len(feed) - len(free))

    def _lease(self, class_number: int | None, feed: Feed, size: int) -> Feed:
        """Lease the first open candidates of a feed: since it was made, others may have answered and left some."""
        current = self.review.current
        while True:
            granted = self.context.leases.take(self.holder, feed.numbers, size, place=class_number)
            leased = np.isin(feed.numbers, granted)
            current.refresh()
            with current.lock:
                closed = current.decided[feed.numbers] & (feed.asked != ASKED.index(SECOND))
            if not (leased & closed).any():
                return feed[leased]
            feed = feed[~closed]

    def _second_opinions(self, class_number: int, wrong: bool) -> NDArray[np.int64]:
        """Return the labels of a class that this person is to be the second to answer, the oldest decision first."""
        review, share = self.review, self.context.double
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

    def render(self, template: str, number: int | None, page: dict[str, Any]) -> str:
        """Render a page of a class, or of none."""
        context = self.context
        return render(
            template,
            page=page,
            review=self.review,
            last_id=self.last_id,
            number="" if number is None else number,
            csrf_token=context.policy.csrf_token,
            reviewer=context.reviewer,
            photos=context.photos,
            remaining=context.remaining(),
            heat=context.heat_maps.available,
            counters=counters_context(self.review, number, context.reviewer),
            panel=panel_context(self.review, number),
            version=package_version(),
        )


def _visitor(context: Context, browser: Browser) -> Visitor:
    context.review.current.refresh()
    return Visitor(context, browser, last_id=context.review.current.last_id)


CurrentVisitor = Annotated[Visitor, Depends(_visitor)]
