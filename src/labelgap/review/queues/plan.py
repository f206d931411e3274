r"""Where the next minutes bring most: how fast a person answers, and what the next candidates promise.

The seconds of an answer are those since the answer before it, of the same person; longer ones than ``PAUSE`` are
pauses and count for nothing. A person who has answered little is taken to be as fast as ``USUAL_SECONDS``, and a class
as fast as its person elsewhere: with :math:`n` answers in :math:`T` seconds, of which :math:`n_k` in :math:`T_k`
seconds are of class :math:`k`,

.. math:: t = \frac{T + m t_0}{n + m}, \qquad t_k = \frac{T_k + m t}{n_k + m}
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.review.store.events import DecisionEvent

PAUSE: Final = 60.0
"""Seconds after which somebody was doing something else."""
USUAL_SECONDS: Final = 2.0
"""Seconds of an answer of a person of whom nothing is known."""
PRIOR_ANSWERS: Final = 20.0
"""m, the weight of what is known otherwise: that of so many answers."""
STEP: Final = 20
"""A plan changes the class after so many answers at the earliest."""

Numbers = NDArray[np.integer[Any]]
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AnswerSpeed:
    """How fast a person answers.

    Attributes:
        answers: that were timed.
        seconds: of an answer.
        by_class: ``(K,)`` seconds of an answer of each class.
    """

    answers: int
    seconds: float
    by_class: Array

    @property
    def per_minute(self) -> float:
        """Answers per minute."""
        return 60 / self.seconds


@dataclass(frozen=True)
class PlanStep:
    """Answers to give in a row.

    Attributes:
        class_number: of the class.
        answers: how many.
        finds: how many missing labels they probably find.
        minutes: how long they take.
    """

    class_number: int
    answers: int
    finds: float
    minutes: float


def answer_speed(events: Iterable[DecisionEvent], reviewer: str, classes: Mapping[str, int]) -> AnswerSpeed:
    """Measure how fast a person answers.

    Args:
        events: in the order of their ids.
        reviewer: the person.
        classes: name → number, of K classes.
    """
    own = [event for event in events if event.reviewer == reviewer and event.is_answer]
    counts, seconds = np.zeros(len(classes)), np.zeros(len(classes))
    for earlier, later in pairwise(own):
        step, number = (later.time - earlier.time).total_seconds(), classes.get(later.key.class_name)
        if number is not None and 0 <= step <= PAUSE:
            counts[number] += 1
            seconds[number] += step
    mean = float((seconds.sum() + PRIOR_ANSWERS * USUAL_SECONDS) / (counts.sum() + PRIOR_ANSWERS))
    return AnswerSpeed(int(counts.sum()), mean, (seconds + PRIOR_ANSWERS * mean) / (counts + PRIOR_ANSWERS))


def finds_per_minute(class_number: Numbers, probability: Array, seconds: Array, minutes: float = 1.0) -> Array:
    """Return how many finds per minute each class promises over the next minutes, ``(K,)``.

    Args:
        class_number: ``(C,)`` of the open candidates, in the order in which they are shown.
        probability: ``(C,)`` of being present.
        seconds: ``(K,)`` of an answer.
        minutes: how far to look ahead.

    Example:
        >>> finds_per_minute(np.array([0, 1, 0]), np.array([1.0, 0.5, 0.5]), np.array([60.0, 30.0]), 2)
        array([0.75, 0.25])
    """
    order = np.argsort(class_number, kind="stable")
    group = np.asarray(class_number)[order]
    turn = np.arange(len(group)) - np.searchsorted(group, np.arange(len(seconds)))[group]
    share = np.clip(60 * minutes / seconds[group] - turn, 0, 1)  # of the last candidate only a part fits
    sums = np.bincount(group, weights=share * probability[order], minlength=len(seconds))
    return np.asarray(sums / minutes, dtype=np.float64)


def next_minutes(
    minutes: float, class_number: Numbers, probability: Array, seconds: Array, step: int = STEP
) -> list[PlanStep]:
    """Plan the next minutes: always the class whose next candidates promise the most finds per minute.

    The arguments are those of ``finds_per_minute``. Of each class so many candidates in a row are taken as ``step``
    says. Steps of one class are joined; the class with the most finds per minute is the first.

    Example:
        >>> next_minutes(1, np.array([0, 0, 1, 1]), np.array([0.9, 0.1, 0.5, 0.5]), np.array([20.0, 20.0]), step=1)
        [PlanStep(class_number=0, answers=1, finds=0.9, minutes=0.333...), PlanStep(class_number=1, answers=2, ...)]
    """
    by_class = {number: probability[class_number == number] for number in np.unique(class_number).tolist()}
    heap = [(-_rate(chances, 0, step, seconds[number]), number, 0) for number, chances in by_class.items()]
    heapq.heapify(heap)
    left, taken = 60.0 * minutes, dict[int, int]()
    while heap and left > 0:
        rate, number, start = heapq.heappop(heap)
        count = min(step, len(by_class[number]) - start, int(left // seconds[number]))
        if rate >= 0 or count == 0:
            continue
        left -= count * float(seconds[number])
        taken[number] = start + count
        if start + step < len(by_class[number]):
            following = -_rate(by_class[number], start + step, step, seconds[number])
            heapq.heappush(heap, (following, number, start + step))
    steps = [
        PlanStep(number, count, float(by_class[number][:count].sum()), count * float(seconds[number]) / 60)
        for number, count in taken.items()
    ]
    return sorted(steps, key=lambda each: (-each.finds / each.minutes, each.class_number))


def _rate(chances: Array, start: int, step: int, seconds: float) -> float:
    """Return the finds per second of the candidates from ``start`` on."""
    part = chances[start : start + step]
    return float(part.sum() / (len(part) * seconds))
