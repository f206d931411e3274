"""What to ask: the three aims of a review, and what each has brought."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from labelgap.audit.live import AIMS, Aim
from labelgap.core.text import pluralize
from labelgap.labels.codes import PRESENT
from labelgap.review.store.events import DecisionEvent

__all__ = ["AIM_TEXT", "AimCount", "brought_by_aim", "describe_aim"]

AIM_TEXT: Final[dict[Aim, str]] = {
    "missing": "find the missing labels",
    "classifier": "make the classifier better",
    "random": "measure",
}
"""The aims in words, in the order in which they are offered."""


@dataclass(frozen=True)
class AimCount:
    """What was asked for one aim.

    Attributes:
        answers: decisions in force.
        found: of these, missing labels that are present.
    """

    answers: int = 0
    found: int = 0


def brought_by_aim(events: Iterable[DecisionEvent]) -> dict[Aim, AimCount]:
    """Count the answers of each aim.

    Args:
        events: decisions in force. Those that were asked for another reason, and those of copies, are not counted.
    """
    counts = {aim: [0, 0] for aim in AIMS}
    for event in events:
        if event.kind in AIMS and not event.for_copy:
            counts[event.kind][0] += 1
            counts[event.kind][1] += event.value == PRESENT
    return {aim: AimCount(*pair) for aim, pair in counts.items()}


def describe_aim(aim: Aim, count: AimCount, half_width: float | None = None) -> str:
    """Return what an aim has brought so far, in words.

    Args:
        aim: what was asked for.
        count: its answers.
        half_width: half of the interval of how many labels are still missing; None where there is none yet.

    Example:
        >>> describe_aim("missing", AimCount(412, 230)), describe_aim("random", AimCount(80, 3), 24.6)
        ('412 answers, 230 found', '80 random answers: ± 25 labels')
    """
    if not count.answers:
        return "no answers yet"
    if aim == "missing":
        return f"{pluralize(count.answers, 'answer')}, {count.found:,} found"
    if aim == "classifier":
        return f"{pluralize(count.answers, 'answer')} for the classifier, {count.found:,} found"
    width = "no interval yet" if half_width is None else f"± {pluralize(round(half_width), 'label')}"
    return f"{pluralize(count.answers, 'random answer')}: {width}"
