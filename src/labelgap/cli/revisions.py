"""``labelgap revisions``: list the revisions of labels, and revert decisions."""

from __future__ import annotations

import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.cli.printing import print_json
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.review.store.events import DecisionEvent

_ACTIONS = ("list", "revert", "recover")
_RECOVERED = "recovered.sqlite"


def revisions(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or a review.")],
    action: Annotated[
        str,
        typer.Argument(
            metavar="list|revert|recover", help="List revisions, revert decisions, or save those of a damaged file."
        ),
    ] = "list",
    numbers: Annotated[list[int] | None, typer.Argument(metavar="[N]…", help="Decisions to revert.")] = None,
    reviewer: Annotated[str | None, typer.Option(help="Only decisions of this person.")] = None,
    since: Annotated[str | None, typer.Option(help="Only decisions since, e.g. 2025-11-15T14:00 or 30m.")] = None,
    revert_all: Annotated[bool, typer.Option("--all", help="Revert all decisions.")] = False,
    limit: Annotated[int, typer.Option(help="Number of latest revisions to list, per source.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of them as JSON.")] = False,
) -> None:
    """List the revisions of people and methods, or revert decisions of people; nothing is ever deleted."""
    if action not in _ACTIONS:
        raise UnknownNameError("action", action, _ACTIONS)
    start = None if since is None else _parse_time(since)
    if action == "revert":
        _revert(run, numbers or [], reviewer, start, revert_all)
    elif action == "recover":
        _recover(run)
    elif numbers or revert_all:
        raise InputError("numbers and --all belong to revert: labelgap revisions RUN revert 12 13")
    else:
        _list(run, reviewer, start, limit, as_json)


def _list(run: Path, reviewer: str | None, since: datetime | None, limit: int, as_json: bool) -> None:
    from labelgap.review import open_review_folder
    from labelgap.review.store import FILE, DecisionStore
    from labelgap.review.store.events import ANSWER_TEXT

    folder = open_review_folder(run)
    with closing(DecisionStore(folder.path / FILE, read_only=True)) as store:
        events = store.events()
    undone = {event.undoes for event in events}
    events = [event for event in events if _matches(event, reviewer, since)]
    models = [] if folder.run is None or reviewer or since else list(folder.run.revisions)
    if as_json:
        print_json([*map(_as_dict, events), *map(vars, models)])
        return
    for event in events[-limit:]:
        time = event.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        label = f"{event.key.class_name} · {event.key.image}"
        print(f"{event.id:>7}  {time}  {event.reviewer:<12} {_describe(event, undone):<22} {label}")
    if len(events) > limit:
        print(f"{'':>7}  … and {len(events) - limit:,} before; --limit shows more")
    if not events:
        print("no decision of a person" + (" matches" if reviewer or since else " yet"))
    for revision in models[-limit:]:
        value = f"{revision.target:.2f}" if revision.target is not None else ANSWER_TEXT[revision.value]
        label = f"{revision.class_name} · {revision.image}"
        print(f"{'':>7}  epoch {revision.epoch!s:<13} {revision.source:<12} {value:<22} {label}")
    if len(models) > limit:
        print(f"{'':>7}  … and {len(models) - limit:,} before, in revisions.parquet")


def _revert(run: Path, numbers: list[int], reviewer: str | None, since: datetime | None, revert_all: bool) -> None:
    from labelgap.cli.review import user_name
    from labelgap.review import open_review_folder
    from labelgap.review.store import FILE, DecisionStore
    from labelgap.review.store.events import Undo

    folder = open_review_folder(run)
    if not (numbers or reviewer or since or revert_all):
        raise InputError("name what to revert: numbers as `list` shows them, --reviewer NAME, --since TIME, or --all.")
    if not (folder.path / FILE).exists():
        raise InputError(f"{run} has no decisions of people. Revisions of a method are applied only on request.")
    with closing(DecisionStore(folder.path / FILE)) as store:
        accepted = store.accepted()
        known = {event.id for event in accepted}
        for number in numbers:
            if number not in known:
                raise InputError(f"{number} is not a decision in force: `labelgap revisions {run} list` lists them.")
        selected = [
            event for event in accepted if (not numbers or event.id in numbers) and _matches(event, reviewer, since)
        ]
        undos = [Undo(event.id, uuid.uuid4().hex) for event in reversed(selected)]
        store.append(undos, reviewer=user_name(), client=f"revert-{uuid.uuid4().hex[:12]}")
        count = len(accepted) - len(store.accepted())
    print(f"{pluralize(count, 'decision')} reverted; they stay in the list")


def _recover(run: Path) -> None:
    from labelgap.review.store import FILE, recover_events

    result = recover_events(run / FILE, run / _RECOVERED)
    print(f"{'wrote':<10}{run / _RECOVERED}: {result.kept:,} events; {result.lost:,} are lost")
    print(f"{'next':<10}look at it, and put it in the place of {run / FILE} (delete {FILE}-wal and {FILE}-shm first)")


def _matches(event: DecisionEvent, reviewer: str | None, since: datetime | None) -> bool:
    return (reviewer is None or event.reviewer == reviewer) and (since is None or event.time >= since)


def _describe(event: DecisionEvent, undone: set[int | None]) -> str:
    from labelgap.review.store.events import ANSWER_TEXT

    if event.value is None:
        return f"reverted {event.undoes}"
    mark = " (undone)" if event.id in undone else "" if event.accepted else " (overruled)"
    return ANSWER_TEXT[event.value] + mark


def _as_dict(event: DecisionEvent) -> dict[str, Any]:
    return {
        "source": "review",
        "id": event.id,
        "time": event.time.isoformat(),
        "author": event.reviewer,
        "image": event.key.image,
        "split": event.key.split,
        "class": event.key.class_name,
        "value": event.value,
        "kind": event.kind,
        "score": event.score,
        "undoes": event.undoes,
        "accepted": event.accepted,
    }


def _parse_time(text: str) -> datetime:
    """Parse a time, in the local zone unless it names one, or a duration before now.

    Example:
        >>> _parse_time("2025-11-15T14:00+00:00").isoformat()
        '2025-11-15T14:00:00+00:00'
    """
    from labelgap.cli.parsing import parse_duration

    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text, "--since"))
    except (InputError, OverflowError):
        raise InputError(f"--since {text}: write it as 2025-11-15T14:00, or as 30m for half an hour ago.") from None
