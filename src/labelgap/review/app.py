"""The routes of the review page. Pages are made here, on the server; the script in them only carries decisions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from labelgap.core.errors import LabelGapError
from labelgap.reporting.html import package_version
from labelgap.reporting.style import single_line
from labelgap.review.candidates import KINDS
from labelgap.review.events import Decision, DecisionOutcome, Undo
from labelgap.review.schemas import CandidateId, DecisionBatch, DecisionMessage, Reviewer, UndoMessage
from labelgap.review.security import AccessPolicy
from labelgap.review.session import Review
from labelgap.review.templating import static_files, static_version, templates
from labelgap.review.thumbnails import LARGE_SIZE, THUMBNAIL_SIZE, HeatMaps, ReviewThumbnails
from labelgap.review.views import (
    PAGE_SIZES,
    grid_context,
    image_context,
    known_labels,
    make_tile,
    overview_context,
    panel_context,
)

__all__ = ["AppContext", "create_app"]

_MOST_CHANGES: Final = 5000
_KEPT: Final = {"cache-control": "private, max-age=3600"}
"""How long a browser may keep a picture or a script; the address of a script changes with it."""


@dataclass
class AppContext:
    """Everything the routes share.

    Attributes:
        review: candidates and decisions.
        door: who may come in.
        reviewer: the name that decisions bear until somebody types another.
        budget: seconds that the review is to take; None for as long as it likes.
        started: when the first page was opened.
    """

    review: Review
    door: AccessPolicy
    reviewer: str
    budget: int | None = None
    started: float | None = None
    pictures: ReviewThumbnails = field(init=False)
    heat: HeatMaps = field(init=False)

    def __post_init__(self) -> None:
        self.pictures = ReviewThumbnails(self.review)
        self.heat = HeatMaps(self.pictures)

    def left(self) -> int | None:
        """Return the seconds left of the budget; below 0 when it is used up, None where there is none."""
        if self.budget is None:
            return None
        if self.started is None:
            self.started = time.monotonic()
        return round(self.budget - (time.monotonic() - self.started))


def create_app(desk: AppContext) -> FastAPI:
    """Make the application; ``Guard`` stands in front of it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.desk = desk
    app.include_router(_routes)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _refused)
    return app


_routes = APIRouter()


def _desk(request: Request) -> AppContext:
    desk: AppContext = request.app.state.desk
    return desk


_Desk = Annotated[AppContext, Depends(_desk)]
_ClassNumber = Annotated[int | None, Query(alias="class", ge=0, le=10**7)]


@_routes.get("/", response_class=HTMLResponse)
def overview(desk: _Desk) -> str:
    """Show the classes."""
    return _page(desk, "overview.html", None, lambda: overview_context(desk.review))


@_routes.get("/class/{number}", response_class=HTMLResponse)
def grid(
    desk: _Desk,
    number: Annotated[int, InPath(ge=0, le=10**7)],
    page: Annotated[int, Query(ge=1, le=10**7)] = 1,
    size: Annotated[int, Query(ge=1, le=max(PAGE_SIZES))] = PAGE_SIZES[0],
    kind: Literal["missing", "wrong"] = "missing",
    show: Literal["all", "undecided"] = "all",
) -> str:
    """Show the candidates of one class."""
    _check_class(desk, number)
    asked: dict[str, Any] = {"wrong": kind == "wrong", "undecided": show == "undecided", "page": page, "size": size}
    return _page(desk, "grid.html", number, lambda: grid_context(desk.review, number, **asked))


@_routes.get("/image/{identity}", response_class=HTMLResponse)
def image(desk: _Desk, identity: CandidateId) -> str:
    """Show one image with all its candidates."""
    place = _image(desk, identity)
    return _page(desk, "image.html", None, lambda: image_context(desk.review, place))


@_routes.get("/detail/{identity}", response_class=HTMLResponse)
def detail(desk: _Desk, identity: CandidateId) -> str:
    """Return what stands beside an image that is shown large."""
    number = _candidate(desk, identity)
    entry = make_tile(desk.review, number)
    known = known_labels(desk.review, int(desk.review.candidates.columns.image[number]))
    return templates().get_template("detail.html").render(tile=entry, known=known, heat=desk.heat.available)


@_routes.get("/thumbnail/{identity}")
def thumbnail(desk: _Desk, identity: CandidateId) -> Response:
    """Return an image, small."""
    return _picture(desk, identity, THUMBNAIL_SIZE)


@_routes.get("/picture/{identity}")
def picture(desk: _Desk, identity: CandidateId) -> Response:
    """Return an image, large."""
    return _picture(desk, identity, LARGE_SIZE)


@_routes.get("/heat/{identity}")
def heat(desk: _Desk, identity: CandidateId) -> Response:
    """Return where the network sees the class of a candidate."""
    number = _candidate(desk, identity)
    columns = desk.review.candidates.columns
    try:
        data = desk.heat.get(int(columns.image[number]), int(columns.class_number[number]))
    except (LabelGapError, OSError, RuntimeError, ImportError) as error:
        raise HTTPException(404, single_line(str(error))) from None
    return Response(data, media_type="image/png", headers=_KEPT)


@_routes.get("/static/{version}/{name}")
def static(version: str, name: str) -> Response:
    """Return a script or a style sheet: one of a few that are known by name; the version keeps old ones apart."""
    files = static_files()
    if name not in files:
        raise HTTPException(404, "there is no such file.")
    data, kind = files[name]
    return Response(data, media_type=kind, headers=_KEPT)


@_routes.get("/api/session")
def session(desk: _Desk) -> dict[str, str]:
    """Return the stamp for changes, to a page that was opened before the server was started anew."""
    return {"stamp": desk.door.stamp, "store": desk.review.store.id, "name": desk.review.name}


@_routes.get("/api/changes")
def changes(
    desk: _Desk,
    since: Annotated[int, Query(ge=0, le=2**53)],
    reviewer: Annotated[Reviewer | None, Query()] = None,
    number: _ClassNumber = None,
) -> dict[str, Any]:
    """Return what anybody decided since an event, and how far the review is."""
    standing = desk.review.standing
    with standing.lock:
        standing.refresh()
        rows = np.flatnonzero(standing.touched > since)
        rows = rows[np.argsort(standing.touched[rows])][:_MOST_CHANGES]
        last = int(standing.touched[rows[-1]]) if len(rows) == _MOST_CHANGES else standing.last
        tiles = [make_tile(desk.review, int(row)) for row in rows]
        reload = since < standing.since
    changed = [{"id": each.id, "value": each.value, "version": each.version, "who": each.who} for each in tiles]
    return {"changes": changed, "last": last, "reload": reload, **_status(desk, number, reviewer)}


@_routes.post("/api/decisions")
def decide(desk: _Desk, said: DecisionBatch, number: _ClassNumber = None) -> JSONResponse:
    """Write decisions down; 409 where one of them is in conflict with what somebody decided since."""
    review = desk.review
    if said.store != review.store.id:
        return JSONResponse({"problem": "store", "detail": f"this is {review.name}, another review."}, 409)
    actions = {action.request: _action(review, action) for action in said.actions}
    known = [action for action in actions.values() if action is not None]
    outcomes = review.store.append(known, reviewer=said.reviewer, client=said.client)
    gone = [request for request, action in actions.items() if action is None]
    results = [_result(review, outcome) for outcome in outcomes]
    results += [{"request": request, "status": "gone", "id": ""} for request in gone]
    problem = "conflict" if any(outcome.status == "conflict" for outcome in outcomes) else "gone" if gone else ""
    answer = {"results": results, "problem": problem, **_status(desk, number, said.reviewer)}
    return JSONResponse(answer, 409 if problem else 200)


def _action(review: Review, action: DecisionMessage | UndoMessage) -> Decision | Undo | None:
    """Return what was done, in the store's words; None where the label is no longer among the candidates."""
    if isinstance(action, UndoMessage):
        return Undo(action.undoes, action.request)
    row = review.candidates.index(action.id)
    if row is None:
        return None
    columns = review.candidates.columns
    score = float(columns.score[row])
    return Decision(
        review.candidates.entry(row),
        action.value,
        action.request,
        action.saw,
        KINDS[columns.kind[row]],
        None if np.isnan(score) else score,
    )


def _result(review: Review, outcome: DecisionOutcome) -> dict[str, Any]:
    stands = outcome.standing
    number = None if outcome.entry is None else review.candidates.number_of(outcome.entry)
    return {
        "request": outcome.request,
        "status": outcome.status,
        "id": "" if number is None else f"{int(review.candidates.columns.ids[number]):016x}",
        "value": "" if stands is None else str(stands.value),
        "version": 0 if stands is None else stands.id,
        "who": "" if stands is None else stands.reviewer,
    }


def _status(desk: AppContext, number: int | None, reviewer: str | None) -> dict[str, Any]:
    known = number if number is not None and number < len(desk.review.candidates.classes) else None
    shown = panel_context(desk.review, known, reviewer or desk.reviewer)
    parts = {name: templates().get_template(f"{name}.html").render(panel=shown) for name in ("figures", "panel")}
    return {**parts, "left": desk.left()}


def _page(desk: AppContext, template: str, number: int | None, make: Callable[[], dict[str, Any]]) -> str:
    left = desk.left()
    desk.review.standing.refresh()
    last = desk.review.standing.last  # before the page is made: what comes meanwhile is told by the next poll
    return (
        templates()
        .get_template(template)
        .render(
            page=make(),
            review=desk.review,
            last=last,
            number="" if number is None else number,
            stamp=desk.door.stamp,
            reviewer=desk.reviewer,
            left=left,
            budget=desk.budget,
            heat=desk.heat.available,
            panel=panel_context(desk.review, number, desk.reviewer),
            static=static_version(),
            version=package_version(),
        )
    )


def _picture(desk: AppContext, identity: str, side: int) -> Response:
    try:
        data = desk.pictures.get(_image(desk, identity), side)
    except (LabelGapError, OSError) as error:
        raise HTTPException(404, single_line(str(error))) from None
    return Response(data, media_type="image/webp", headers=_KEPT)


def _candidate(desk: AppContext, identity: str) -> int:
    number = desk.review.candidates.index(identity)
    if number is None:
        raise HTTPException(404, "there is no such candidate: the list was made anew, load the page again.")
    return number


def _image(desk: AppContext, identity: str) -> int:
    number = desk.review.candidates.image_index(identity)
    if number is None:
        raise HTTPException(404, "there is no such image among the candidates.")
    return number


def _check_class(desk: AppContext, number: int) -> None:
    if number >= len(desk.review.candidates.classes):
        raise HTTPException(404, "there is no such class.")


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong with an input, without giving it back."""
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
    return JSONResponse({"problem": "invalid", "detail": single_line("; ".join(found))[:500]}, 422)


async def _refused(request: Request, error: Exception) -> Response:
    """Say why, as a page to a person and as JSON to the script."""
    assert isinstance(error, StarletteHTTPException)
    if "text/html" in request.headers.get("accept", ""):
        words = templates().get_template("error.html").render(words=error.detail, static=static_version())
        return HTMLResponse(words, error.status_code)
    return JSONResponse({"problem": "refused", "detail": error.detail}, error.status_code)
