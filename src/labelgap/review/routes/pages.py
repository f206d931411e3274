"""The pages: the list of classes, the candidates of a class, an image."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse

from labelgap.audit.live import Aim
from labelgap.review.new_classes.page import added_context, near_context
from labelgap.review.queues.feeds import has_aims
from labelgap.review.queues.outlook import aims_context
from labelgap.review.queues.wrong_queue import wrong_queue
from labelgap.review.routes.context import AppContext, Browser, Context, find_candidate, find_image, render_page
from labelgap.review.routes.visitor import Visitor
from labelgap.review.schemas import CandidateId
from labelgap.review.views import (
    PAGE_SIZES,
    grid_context,
    image_context,
    known_labels,
    make_tile,
    overview_context,
    render,
)

router = APIRouter()


@router.get("/", response_class=HTMLResponse)
def overview(context: Context, browser: Browser, aim: Aim = "missing") -> str:
    """Show the classes, those first where the next minutes bring most."""
    return render_page(context, "overview.html", None, lambda: _overview(context, aim))


def _overview(context: AppContext, aim: Aim) -> dict[str, Any]:
    review = context.review
    aims = {"aim": aim, "aims": aims_context(review, aim), "wrong_queue": wrong_queue(review)}
    return overview_context(review, context.reviewer) | aims


@router.get("/class/{number}", response_class=HTMLResponse)
def grid(
    context: Context,
    browser: Browser,
    number: Annotated[int, PathParameter(ge=0, le=10**7)],
    page: Annotated[int, Query(ge=1, le=10**7)] = 1,
    size: Annotated[int, Query(ge=1, le=max(PAGE_SIZES))] = PAGE_SIZES[0],
    kind: Literal["missing", "wrong"] = "missing",
    show: Literal["open", "decided", "held"] = "open",
    near: CandidateId | None = None,
) -> str:
    """Show the candidates of one class, by similarity to an image where one is named."""
    if number >= len(context.review.candidates.classes):
        raise HTTPException(404, "there is no such class.")
    options: dict[str, Any] = {"wrong": kind == "wrong", "decided": show == "decided", "page": page, "size": size}
    options["near"], near_page = near_context(context.review, None if near is None else find_image(context, near))
    visitor = Visitor(context, browser)
    if show == "open":
        options["select"] = partial(visitor.select, number, kind == "wrong")
    made = partial(grid_context, context.review, number, context.reviewer, **options)
    added = {"added": added_context(context.review, number), "near": near_page}
    more = added | {"has_aims": has_aims(context.review), "lease": "" if show == "decided" else visitor.page}
    return render_page(context, "grid.html", number, lambda: made() | more)


@router.get("/image/{identity}", response_class=HTMLResponse)
def image(context: Context, browser: Browser, identity: CandidateId) -> str:
    """Show one image with all its candidates."""
    number = find_image(context, identity)
    if number not in context.review.image_order:
        raise HTTPException(404, "this image is a copy of another one, which is asked about in its place.")
    visitor = Visitor(context, browser)
    visitor.take(context.review.of_image(number))
    made = partial(image_context, context.review, number, visitor.held())
    return render_page(context, "image.html", None, lambda: {**made(), "lease": visitor.page})


@router.get("/detail/{identity}", response_class=HTMLResponse)
def detail(context: Context, identity: CandidateId) -> str:
    """Return the text beside an enlarged image."""
    number = find_candidate(context, identity)
    known = known_labels(context.review, int(context.review.candidates.columns.image[number]))
    return render("detail.html", tile=make_tile(context.review, number), known=known)
