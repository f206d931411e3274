"""The queues over all classes: known labels that look wrong, candidates for the classifier, the random draw."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import HTMLResponse

from labelgap.audit.live import Aim
from labelgap.review.live.feed import Feed
from labelgap.review.queues.feeds import aim_feed, has_aims
from labelgap.review.queues.outlook import plan_context
from labelgap.review.queues.wrong_queue import WrongQueue, wrong_queue
from labelgap.review.routes.context import ClassNumber, Context, render_page
from labelgap.review.schemas import Reviewer
from labelgap.review.session import Review
from labelgap.review.views import PAGE_SIZES, feed_context, render

__all__ = ["router"]

router = APIRouter()

Page = Annotated[int, Query(ge=1, le=10**7)]
Size = Annotated[int, Query(ge=1, le=max(PAGE_SIZES))]


@router.get("/wrong", response_class=HTMLResponse)
def wrong(
    context: Context,
    page: Page = 1,
    size: Size = PAGE_SIZES[0],
    show: Literal["open", "away", "decided"] = "open",
) -> str:
    """Show the known labels that look wrong."""
    return render_page(context, "wrong.html", None, lambda: _wrong_context(context.review, show, page, size))


@router.get("/ask/{aim}", response_class=HTMLResponse)
def ask(
    context: Context,
    aim: Literal["classifier", "random"],
    number: ClassNumber = None,
    page: Page = 1,
    size: Size = PAGE_SIZES[0],
) -> str:
    """Show the candidates for an aim, of all classes or of one."""
    review = context.review
    if number is not None and number >= len(review.candidates.classes):
        raise HTTPException(404, "there is no such class.")
    return render_page(context, "ask.html", number, lambda: _ask_context(review, aim, number, page, size))


@router.get("/plan", response_class=HTMLResponse)
def plan(context: Context, reviewer: Annotated[Reviewer | None, Query()] = None) -> str:
    """Return where the next minutes of a person bring most."""
    if not has_aims(context.review):
        return ""
    return render("plan.html", plan=plan_context(context.review, reviewer or context.reviewer))


def _wrong_context(review: Review, show: str, page: int, size: int) -> dict[str, Any]:
    queue: WrongQueue | None = wrong_queue(review)
    if queue is None:
        raise HTTPException(404, "no known label looks wrong.")
    rows = {"open": queue.asked, "away": queue.put_away, "decided": queue.decided}[show]
    feed = Feed.of(rows, "other" if show == "decided" else "wrong", review.audit_ranking)
    return feed_context(review, feed, page, size) | {"queue": queue, "show": show}


def _ask_context(review: Review, aim: Aim, number: int | None, page: int, size: int) -> dict[str, Any]:
    review.current.refresh()
    name = "" if number is None else review.candidates.classes[number]
    context = feed_context(review, aim_feed(review, aim, number), page, size)
    return context | {"aim": aim, "class_number": number, "class_name": name}
