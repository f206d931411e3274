"""The web application of the page: its messages, with these fields and bounds alone, its routes, its errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.files import DiskError
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.reporting.formatting import single_line
from labelgap.review import queues, views
from labelgap.review.additions import NewPhotos, printable_name
from labelgap.review.context import (
    AppContext,
    Browser,
    ClassNumber,
    Context,
    CurrentVisitor,
    Visitor,
    check_class,
    counter_parts,
    find_candidate,
    find_image,
    status_parts,
)
from labelgap.review.queues import PageAim
from labelgap.review.session import Review
from labelgap.review.store import SECOND, Decision, DecisionOutcome, Undo
from labelgap.review.team import Holder
from labelgap.review.thumbnails import LARGE_SIZE, THUMBNAIL_SIZE
from labelgap.review.views import render
from labelgap.review.wrong_labels import WrongQueue, wrong_queue

MAX_ACTIONS: Final = 500
MAX_LEASED: Final = 2000

CandidateId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-zA-Z-]{8,64}$")]
Reviewer = Annotated[str, Field(min_length=1, max_length=80), AfterValidator(printable_name)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ClassMessage(_StrictModel):
    """A class to add; ``review.additions`` says which names it may have."""

    store: Token
    reviewer: Reviewer
    name: str = Field(min_length=1, max_length=200)


class PhotosMessage(_StrictModel):
    """New photos to add to the run: the path of a table or a folder on the machine of the server."""

    store: Token
    reviewer: Reviewer
    path: str = Field(pattern=r"^[^\x00]+$", max_length=4096)


class DecisionMessage(_StrictModel):
    """A decision; see ``store.Decision``."""

    request_id: Token
    id: CandidateId
    value: int = Field(ge=UNKNOWN, le=PRESENT)
    base_version: int = Field(ge=0, le=2**53)
    asked: Literal["missing", "classifier", "random", "wrong", "other", "second"] | None = None
    ranking: int = Field(default=0, ge=0, le=2**53)
    place: int = Field(default=0, ge=0, le=2**53)


class LeaseMessage(_StrictModel):
    """The candidates that an open page shows; none when it is left."""

    store: Token
    lease: Token  # the page
    reviewer: Reviewer  # who looks at it
    class_number: int | None = Field(ge=0, le=10**7)  # the class that it is about
    ids: list[CandidateId] = Field(max_length=MAX_LEASED)


class UndoMessage(_StrictModel):
    """The withdrawal of a decision, given by its request id."""

    request_id: Token
    undoes: Token


class DecisionBatch(_StrictModel):
    """Decisions in the order in which they were made."""

    store: Token  # another review may be served at the same address by now
    client: Token  # the browser window
    reviewer: Reviewer
    actions: list[DecisionMessage | UndoMessage] = Field(min_length=1, max_length=MAX_ACTIONS)


# For images and static files; the address of a static file changes with its content.
_CACHEABLE: Final = {"cache-control": "private, max-age=3600"}
_MAX_CHANGES: Final = 5000

Skip = Annotated[int, Query(ge=0, le=10**9)]
Size = Annotated[int, Query(ge=1, le=max(views.PAGE_SIZES))]
ReviewerName = Annotated[Reviewer | None, Query()]
router = APIRouter()


@router.get("/", response_class=HTMLResponse)
def overview(visitor: CurrentVisitor, aim: PageAim | None = None) -> str:
    """Show the classes, those first where the next minutes bring most."""
    review = visitor.review
    tagged = queues.few_tagged(review)
    aim = aim or ("missing" if tagged is None else "classifier")
    aims = {"aim": aim, "aims": queues.aims_context(review, aim), "wrong_queue": wrong_queue(review), "tagged": tagged}
    return visitor.render("overview.html", None, views.overview_context(review, visitor.context.reviewer) | aims)


@router.get("/class/{number}", response_class=HTMLResponse)
def grid(
    visitor: CurrentVisitor,
    number: Annotated[int, PathParameter(ge=0, le=10**7)],
    skip: Skip = 0,
    size: Size = views.PAGE_SIZES[0],
    kind: Literal["missing", "wrong"] = "missing",
    show: Literal["open", "decided", "held"] = "open",
    near: CandidateId | None = None,
) -> str:
    """Show the candidates of one class, by similarity to an image where one is named."""
    check_class(visitor.context, number)
    options: dict[str, Any] = {"wrong": kind == "wrong", "decided": show == "decided", "skip": skip, "size": size}
    image = None if near is None else find_image(visitor.context, near)
    options["near"], near_page = views.near_context(visitor.review, image)
    if show == "open":
        options["select"] = partial(visitor.select, number, kind == "wrong")
    made = views.grid_context(visitor.review, number, visitor.context.reviewer, **options)
    made |= {"added": views.added_context(visitor.review, number), "near": near_page}
    made |= {"has_aims": queues.has_aims(visitor.review), "lease": "" if show == "decided" else visitor.page}
    return visitor.render("grid.html", number, made)


@router.get("/image/{identity}", response_class=HTMLResponse)
def image(visitor: CurrentVisitor, identity: CandidateId) -> str:
    """Show one image with all its candidates."""
    number = find_image(visitor.context, identity)
    if number not in visitor.review.image_order:
        raise HTTPException(404, "this image is a copy of another one, which is asked about in its place.")
    visitor.context.leases.take(visitor.holder, visitor.review.of_image(number))
    made = views.image_context(visitor.review, number, visitor.held())
    return visitor.render("image.html", None, made | {"lease": visitor.page})


@router.get("/detail/{identity}", response_class=HTMLResponse)
def detail(context: Context, identity: CandidateId) -> str:
    """Return the text beside an enlarged image."""
    number = find_candidate(context, identity)
    known = views.known_labels(context.review, int(context.review.candidates.columns.image[number]))
    return views.render("detail.html", tile=views.make_tile(context.review, number), known=known)


@router.get("/wrong", response_class=HTMLResponse)
def wrong(
    visitor: CurrentVisitor,
    skip: Skip = 0,
    size: Size = views.PAGE_SIZES[0],
    show: Literal["open", "away", "decided"] = "open",
) -> str:
    """Show the known labels that look wrong."""
    review = visitor.review
    queue: WrongQueue | None = wrong_queue(review)
    if queue is None:
        raise HTTPException(404, "no known label looks wrong.")
    rows = {"open": queue.asked, "away": queue.put_away, "decided": queue.decided}[show]
    feed = queues.Feed.of(rows, "other" if show == "decided" else "wrong", review.audit_ranking)
    select = partial(visitor.select_from, None) if show == "open" else queues.paginate
    more = {"queue": queue, "show": show, "lease": visitor.page if show == "open" else ""}
    return visitor.render("wrong.html", None, views.feed_context(review, feed, skip, size, select) | more)


@router.get("/ask/{aim}", response_class=HTMLResponse)
def ask(
    visitor: CurrentVisitor,
    aim: Literal["classifier", "random", "machine"],
    number: ClassNumber = None,
    skip: Skip = 0,
    size: Size = views.PAGE_SIZES[0],
) -> str:
    """Show the candidates for an aim, of all classes or of one."""
    check_class(visitor.context, number)
    review, feed = visitor.review, queues.aim_feed(visitor.review, aim, number)
    made = views.feed_context(review, feed, skip, size, partial(visitor.select_from, number))
    name = "" if number is None else review.candidates.classes[number]
    made |= {"aim": aim, "title": queues.AIM_TEXT[aim][0], "lease": visitor.page}
    made |= {"class_number": number, "class_name": name}
    return visitor.render("ask.html", number, made)


@router.get("/plan", response_class=HTMLResponse)
def plan(context: Context, reviewer: ReviewerName = None) -> str:
    """Return where the next minutes of a person bring most."""
    if not queues.has_aims(context.review):
        return ""
    return views.render("plan.html", plan=queues.plan_context(context.review, reviewer or context.reviewer))


@router.get("/thumbnail/{identity}")
def thumbnail(context: Context, identity: CandidateId) -> Response:
    """Return an image, small."""
    return _image_response(context.thumbnails.get, find_image(context, identity), THUMBNAIL_SIZE)


@router.get("/large/{identity}")
def large(context: Context, identity: CandidateId) -> Response:
    """Return an image, large."""
    return _image_response(context.thumbnails.get, find_image(context, identity), LARGE_SIZE)


@router.get("/heat/{identity}")
def heat(context: Context, identity: CandidateId) -> Response:
    """Return the class activation map of a candidate."""
    number, columns = find_candidate(context, identity), context.review.candidates.columns
    image, class_number = int(columns.image[number]), int(columns.class_number[number])
    return _image_response(context.heat_maps.get, image, class_number, image_format="png")


@router.get("/static/{version}/{name}")
def static(version: str, name: str) -> Response:
    """Return a script or a style sheet by its name; the version only keeps addresses of old files apart."""
    if name not in views.static_files():
        raise HTTPException(404, "there is no such file.")
    data, media_type = views.static_files()[name]
    return Response(data, media_type=media_type, headers=_CACHEABLE)


def _image_response(make: Callable[..., bytes], *arguments: int, image_format: str = "webp") -> Response:
    try:
        data = make(*arguments)
    except (LabelGapError, OSError, RuntimeError, ImportError) as error:
        raise HTTPException(404, single_line(str(error))) from None
    return Response(data, media_type=f"image/{image_format}", headers=_CACHEABLE)


@router.get("/api/session")
def session(context: Context) -> dict[str, str]:
    """Return the CSRF token, for a page that was opened before the server restarted."""
    return {"csrf_token": context.policy.csrf_token, "store": context.review.store.id}


@router.get("/api/changes")
def changes(
    context: Context,
    browser: Browser,
    since: Annotated[int, Query(ge=0, le=2**53)],
    reviewer: ReviewerName = None,
    number: ClassNumber = None,
    ranking: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    size: Size = views.PAGE_SIZES[0],
    aim: PageAim = "missing",
    lease: Annotated[Token | None, Query()] = None,
) -> dict[str, Any]:
    """Return decisions after an event, progress, a newer ranking and who else is here; renew the lease of the page."""
    visitor = Visitor(context, browser, lease or "")
    leased = None if lease is None else context.leases.renew(visitor.holder, reviewer or context.reviewer)
    current = context.review.current
    with current.lock:
        current.refresh()
        rows = np.flatnonzero(current.last_event > since)
        rows = rows[np.argsort(current.last_event[rows])][:_MAX_CHANGES]
        last_id = int(current.last_event[rows[-1]]) if len(rows) == _MAX_CHANGES else current.last_id
        tiles = [views.make_tile(context.review, int(row)) for row in rows]
        reload = since < current.reload_before
    changed = [{name: each[name] for name in ("id", "value", "version", "who")} for each in tiles]
    parts = status_parts(context, number, reviewer)
    update = None if ranking is None else _update(visitor, aim, number, ranking, size)
    team = {"lease": leased, "people": [] if number is None else context.leases.people(browser, number)}
    return {"changes": changed, "last_id": last_id, "reload": reload, "update": update, **team, **parts}


def _update(visitor: Visitor, aim: PageAim, number: int | None, ranking: int, size: int) -> dict[str, Any] | None:
    """Return the ids of the next page in the order of a newer ranking than the page has; None where there is none."""
    review = visitor.context.review
    if number is not None and (number >= len(review.candidates.classes) or queues.lacks_examples(review, number)):
        return None
    if aim == "machine" or aim == "random" or (aim == "missing" and number is None):
        return None
    newest = review.ranking(aim)
    if newest is None or newest.number == ranking:
        return None
    of_class = aim == "missing" and number is not None
    feed = queues.class_feed(review, number or 0) if of_class else queues.aim_feed(review, aim, number)
    numbers = feed.numbers[~np.isin(feed.numbers, visitor.held())][:size]
    ids = [review.candidates.id(each) for each in numbers.tolist()]
    return {"ranking": newest.number, "decisions": newest.decisions, "ids": ids}


@router.post("/api/decisions")
def decide(context: Context, browser: Browser, batch: DecisionBatch, number: ClassNumber = None) -> JSONResponse:
    """Store decisions; 409 when one of them conflicts with a decision made in the meantime."""
    review = context.review
    if batch.store != review.store.id:
        return _other_review(review)
    context.leases.set_reviewer(browser, batch.reviewer)
    actions = {action.request_id: _action(review, action, batch.reviewer) for action in batch.actions}
    known = [action for action in actions.values() if action is not None]
    outcomes = review.store.append(known, reviewer=batch.reviewer, client=batch.client)
    results = [_result(review, outcome) for outcome in outcomes]
    gone = [request_id for request_id, action in actions.items() if action is None]
    results += [{"request_id": request_id, "status": "gone", "id": ""} for request_id in gone]
    problem = "conflict" if any(outcome.status == "conflict" for outcome in outcomes) else "gone" if gone else ""
    answer = {"results": results, "problem": problem, **counter_parts(context, number, batch.reviewer)}
    return JSONResponse(answer, 409 if problem else 200)


def _other_review(review: Review) -> JSONResponse:
    return JSONResponse({"problem": "store", "detail": f"this is {review.name}, another review."}, 409)


def _action(review: Review, action: DecisionMessage | UndoMessage, reviewer: str) -> Decision | Undo | None:
    """Convert a message for the store; a second opinion on nothing is a decision; None for what is no candidate."""
    if isinstance(action, UndoMessage):
        return Undo(action.undoes, action.request_id)
    number = review.candidates.index(action.id)
    if number is None:
        return None
    values = action.value, action.request_id, action.base_version, action.asked, action.ranking, action.place
    decision = review.decision(number, *values)
    if action.asked == SECOND and review.current.decided_by(number) not in (None, reviewer):
        return replace(decision, kind=SECOND, copies=())
    return decision


def _result(review: Review, outcome: DecisionOutcome) -> dict[str, Any]:
    current = outcome.current
    number = None if outcome.key is None else review.candidates.number_of(outcome.key)
    return {
        "request_id": outcome.request_id,
        "status": outcome.status,
        "id": "" if number is None else review.candidates.id(number),
        "value": "" if current is None else str(current.value),
        "version": 0 if current is None else current.id,
        "who": "" if current is None else current.reviewer,
    }


@router.post("/api/classes")
def add_class(context: Context, message: ClassMessage) -> JSONResponse:
    """Add a class; 422 with the reason for a name that cannot be used."""
    review = context.review
    if message.store != review.store.id:
        return _other_review(review)
    try:
        name = review.added.add(message.name, message.reviewer, review.candidates)
    except InputError as error:
        return JSONResponse({"problem": "name", "detail": single_line(str(error))}, 422)
    review.refresh_classes(now=True)
    review.similar.prepare()
    return JSONResponse({"number": review.candidates.classes.index(name), "name": name})


@router.get("/api/photos")
def photos_state(context: Context) -> dict[str, str | bool]:
    """Return whether photos are being added, and what the command has printed last."""
    return _photos(context).state()


@router.post("/api/photos")
def add_photos(context: Context, message: PhotosMessage) -> JSONResponse:
    """Start to add photos to the run."""
    photos = _photos(context)
    if message.store != context.review.store.id:
        return _other_review(context.review)
    if not photos.start(message.path.strip()):
        return JSONResponse({"problem": "busy", "detail": "photos are being added already."}, 409)
    return JSONResponse(photos.state())


def _photos(context: AppContext) -> NewPhotos:
    if context.photos is None:
        raise HTTPException(404, "photos are added on the machine of the server: labelgap train RUN --add more.csv")
    return context.photos


@router.post("/api/leases")
def lease(context: Context, browser: Browser, message: LeaseMessage) -> dict[str, list[str]]:
    """Lease what a page shows, after a restart or a long sleep; return what somebody else looks at by now."""
    holder, found = Holder(browser, message.lease), {}
    for identity in message.ids if message.store == context.review.store.id else ():
        number = context.review.candidates.index(identity)
        if number is not None:
            found[number] = identity
    if not found:
        context.leases.release(holder)
        return {"refused": []}
    granted = context.leases.take(holder, np.array(list(found), dtype=np.int64), place=message.class_number)
    context.leases.renew(holder, message.reviewer)
    return {"refused": [found[number] for number in found.keys() - set(granted.tolist())]}


@router.get("/settle", response_class=HTMLResponse)
def settle(visitor: CurrentVisitor, skip: Skip = 0) -> str:
    """Show the labels that two people answered differently, and how well people agree."""
    return visitor.render("settle.html", None, views.settle_context(visitor.review, skip))


def create_app(context: AppContext) -> FastAPI:
    """Create the application; ``SecurityMiddleware`` goes in front of it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.context = context
    app.include_router(router)
    for kind in (RequestValidationError, StarletteHTTPException, LabelGapError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):  # without returning the input
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
        return _error_response(request, 422, "invalid", single_line("; ".join(problems))[:500])
    if isinstance(error, StarletteHTTPException):
        return _error_response(request, error.status_code, "refused", error.detail)
    if not isinstance(error, LabelGapError):
        detail = f"labelgap has a bug ({type(error).__name__}): see its terminal."
        return _error_response(request, 500, "unsaved", detail)
    context: AppContext = request.app.state.context
    message = single_line(str(error))
    if message != context.reported:  # e.g. a full disk or a damaged file
        context.reported = message
        print(f"labelgap: {message}", file=sys.stderr, flush=True)
    status = 507 if isinstance(error, DiskError) and error.full else 503
    return _error_response(request, status, "unsaved", message)


def _error_response(request: Request, status: int, problem: str, detail: str) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(render("error.html", message=detail, status=status), status)
    return JSONResponse({"problem": problem, "detail": detail}, status)
