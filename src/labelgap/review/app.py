"""The routes of the review page. Pages are rendered here; the script in them only sends decisions."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from labelgap.core.errors import LabelGapError
from labelgap.core.files import DiskError
from labelgap.reporting.formatting import single_line
from labelgap.reporting.html import package_version
from labelgap.review.schemas import CandidateId, DecisionBatch, DecisionMessage, Reviewer, UndoMessage
from labelgap.review.security import AccessPolicy
from labelgap.review.session import Review
from labelgap.review.store.events import Decision, DecisionOutcome, Undo
from labelgap.review.thumbnails import LARGE_SIZE, THUMBNAIL_SIZE, HeatMaps, ReviewThumbnails
from labelgap.review.views import (
    PAGE_SIZES,
    grid_context,
    image_context,
    known_labels,
    make_tile,
    overview_context,
    panel_context,
    render,
    static_files,
)

__all__ = ["AppContext", "create_app"]

_MAX_CHANGES: Final = 5000
_CACHEABLE: Final = {"cache-control": "private, max-age=3600"}
"""For images and static files; the address of a static file changes with its content."""


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


def create_app(context: AppContext) -> FastAPI:
    """Create the application; ``SecurityMiddleware`` goes in front of it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.context = context
    app.include_router(_router)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(LabelGapError, _own_error)
    app.add_exception_handler(Exception, _unexpected_error)
    return app


_router = APIRouter()


def _context(request: Request) -> AppContext:
    context: AppContext = request.app.state.context
    return context


Context = Annotated[AppContext, Depends(_context)]
ClassNumber = Annotated[int | None, Query(alias="class", ge=0, le=10**7)]


@_router.get("/", response_class=HTMLResponse)
def overview(context: Context) -> str:
    """Show the classes."""
    return _page(context, "overview.html", None, lambda: overview_context(context.review))


@_router.get("/class/{number}", response_class=HTMLResponse)
def grid(
    context: Context,
    number: Annotated[int, PathParameter(ge=0, le=10**7)],
    page: Annotated[int, Query(ge=1, le=10**7)] = 1,
    size: Annotated[int, Query(ge=1, le=max(PAGE_SIZES))] = PAGE_SIZES[0],
    kind: Literal["missing", "wrong"] = "missing",
    show: Literal["all", "undecided"] = "all",
) -> str:
    """Show the candidates of one class."""
    if number >= len(context.review.candidates.classes):
        raise HTTPException(404, "there is no such class.")
    options: dict[str, Any] = {"wrong": kind == "wrong", "undecided": show == "undecided", "page": page, "size": size}
    return _page(context, "grid.html", number, lambda: grid_context(context.review, number, **options))


@_router.get("/image/{identity}", response_class=HTMLResponse)
def image(context: Context, identity: CandidateId) -> str:
    """Show one image with all its candidates."""
    number = _find_image(context, identity)
    if number not in context.review.image_order:
        raise HTTPException(404, "this image is a copy of another one, which is asked about in its place.")
    return _page(context, "image.html", None, lambda: image_context(context.review, number))


@_router.get("/detail/{identity}", response_class=HTMLResponse)
def detail(context: Context, identity: CandidateId) -> str:
    """Return the text beside an enlarged image."""
    number = _find_candidate(context, identity)
    known = known_labels(context.review, int(context.review.candidates.columns.image[number]))
    return render("detail.html", tile=make_tile(context.review, number), known=known)


@_router.get("/thumbnail/{identity}")
def thumbnail(context: Context, identity: CandidateId) -> Response:
    """Return an image, small."""
    return _image_response(lambda: context.thumbnails.get(_find_image(context, identity), THUMBNAIL_SIZE), "webp")


@_router.get("/large/{identity}")
def large(context: Context, identity: CandidateId) -> Response:
    """Return an image, large."""
    return _image_response(lambda: context.thumbnails.get(_find_image(context, identity), LARGE_SIZE), "webp")


@_router.get("/heat/{identity}")
def heat(context: Context, identity: CandidateId) -> Response:
    """Return the class activation map of a candidate."""
    number, columns = _find_candidate(context, identity), context.review.candidates.columns
    arguments = int(columns.image[number]), int(columns.class_number[number])
    return _image_response(lambda: context.heat_maps.get(*arguments), "png")


@_router.get("/static/{version}/{name}")
def static(version: str, name: str) -> Response:
    """Return a script or a style sheet by its name; the version only keeps addresses of old files apart."""
    if name not in static_files():
        raise HTTPException(404, "there is no such file.")
    data, media_type = static_files()[name]
    return Response(data, media_type=media_type, headers=_CACHEABLE)


@_router.get("/api/session")
def session(context: Context) -> dict[str, str]:
    """Return the CSRF token, for a page that was opened before the server restarted."""
    return {"csrf_token": context.policy.csrf_token, "store": context.review.store.id}


@_router.get("/api/changes")
def changes(
    context: Context,
    since: Annotated[int, Query(ge=0, le=2**53)],
    reviewer: Annotated[Reviewer | None, Query()] = None,
    number: ClassNumber = None,
) -> dict[str, Any]:
    """Return the decisions after an event, and the progress of the review."""
    current = context.review.current
    with current.lock:
        current.refresh()
        rows = np.flatnonzero(current.last_event > since)
        rows = rows[np.argsort(current.last_event[rows])][:_MAX_CHANGES]
        last_id = int(current.last_event[rows[-1]]) if len(rows) == _MAX_CHANGES else current.last_id
        tiles = [make_tile(context.review, int(row)) for row in rows]
        reload = since < current.reload_before
    changed = [{name: each[name] for name in ("id", "value", "version", "who")} for each in tiles]
    return {"changes": changed, "last_id": last_id, "reload": reload, **_status(context, number, reviewer)}


@_router.post("/api/decisions")
def decide(context: Context, batch: DecisionBatch, number: ClassNumber = None) -> JSONResponse:
    """Store decisions; 409 when one of them conflicts with a decision made in the meantime."""
    review = context.review
    if batch.store != review.store.id:
        return JSONResponse({"problem": "store", "detail": f"this is {review.name}, another review."}, 409)
    actions = {action.request_id: _action(review, action) for action in batch.actions}
    known = [action for action in actions.values() if action is not None]
    outcomes = review.store.append(known, reviewer=batch.reviewer, client=batch.client)
    gone = [request_id for request_id, action in actions.items() if action is None]
    results = [_result(review, outcome) for outcome in outcomes]
    results += [{"request_id": request_id, "status": "gone", "id": ""} for request_id in gone]
    problem = "conflict" if any(outcome.status == "conflict" for outcome in outcomes) else "gone" if gone else ""
    answer = {"results": results, "problem": problem, **_status(context, number, batch.reviewer)}
    return JSONResponse(answer, 409 if problem else 200)


def _action(review: Review, action: DecisionMessage | UndoMessage) -> Decision | Undo | None:
    """Convert a message for the store; None when the label is no longer a candidate."""
    if isinstance(action, UndoMessage):
        return Undo(action.undoes, action.request_id)
    number = review.candidates.index(action.id)
    return None if number is None else review.decision(number, action.value, action.request_id, action.base_version)


def _result(review: Review, outcome: DecisionOutcome) -> dict[str, Any]:
    current = outcome.current
    number = None if outcome.key is None else review.candidates.number_of(outcome.key)
    return {
        "request_id": outcome.request_id,
        "status": outcome.status,
        "id": "" if number is None else f"{int(review.candidates.columns.ids[number]):016x}",
        "value": "" if current is None else str(current.value),
        "version": 0 if current is None else current.id,
        "who": "" if current is None else current.reviewer,
    }


def _status(context: AppContext, number: int | None, reviewer: str | None) -> dict[str, Any]:
    """Return the parts of a page that change with every decision."""
    known = number if number is not None and number < len(context.review.candidates.classes) else None
    panel = panel_context(context.review, known, reviewer or context.reviewer)
    parts = {name: render(f"{name}.html", panel=panel) for name in ("counters", "panel")}
    return {**parts, "remaining": context.remaining()}


def _page(context: AppContext, template: str, number: int | None, make: Callable[[], dict[str, Any]]) -> str:
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


def _image_response(make: Callable[[], bytes], image_format: str) -> Response:
    try:
        data = make()
    except (LabelGapError, OSError, RuntimeError, ImportError) as error:
        raise HTTPException(404, single_line(str(error))) from None
    return Response(data, media_type=f"image/{image_format}", headers=_CACHEABLE)


def _find_candidate(context: AppContext, identity: str) -> int:
    number = context.review.candidates.index(identity)
    if number is None:
        raise HTTPException(404, "there is no such candidate: the list has changed, reload the page.")
    return number


def _find_image(context: AppContext, identity: str) -> int:
    number = context.review.candidates.image_index(identity)
    if number is None:
        raise HTTPException(404, "there is no such image among the candidates.")
    return number


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    """Describe what is wrong with an input, without returning the input."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
    return JSONResponse({"problem": "invalid", "detail": single_line("; ".join(problems))[:500]}, 422)


async def _http_error(request: Request, error: Exception) -> Response:
    """Return an error as a page to a person and as JSON to the script."""
    assert isinstance(error, StarletteHTTPException)
    return _error_response(request, error.status_code, "refused", error.detail)


async def _own_error(request: Request, error: Exception) -> Response:
    """Tell the page and the terminal what is wrong on this machine, e.g. a full disk or a damaged file."""
    context: AppContext = request.app.state.context
    message = single_line(str(error))
    if message != context.reported:
        context.reported = message
        print(f"labelgap: {message}", file=sys.stderr, flush=True)
    status = 507 if isinstance(error, DiskError) and error.full else 503
    return _error_response(request, status, "unsaved", message)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    return _error_response(request, 500, "unsaved", f"labelgap has a bug ({type(error).__name__}): see its terminal.")


def _error_response(request: Request, status: int, problem: str, detail: str) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(render("error.html", message=detail, status=status), status)
    return JSONResponse({"problem": problem, "detail": detail}, status)
