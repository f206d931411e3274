"""``labelgap revisions``: list the revisions of labels, and revert decisions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument

from labelgap.cli.options import option, parse_duration
from labelgap.cli.printing import print_fields, print_json
from labelgap.cli.review import user_name
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.review.store import DecisionEvent

_ACTIONS: Final = "List revisions, revert decisions, or save those of a damaged file."


def revisions(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a run or a review.")],
    action: Annotated[str, Argument(metavar="list|revert|recover", help=_ACTIONS)] = "list",
    numbers: Annotated[list[int] | None, Argument(metavar="[N]…", help="Decisions to revert.")] = None,
    reviewer: Annotated[str | None, option("Only decisions of this person.")] = None,
    since: Annotated[str | None, option("Only decisions since, e.g. 2025-11-15T14:00 or 30m.")] = None,
    revert_all: Annotated[bool, option("Revert all decisions.", name="--all")] = False,
    limit: Annotated[int, option("Number of latest revisions to list, per source.")] = 40,
    as_json: Annotated[bool, option("Print all of them as JSON.", name="--json")] = False,
) -> None:
    """List the revisions of people and methods, or revert decisions of people; nothing is ever deleted."""
    start = None if since is None else _parse_time(since)

    def matches(event: DecisionEvent) -> bool:
        return reviewer in (None, event.reviewer) and (start is None or event.time >= start)

    if action == "revert":
        if not (numbers or reviewer or since or revert_all):
            raise InputError("name what to revert: numbers that `list` shows, --reviewer NAME, --since TIME, or --all.")
        _revert(run, numbers or [], matches)
    elif action == "recover":
        _recover(run)
    elif action != "list":
        raise UnknownNameError("action", action, ("list", "revert", "recover"))
    elif numbers or revert_all:
        raise InputError("numbers and --all belong to revert: labelgap revisions RUN revert 12 13")
    else:
        _list(run, matches, bool(reviewer or since), limit, as_json)


def _list(run: Path, matches: Callable[[DecisionEvent], bool], filtered: bool, limit: int, as_json: bool) -> None:
    from labelgap.review import open_review_folder
    from labelgap.review.database import FILE
    from labelgap.review.store import ANSWER_TEXT, DecisionStore

    folder = open_review_folder(run)
    with closing(DecisionStore(folder.path / FILE, read_only=True)) as store:
        events = store.events()
    undone = {event.undoes for event in events}
    events = [event for event in events if matches(event)]
    models = [] if folder.run is None or filtered else list(folder.run.revisions)
    if as_json:
        return print_json([*map(_as_dict, events), *map(vars, models)])
    for event in events[-limit:]:
        mark = " (undone)" if event.id in undone else "" if event.accepted else " (overruled)"
        answer = f"reverted {event.undoes}" if event.value is None else ANSWER_TEXT[event.value] + mark
        made = f"{event.id:>7}  {event.time.astimezone():%Y-%m-%d %H:%M:%S}  {event.reviewer:<12}"
        print(f"{made} {answer:<22} {event.key.class_name} · {event.key.image}")
    if len(events) > limit:
        print(f"{'':>7}  … and {len(events) - limit:,} before; --limit shows more")
    if not events:
        print("no decision of a person" + (" matches" if filtered else " yet"))
    for each in models[-limit:]:
        value = f"{each.target:.2f}" if each.target is not None else ANSWER_TEXT[each.value]
        print(f"{'':>7}  epoch {each.epoch!s:<13} {each.source:<12} {value:<22} {each.class_name} · {each.image}")
    if len(models) > limit:
        print(f"{'':>7}  … and {len(models) - limit:,} before, in revisions.parquet")


def _as_dict(event: DecisionEvent) -> dict[str, Any]:
    names = ("value", "kind", "score", "undoes", "accepted")
    about = {"source": "review", "id": event.id, "time": event.time.isoformat(), "author": event.reviewer}
    label = {"image": event.key.image, "split": event.key.split, "class": event.key.class_name}
    return {**about, **label, **{name: getattr(event, name) for name in names}}


def _revert(run: Path, numbers: list[int], matches: Callable[[DecisionEvent], bool]) -> None:
    from labelgap.review import open_review_folder
    from labelgap.review.database import FILE
    from labelgap.review.store import DecisionStore, Undo

    path = open_review_folder(run).path / FILE
    if not path.exists():
        raise InputError(f"{run} has no decisions of people. Revisions of a method are applied only on request.")
    with closing(DecisionStore(path)) as store:
        accepted = store.accepted()
        for number in {*numbers} - {event.id for event in accepted}:
            raise InputError(f"{number} is not a decision in force: `labelgap revisions {run} list` lists them.")
        selected = [event for event in accepted if (not numbers or event.id in numbers) and matches(event)]
        undos = [Undo(event.id, uuid.uuid4().hex) for event in reversed(selected)]
        store.append(undos, reviewer=user_name(), client=f"revert-{uuid.uuid4().hex[:12]}")
        count = len(accepted) - len(store.accepted())
    print(f"{pluralize(count, 'decision')} reverted; they stay in the list")


def _recover(run: Path) -> None:
    from labelgap.review.database import FILE, recover_events

    recovered = run / "recovered.sqlite"
    result = recover_events(run / FILE, recovered)
    print_fields(
        ("wrote", f"{recovered}: {result.kept:,} events; {result.lost:,} are lost"),
        ("next", f"look at it, and put it in the place of {run / FILE} (delete {FILE}-wal and {FILE}-shm first)"),
    )


def _parse_time(text: str) -> datetime:
    """Parse a time, in the local zone unless it names one, or a duration before now."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text, "--since"))
    except (InputError, OverflowError):
        raise InputError(f"--since {text}: write it as 2025-11-15T14:00, or as 30m for half an hour ago.") from None
