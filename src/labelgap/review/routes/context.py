"""What the routes share: the review, who may connect, images, and how a page is rendered."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, HTTPException, Query, Request, Response

from labelgap.reporting.page import package_version
from labelgap.review.panel import counters_context, panel_context
from labelgap.review.security import AccessPolicy
from labelgap.review.session import Review
from labelgap.review.team.leases import Leases
from labelgap.review.thumbnails import HeatMaps, ReviewThumbnails
from labelgap.review.views import render

_PANEL_SECONDS: Final = 1.0
_BROWSER_ID: Final = re.compile(r"[0-9a-f]{32}")
_COOKIE_SECONDS: Final = 365 * 86400


@dataclass
class AppContext:
    """What the routes share.

    Attributes:
        review: candidates and decisions.
        policy: which requests are accepted.
        reviewer: author of the decisions until another name is typed in the page.
        budget: seconds that the review is meant to take; None for no limit.
        double: share of the labels that are asked of a second person.
        started: when the first page was opened.
        reported: the last error that was printed to the terminal.
        leases: which candidates the open pages show.
    """

    review: Review
    policy: AccessPolicy
    reviewer: str
    budget: int | None = None
    double: float = 0.0
    started: float | None = None
    reported: str = ""
    leases: Leases = field(default_factory=Leases)
    thumbnails: ReviewThumbnails = field(init=False)
    heat_maps: HeatMaps = field(init=False)

    def __post_init__(self) -> None:
        self.thumbnails = ReviewThumbnails(self.review)
        self.heat_maps = HeatMaps(self.thumbnails)

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
    """Return the id of the browser, from a cookie that it is given with its first page."""
    name = f"{_context(request).policy.cookie}-browser"
    identity = request.cookies.get(name, "")
    if not _BROWSER_ID.fullmatch(identity):
        identity = secrets.token_hex(16)
        response.set_cookie(name, identity, max_age=_COOKIE_SECONDS, httponly=True, samesite="strict")
    return identity


Context = Annotated[AppContext, Depends(_context)]
Browser = Annotated[str, Depends(_browser)]
ClassNumber = Annotated[int | None, Query(alias="class", ge=0, le=10**7)]


def render_page(context: AppContext, template: str, number: int | None, make: Callable[[], dict[str, Any]]) -> str:
    """Render a page of a class, or of none; ``make`` returns what its template shows."""
    remaining = context.remaining()
    context.review.current.refresh()
    last_id = context.review.current.last_id  # before the page is made: the next poll returns later events
    return render(
        template,
        page=make(),
        review=context.review,
        last_id=last_id,
        number="" if number is None else number,
        csrf_token=context.policy.csrf_token,
        reviewer=context.reviewer,
        remaining=remaining,
        heat=context.heat_maps.available,
        counters=counters_context(context.review, number, context.reviewer),
        panel=panel_context(context.review, number),
        version=package_version(),
    )


def counter_parts(context: AppContext, number: int | None, reviewer: str | None) -> dict[str, Any]:
    """Return the parts of a page that change with every decision."""
    known = number if number is not None and number < len(context.review.candidates.classes) else None
    counters = counters_context(context.review, known, reviewer or context.reviewer)
    return {"counters": render("counters.html", counters=counters), "remaining": context.remaining()}


def status_parts(context: AppContext, number: int | None, reviewer: str | None) -> dict[str, Any]:
    """Return the parts of a page that a poll brings; its panel is the same for everybody, and may be a little old."""
    review = context.review
    known = number if number is not None and number < len(review.candidates.classes) else None
    with review.cache.tolerating(_PANEL_SECONDS):
        panel = review.cached(f"html {known}", lambda: render("panel.html", panel=panel_context(review, known)))
    return {"panel": panel, **counter_parts(context, known, reviewer)}


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
