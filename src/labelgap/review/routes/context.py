"""What the routes share: the review, who may connect, images, and how a page is rendered."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, Request

from labelgap.reporting.html import package_version
from labelgap.review.security import AccessPolicy
from labelgap.review.session import Review
from labelgap.review.thumbnails import HeatMaps, ReviewThumbnails
from labelgap.review.views import panel_context, render

__all__ = ["AppContext", "ClassNumber", "Context", "find_candidate", "find_image", "render_page", "status_parts"]


@dataclass
class AppContext:
    """What the routes share.

    Attributes:
        review: candidates and decisions.
        policy: which requests are accepted.
        reviewer: author of the decisions until another name is typed in the page.
        budget: seconds that the review is meant to take; None for no limit.
        started: when the first page was opened.
        reported: the last error that was printed to the terminal.
    """

    review: Review
    policy: AccessPolicy
    reviewer: str
    budget: int | None = None
    started: float | None = None
    reported: str = ""
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
    return context


Context = Annotated[AppContext, Depends(_context)]
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
        panel=panel_context(context.review, number, context.reviewer),
        version=package_version(),
    )


def status_parts(context: AppContext, number: int | None, reviewer: str | None) -> dict[str, Any]:
    """Return the parts of a page that change with every decision."""
    known = number if number is not None and number < len(context.review.candidates.classes) else None
    panel = panel_context(context.review, known, reviewer or context.reviewer)
    parts = {name: render(f"{name}.html", panel=panel) for name in ("counters", "panel")}
    return {**parts, "remaining": context.remaining()}


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
