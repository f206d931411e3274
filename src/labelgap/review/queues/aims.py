"""What to ask: the three aims of a review, and what each has brought."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.live import AIMS, Aim
from labelgap.core.text import pluralize
from labelgap.labels.codes import PRESENT
from labelgap.review.store.events import ASKED

AIM_TEXT: Final[dict[Aim, str]] = {
    "missing": "find the missing labels",
    "classifier": "make the classifier better",
    "random": "measure",
}
"""The aims in words, in the order in which they are offered."""
AIM_WAY: Final[dict[Aim, str]] = {
    "missing": "the most probable first, one class at a time",
    "classifier": "what the model is least sure of, of all classes",
    "random": "at random: how many are still missing",
}
"""What is asked for each aim."""


@dataclass(frozen=True)
class AimCount:
    """What was asked for one aim.

    Attributes:
        answers: decisions in force.
        found: of these, missing labels that are present.
    """

    answers: int = 0
    found: int = 0


def brought_by_aim(
    asked: NDArray[np.integer[Any]], decided: NDArray[np.bool_], value: NDArray[np.int8]
) -> dict[Aim, AimCount]:
    """Count the decisions of each aim; what was not asked for an aim, e.g. image by image, found missing labels too.

    Args:
        asked: ``(C,)`` as what each candidate was asked, an index into ``ASKED``.
        decided: ``(C,)`` whether an answer about a label that may be missing is in force.
        value: ``(C,)`` codes.
    """
    size, asked = len(ASKED), np.where(asked == ASKED.index("other"), ASKED.index("missing"), asked)
    answers = np.bincount(asked[decided], minlength=size)
    found = np.bincount(asked[decided & (value == PRESENT)], minlength=size)
    return {aim: AimCount(int(answers[at]), int(found[at])) for aim, at in ((aim, ASKED.index(aim)) for aim in AIMS)}


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
    width = "no interval yet" if half_width is None else f"± {pluralize(math.ceil(half_width), 'label')}"
    return f"{pluralize(count.answers, 'random answer')}: {width}"
