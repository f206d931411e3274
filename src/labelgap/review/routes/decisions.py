"""Decisions: what the page sends, and what it polls for."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from labelgap.audit.live import Aim
from labelgap.review.queues.feeds import aim_feed, class_feed, lacks_examples
from labelgap.review.routes.context import Browser, ClassNumber, Context, counter_parts, status_parts
from labelgap.review.routes.visitor import Visitor
from labelgap.review.schemas import DecisionBatch, DecisionMessage, Reviewer, Token, UndoMessage
from labelgap.review.session import Review
from labelgap.review.store.events import SECOND, Decision, DecisionOutcome, Undo
from labelgap.review.views import PAGE_SIZES, make_tile

_MAX_CHANGES: Final = 5000

router = APIRouter()


@router.get("/api/session")
def session(context: Context) -> dict[str, str]:
    """Return the CSRF token, for a page that was opened before the server restarted."""
    return {"csrf_token": context.policy.csrf_token, "store": context.review.store.id}


@router.get("/api/changes")
def changes(
    context: Context,
    browser: Browser,
    since: Annotated[int, Query(ge=0, le=2**53)],
    reviewer: Annotated[Reviewer | None, Query()] = None,
    number: ClassNumber = None,
    ranking: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    size: Annotated[int, Query(ge=1, le=max(PAGE_SIZES))] = PAGE_SIZES[0],
    aim: Aim = "missing",
    lease: Annotated[Token | None, Query()] = None,
) -> dict[str, Any]:
    """Return the decisions after an event, the progress, what a newer ranking than that of the page suggests, and
    who else is at work; renew the lease of the page."""
    visitor = Visitor(context, browser, lease or "")
    leased = None if lease is None else context.leases.renew(visitor.holder, reviewer or context.reviewer)
    current = context.review.current
    with current.lock:
        current.refresh()
        rows = np.flatnonzero(current.last_event > since)
        rows = rows[np.argsort(current.last_event[rows])][:_MAX_CHANGES]
        last_id = int(current.last_event[rows[-1]]) if len(rows) == _MAX_CHANGES else current.last_id
        tiles = [make_tile(context.review, int(row)) for row in rows]
        reload = since < current.reload_before
    changed = [{name: each[name] for name in ("id", "value", "version", "who")} for each in tiles]
    parts = status_parts(context, number, reviewer)
    update = None if ranking is None else _update(visitor, aim, number, ranking, size)
    team = {"lease": leased, "people": [] if number is None else context.leases.people(browser, number)}
    return {"changes": changed, "last_id": last_id, "reload": reload, "update": update, **team, **parts}


def _update(visitor: Visitor, aim: Aim, number: int | None, ranking: int, size: int) -> dict[str, Any] | None:
    """Return the ids of the next page in the order of a newer ranking than the page has; None where there is none."""
    review = visitor.context.review
    if number is not None and number < len(review.candidates.classes) and lacks_examples(review, number):
        return None
    newest = None if aim == "random" or (aim == "missing" and number is None) else review.ranking(aim)
    if newest is None or newest.number == ranking or (number or 0) >= len(review.candidates.classes):
        return None
    feed = class_feed(review, number) if aim == "missing" and number is not None else aim_feed(review, aim, number)
    numbers = feed.numbers[~np.isin(feed.numbers, visitor.held())][:size]
    ids = [f"{identity:016x}" for identity in review.candidates.columns.ids[numbers].tolist()]
    return {"ranking": newest.number, "decisions": newest.decisions, "ids": ids}


@router.post("/api/decisions")
def decide(context: Context, browser: Browser, batch: DecisionBatch, number: ClassNumber = None) -> JSONResponse:
    """Store decisions; 409 when one of them conflicts with a decision made in the meantime."""
    review = context.review
    if batch.store != review.store.id:
        return JSONResponse({"problem": "store", "detail": f"this is {review.name}, another review."}, 409)
    context.leases.set_reviewer(browser, batch.reviewer)
    actions = {action.request_id: _action(review, action, batch.reviewer) for action in batch.actions}
    known = [action for action in actions.values() if action is not None]
    outcomes = review.store.append(known, reviewer=batch.reviewer, client=batch.client)
    gone = [request_id for request_id, action in actions.items() if action is None]
    results = [_result(review, outcome) for outcome in outcomes]
    results += [{"request_id": request_id, "status": "gone", "id": ""} for request_id in gone]
    problem = "conflict" if any(outcome.status == "conflict" for outcome in outcomes) else "gone" if gone else ""
    answer = {"results": results, "problem": problem, **counter_parts(context, number, batch.reviewer)}
    return JSONResponse(answer, 409 if problem else 200)


def _action(review: Review, action: DecisionMessage | UndoMessage, reviewer: str) -> Decision | Undo | None:
    """Convert a message for the store; None when the label is no longer a candidate.

    A second opinion is one on what somebody else has decided; where nobody has any more, it is a decision.
    """
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
        "id": "" if number is None else f"{int(review.candidates.columns.ids[number]):016x}",
        "value": "" if current is None else str(current.value),
        "version": 0 if current is None else current.id,
        "who": "" if current is None else current.reviewer,
    }
