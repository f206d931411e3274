"""What the aims of a review have brought, and where the next minutes bring most, for the pages."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.live import Aim
from labelgap.metrics.label_model import round_to_sum
from labelgap.review.candidates import MISSING, WRONG
from labelgap.review.estimates import NEXT, ExpectedPresent, expect_next
from labelgap.review.progress import correct_scores
from labelgap.review.queues.aims import AIM_TEXT, AIM_WAY, brought_by_aim, describe_aim
from labelgap.review.queues.feeds import class_feed, has_aims
from labelgap.review.queues.plan import STEP, AnswerSpeed, answer_speed, finds_per_minute, next_minutes
from labelgap.review.session import Review

MINUTES: Final = 10
_SHOWN: Final = 5
_LITTLE: Final = 0.5
"""Labels that are still missing where the estimate is rounded to 0."""


def aims_context(review: Review, aim: Aim) -> list[dict[str, Any]]:
    """Return the aims to choose from, the chosen one marked, with what each has brought; empty without a choice."""
    if not has_aims(review):
        return []
    current, estimate = review.current, review.estimate()
    asked = review.copies.shown & (review.candidates.columns.kind != WRONG)
    with current.lock:
        counts = brought_by_aim(current.asked, current.decided & asked, current.value)
    width = (estimate.high - estimate.low) / 2 if estimate is not None and estimate.has_interval else None
    return [
        {
            "aim": each,
            "name": name,
            "way": AIM_WAY[each],
            "brought": describe_aim(each, counts[each], width),
            "chosen": each == aim,
        }
        for each, name in AIM_TEXT.items()
    ]


def plan_context(review: Review, reviewer: str) -> dict[str, Any]:
    """Return a plan of the next minutes of a person."""
    classes, speed = review.candidates.classes, _speed(review, reviewer)
    steps = next_minutes(MINUTES, *_open_candidates(review), speed.by_class)
    rates = class_rates(review, reviewer)
    steps.sort(key=lambda step: -rates[step.class_number])  # as the list of classes
    finds = round_to_sum(np.array([step.finds for step in steps])).tolist()
    rows = [
        {"number": step.class_number, "name": classes[step.class_number], "answers": step.answers, "finds": found}
        for step, found in zip(steps, finds, strict=True)
    ]
    return {
        "minutes": MINUTES,
        "per_minute": round(speed.per_minute),
        "is_own": speed.answers > 0,
        "steps": rows[:_SHOWN],
        "more": rows[_SHOWN:],
        "answers": sum(step.answers for step in steps),
        "finds": sum(finds),
    }


def class_rates(review: Review, reviewer: str) -> NDArray[np.float64]:
    """Return how many finds per minute each class promises a person, ``(K,)``, as far as a step of the plan goes."""
    speed = _speed(review, reviewer)
    return finds_per_minute(*_open_candidates(review), speed.by_class, STEP * speed.seconds / 60)


def expected_next(review: Review, class_number: int, count: int = NEXT) -> ExpectedPresent | None:
    """Return what the next candidates of a class are expected to hold; None without a model."""
    first = class_feed(review, class_number).numbers[:count]
    return expect_next(review.estimates(), first, _probability(review)[first])


def _probability(review: Review) -> NDArray[np.float64]:
    """Return ``(C,)`` how probable the candidates are; NaN without a model.

    A ranking learns from answers about likely labels, and may promise more in a class than random answers leave there:
    the open candidates of a class hold no more than is still missing by its estimate.
    """
    probability, columns, by_class = review.live_probability(), review.candidates.columns, review.estimates().by_class
    if review.ranking() is None:
        return probability
    with review.current.lock:
        is_open = ~review.current.decided & (columns.kind != WRONG)
    promised = np.bincount(columns.class_number[is_open], np.nan_to_num(probability[is_open]), len(by_class))
    most = np.array([np.inf if each is None else max(each.still_missing, _LITTLE) for each in by_class])
    return probability * np.minimum(1, most / np.maximum(promised, _LITTLE))[columns.class_number]


def _speed(review: Review, reviewer: str) -> AnswerSpeed:
    numbers = {name: number for number, name in enumerate(review.candidates.classes)}
    review.current.refresh()
    return answer_speed(list(review.current.recent), reviewer, numbers)


def _open_candidates(review: Review) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return class numbers and probabilities of the open candidates, in the order in which they are asked."""
    columns, ranking, probability = review.candidates.columns, review.ranking(), _probability(review)
    if not review.is_estimated:
        probability = np.where(np.isnan(probability), correct_scores(review.current), probability)
    with review.current.lock:
        is_open = review.copies.shown & (columns.kind == MISSING) & ~review.current.decided
    if ranking is None:
        rows = review.candidates.display_order
        rows = rows[is_open[rows]]
    else:
        rows = np.flatnonzero(is_open)
        rows = rows[np.lexsort((ranking.position[rows], columns.class_number[rows]))]
    return columns.class_number[rows], np.nan_to_num(probability[rows])
