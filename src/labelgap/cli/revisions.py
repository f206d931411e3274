"""``labelgap revisions``: what was revised, by whom; and taking decisions back."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.core.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from labelgap.review.events import DecisionEvent

__all__ = ["revisions"]

_ACTIONS = ("list", "revert")


def revisions(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or a review.")],
    action: Annotated[str, typer.Argument(metavar="list|revert", help="List them, or take decisions back.")] = "list",
    numbers: Annotated[list[int] | None, typer.Argument(metavar="[N]…", help="Decisions to take back.")] = None,
    reviewer: Annotated[str | None, typer.Option(help="Only decisions of this person.")] = None,
    since: Annotated[str | None, typer.Option(help="Only what was made since, e.g. 2025-11-15T14:00 or 30m.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take all decisions back.")] = False,
    limit: Annotated[int, typer.Option(help="List the last so many of each source.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: all of them.")] = False,
) -> None:
    """List what people and methods revised, or take decisions of people back; nothing is ever deleted."""
    if action not in _ACTIONS:
        raise UnknownNameError("action", action, _ACTIONS)
    moment = None if since is None else _moment(since)
    if action == "revert":
        _revert(run, numbers or [], reviewer, moment, everything)
    elif numbers or everything:
        raise InputError("numbers and --all say what to revert: labelgap revisions RUN revert 12 13")
    else:
        _list(run, reviewer, moment, limit, as_json)


def _list(run: Path, reviewer: str | None, since: datetime | None, limit: int, as_json: bool) -> None:
    from labelgap.review import open_review_folder
    from labelgap.review.formatting import ANSWER_TEXT
    from labelgap.review.store import FILE, DecisionStore

    folder = open_review_folder(run)
    events: list[DecisionEvent] = []
    if (folder.path / FILE).exists():
        store = DecisionStore(folder.path / FILE)
        events = store.events()
        store.close()
    undone = {event.undoes for event in events}
    kept = [event for event in events if _wanted(event, reviewer, since)]
    models = [] if folder.run is None or reviewer or since else list(folder.run.revisions)
    if as_json:
        print(
            json.dumps([*map(_plain, kept), *({"source": made.source, **vars(made)} for made in models)], default=str)
        )
        return
    for event in kept[-limit:]:
        when = event.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        entry = event.entry
        print(
            f"{event.id:>7}  {when}  {event.reviewer:<12} {_said(event, undone):<22} {entry.class_name} · {entry.image}"
        )
    if len(kept) > limit:
        print(f"{'':>7}  … and {len(kept) - limit:,} before; --limit shows more")
    if not kept:
        print("no decision of a person" + (" of that kind" if reviewer or since else " yet"))
    for made in models[-limit:]:
        value = f"{made.target:.2f}" if made.target is not None else ANSWER_TEXT[made.value]
        print(f"{'':>7}  epoch {made.epoch!s:<13} {made.source:<12} {value:<22} {made.class_name} · {made.image}")
    if len(models) > limit:
        print(f"{'':>7}  … and {len(models) - limit:,} before, in revisions.parquet")


def _revert(run: Path, numbers: list[int], reviewer: str | None, since: datetime | None, everything: bool) -> None:
    from labelgap.cli.review import user_name
    from labelgap.review import open_review_folder
    from labelgap.review.events import Undo
    from labelgap.review.store import FILE, DecisionStore

    folder = open_review_folder(run)
    if not (numbers or reviewer or since or everything):
        raise InputError(
            "say what to take back: numbers as `list` shows them, --reviewer NAME, --since TIME, or --all."
        )
    if not (folder.path / FILE).exists():
        raise InputError(f"{run} has no decisions of people. A method's revisions are not applied unless asked for.")
    store = DecisionStore(folder.path / FILE)
    try:
        counting = store.counting()
        known = {event.id for event in counting}
        for number in numbers:
            if number not in known:
                raise InputError(f"{number} is no decision that counts: `labelgap revisions {run} list` shows them.")
        wanted = [
            event for event in counting if (not numbers or event.id in numbers) and _wanted(event, reviewer, since)
        ]
        undos = [Undo(event.id, uuid.uuid4().hex) for event in reversed(wanted)]
        store.append(undos, reviewer=user_name(), client=f"revert-{uuid.uuid4().hex[:12]}")
    finally:
        store.close()
    print(f"{len(undos):,} {'decision' if len(undos) == 1 else 'decisions'} taken back; they stay in the list")


def _wanted(event: DecisionEvent, reviewer: str | None, since: datetime | None) -> bool:
    return (reviewer is None or event.reviewer == reviewer) and (since is None or event.time >= since)


def _said(event: DecisionEvent, undone: set[int | None]) -> str:
    from labelgap.review.formatting import ANSWER_TEXT

    if event.value is None:
        return f"took back {event.undoes}"
    mark = " (undone)" if event.id in undone else "" if event.counts else " (overruled)"
    return ANSWER_TEXT[event.value] + mark


def _plain(event: DecisionEvent) -> dict[str, Any]:
    return {
        "source": "review",
        "id": event.id,
        "time": event.time.isoformat(),
        "author": event.reviewer,
        "image": event.entry.image,
        "split": event.entry.split,
        "class": event.entry.class_name,
        "value": event.value,
        "kind": event.kind,
        "score": event.score,
        "undoes": event.undoes,
        "counts": event.counts,
    }


def _moment(text: str) -> datetime:
    """Read a time, in the local zone unless it names one, or how long ago it was.

    Example:
        >>> _moment("2025-11-15T14:00+00:00").isoformat()
        '2025-11-15T14:00:00+00:00'
    """
    from labelgap.review.formatting import parse_duration

    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except InputError:
        raise InputError(f"--since {text}: write it as 2025-11-15T14:00, or as 30m for half an hour ago.") from None
