"""What stands beside and above every page: progress, the chart of what was found, estimates, and people."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.review.estimates import MIN_RANDOM, SampleEstimate, describe_estimate, describe_next
from labelgap.review.new_classes.page import added_context
from labelgap.review.queues.outlook import expected_next
from labelgap.review.queues.wrong_queue import wrong_queue
from labelgap.review.session import Review
from labelgap.review.team.agreement import describe_agreement, measure_agreement

_CHART_POINTS: Final = 160


def counters_context(review: Review, class_number: int | None, reviewer: str) -> dict[str, Any]:
    """Return what the head of every page shows: progress, speed, examples of a class that was added.

    It is made anew for every decision.
    """
    progress, speed = review.progress(), review.current.per_minute(reviewer)
    share = 0 if not progress.total else progress.decided / progress.total
    examples = added_context(review, class_number)
    speed = None if speed is None else round(speed)
    return {"progress": progress, "share": share, "speed": speed, "examples": examples}


def panel_context(review: Review, class_number: int | None) -> dict[str, Any]:
    """Return what the side panel of every page shows: labels found, estimate of missing labels, people."""
    found: dict[str, Any] = review.cached(f"panel {class_number}", lambda: _panel(review, class_number))
    return found


def _panel(review: Review, class_number: int | None) -> dict[str, Any]:
    estimate = review.estimate()
    compared = estimate is not None and estimate.has_interval and not review.folder.random
    share = estimate.missing[0] / estimate.unknown if estimate is not None and compared else None
    return {
        "chart": chart_context(review.current.found_curve(), share),
        "estimates": _estimates(review, estimate, class_number),
        "wrong_labels": _wrong_summary(review) if class_number is None else "",
        "ranking_problem": "" if review.rankings is None else review.rankings.problem,
        **review.cached("team", lambda: _team(review)),
    }


def _team(review: Review) -> dict[str, Any]:
    """Return who decided how many and how fast, how well people agree, and how many disagreements are open."""
    pairs, current = review.opinions.pairs(), review.current
    return {
        "people": [(name, count, current.per_minute(name)) for name, count in current.count_by_reviewer()],
        "agreement": describe_agreement(measure_agreement(pairs).total) if pairs else "",
        "disagreements": sum(pair.is_open for pair in pairs),
    }


def _wrong_summary(review: Review) -> str:
    """Return what the queue of labels that look wrong has brought; empty before the first answer."""
    queue = wrong_queue(review)
    return queue.summary if queue is not None and queue.total.answered else ""


def _estimates(review: Review, estimate: SampleEstimate | None, class_number: int | None) -> list[str]:
    """Return the estimates of missing labels as sentences: of the class that is shown, and of all classes."""
    own = None if class_number is None else review.estimate(class_number)
    if class_number is not None and class_number >= len(review.folder.classes) and own is None:
        name = review.candidates.classes[class_number]
        return [
            f"{name}: how many show it is estimated after {MIN_RANDOM} random answers.",
            describe_estimate(estimate),
        ]
    if own is None or class_number is None:
        return [describe_estimate(estimate)]
    sentences = [describe_estimate(own, review.candidates.classes[class_number])]
    if following := describe_next(expected_next(review, class_number)):
        sentences.append(following)
    return sentences if estimate is None or estimate.classes == 1 else [*sentences, describe_estimate(estimate)]


def chart_context(found: NDArray[np.int64], share: float | None = None) -> dict[str, Any] | None:
    """Return the chart of found against reviewed labels, in units of its axes; None before the first decision.

    Args:
        found: ``(n,)`` labels found among the first 1, 2, … n reviewed candidates.
        share: share of unknown labels that are present, when known: what reviewing at random would have found.

    Example:
        >>> chart_context(np.array([1, 1, 2]))["points"]
        [(0, 0), (1, 1), (2, 1), (3, 2)]
    """
    if not len(found):
        return None
    reviewed, most = len(found), int(found[-1])
    at = np.unique(np.linspace(0, reviewed, min(reviewed, _CHART_POINTS) + 1).astype(np.int64))
    values = np.concatenate([[0], found])[at]
    return {
        "reviewed": reviewed,
        "found": most,
        "right": _axis_end(reviewed),
        "top": _axis_end(max(most, 1)),
        "points": list(zip(at.tolist(), values.tolist(), strict=True)),
        "random": None if share is None else share * reviewed,
    }


def _axis_end(value: int) -> int:
    """Return a round number at or above a value.

    Example:
        >>> [_axis_end(value) for value in (1, 7, 23, 180)]
        [2, 8, 30, 200]
    """
    step = int(10 ** int(math.log10(max(value, 2))))
    return next(factor * step for factor in (1, 2, 3, 4, 6, 8, 10) if factor * step >= max(value, 2))
