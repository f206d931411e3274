"""The queues over all classes: known labels that look wrong, candidates for the classifier, the random draw."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import HTMLResponse

from labelgap.audit.live import Aim
from labelgap.review.live.feed import Feed, paginate
from labelgap.review.queues.feeds import aim_feed, has_aims
from labelgap.review.queues.outlook import plan_context
from labelgap.review.queues.wrong_queue import WrongQueue, wrong_queue
from labelgap.review.routes.context import Browser, ClassNumber, Context, render_page
from labelgap.review.routes.visitor import Visitor
from labelgap.review.schemas import Reviewer
from labelgap.review.views import PAGE_SIZES, feed_context, render

router = APIRouter()

Page = Annotated[int, Query(ge=1, le=10**7)]
Size = Annotated[int, Query(ge=1, le=max(PAGE_SIZES))]


@router.get("/wrong", response_class=HTMLResponse)
def wrong(
    context: Context,
    browser: Browser,
    page: Page = 1,
    size: Size = PAGE_SIZES[0],
    show: Literal["open", "away", "decided"] = "open",
) -> str:
    """Show the known labels that look wrong."""
    visitor = Visitor(context, browser)
    return render_page(context, "wrong.html", None, lambda: _wrong_context(visitor, show, page, size))


@router.get("/ask/{aim}", response_class=HTMLResponse)
def ask(
    context: Context,
    browser: Browser,
    aim: Literal["classifier", "random"],
    number: ClassNumber = None,
    page: Page = 1,
    size: Size = PAGE_SIZES[0],
) -> str:
    """Show the candidates for an aim, of all classes or of one."""
    if number is not None and number >= len(context.review.candidates.classes):
        raise HTTPException(404, "there is no such class.")
    visitor = Visitor(context, browser)
    return render_page(context, "ask.html", number, lambda: _ask_context(visitor, aim, number, page, size))


@router.get("/plan", response_class=HTMLResponse)
def plan(context: Context, reviewer: Annotated[Reviewer | None, Query()] = None) -> str:
    """Return where the next minutes of a person bring most."""
    if not has_aims(context.review):
        return ""
    return render("plan.html", plan=plan_context(context.review, reviewer or context.reviewer))


def _wrong_context(visitor: Visitor, show: str, page: int, size: int) -> dict[str, Any]:
    review = visitor.context.review
    queue: WrongQueue | None = wrong_queue(review)
    if queue is None:
        raise HTTPException(404, "no known label looks wrong.")
    rows = {"open": queue.asked, "away": queue.put_away, "decided": queue.decided}[show]
    feed = Feed.of(rows, "other" if show == "decided" else "wrong", review.audit_ranking)
    select = partial(visitor.select_from, None) if show == "open" else paginate
    lease = visitor.page if show == "open" else ""
    return feed_context(review, feed, page, size, select) | {"queue": queue, "show": show, "lease": lease}


def _ask_context(visitor: Visitor, aim: Aim, number: int | None, page: int, size: int) -> dict[str, Any]:
    review = visitor.context.review
    review.current.refresh()
    name = "" if number is None else review.candidates.classes[number]
    context = feed_context(review, aim_feed(review, aim, number), page, size, partial(visitor.select_from, number))
    return context | {"aim": aim, "class_number": number, "class_name": name, "lease": visitor.page}
