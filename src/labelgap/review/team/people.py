"""What each person did: how many labels, and how fast."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from labelgap.review.store.events import SECOND, DecisionEvent

_PAUSE: Final = timedelta(seconds=60)
"""Between two answers; a longer time is a pause and does not count as work."""
_MIN_SECONDS: Final = 10.0
"""Of work, after which a speed is meaningful."""


@dataclass(frozen=True)
class PersonProgress:
    """What one person did.

    Attributes:
        name: of the person.
        decided: labels on which the person's decision is in force.
        answers: questions that the person answered, also those that were undone or decided otherwise since.
        second: of these, second opinions.
        minutes: of work, without pauses.
        per_minute: answers per minute of work; None after too little work.
    """

    name: str
    decided: int
    answers: int
    second: int
    minutes: float
    per_minute: float | None


def answers_per_minute(times: Sequence[datetime]) -> float | None:
    """Return the speed of somebody who answered at these times, without pauses; None after too little work."""
    steps, seconds = _work(times)
    return 60 * steps / seconds if seconds >= _MIN_SECONDS else None


def count_people(events: Iterable[DecisionEvent], current: Iterable[DecisionEvent]) -> list[PersonProgress]:
    """Count what each person did, who decided most labels first.

    Args:
        events: all events, in order.
        current: the decision in force for each label.
    """
    decided = Counter(event.reviewer for event in current)
    times: dict[str, list[datetime]] = defaultdict(list)
    second: Counter[str] = Counter()
    for event in events:
        if event.is_answer:
            times[event.reviewer].append(event.time)
            second[event.reviewer] += event.kind == SECOND
    people = [
        PersonProgress(
            name,
            decided[name],
            len(times[name]),
            second[name],
            _work(times[name])[1] / 60,
            answers_per_minute(times[name]),
        )
        for name in {**times, **decided}
    ]
    return sorted(people, key=lambda person: (-person.decided, -person.answers, person.name))


def _work(times: Sequence[datetime]) -> tuple[int, float]:
    """Return how many answers followed another one without a pause, and the seconds that they took."""
    steps = [later - earlier for earlier, later in pairwise(times)]
    active = [step.total_seconds() for step in steps if step <= _PAUSE]
    return len(active), sum(active)
