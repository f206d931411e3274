"""Estimates as sentences for the page and the terminal."""

from __future__ import annotations

from labelgap.core.text import pluralize
from labelgap.review.estimates.labels import MIN_RANDOM, SampleEstimate
from labelgap.review.estimates.next_labels import ExpectedPresent


def describe_estimate(estimate: SampleEstimate | None, class_name: str = "") -> str:
    """Return an estimate as sentences: what was counted, what is left, and where the interval comes from.

    Example:
        >>> describe_estimate(SampleEstimate(20, 2, 0, 1, 1000, 2, 980, 98, 26, 298), "dog")  # doctest: +ELLIPSIS
        'dog: 2 found. About 98 of the 980 left are present (95 %: 26 to 298), by the scores and 20 random answers...
    """
    if estimate is None:
        return "There is no estimate before a random candidate is decided."
    unsure = f" {pluralize(estimate.unsure, 'label')} could not be told." if estimate.unsure else ""
    of = class_name or pluralize(estimate.classes, "class")
    if not estimate.undecided:
        exact = "" if estimate.unsure else ", so this is exact"
        return f"{of}: {estimate.found:,} found. Every unknown label is decided{exact}.{unsure}"
    still, low, high = estimate.remaining
    ends = f"95 %: {low:,} to {high:,}" if estimate.has_interval else f"{low:,} to {high:,} are possible"
    left = describe_left(still, high, estimate.undecided)
    return f"{of}: {estimate.found:,} found. {left} present ({ends}){_source(estimate)}{unsure}"


def describe_left(number: int, high: int, left: int) -> str:
    """Return how many of those that are left are something, by an estimate that was rounded, and the verb.

    Args:
        number: the estimate.
        high: upper end of its interval: where it is not 0, neither is the estimate.
        left: how many are left.

    Example:
        >>> describe_left(8, 15, 27), describe_left(0, 2, 27), describe_left(0, 0, 27)
        ('About 8 of the 27 left are', 'Less than 1 of the 27 left is', 'Probably none of the 27 left is')
    """
    about = f"About {number:,}" if number else "Less than 1" if high else "Probably none"
    return f"{about} of the {left:,} left {'are' if number > 1 else 'is'}"


def _source(estimate: SampleEstimate) -> str:
    """Return the end of the sentence: what the interval is from, and what would narrow it."""
    if not estimate.has_interval:
        return f". An interval needs {MIN_RANDOM} random answers; {estimate.reviewed} so far."
    answers, present = pluralize(estimate.reviewed, "random answer"), f"({estimate.present:,} present)"
    source = (
        f", counted from {answers} alone {present}."
        if estimate.counted
        else f", by the scores and {answers} {present}."
    )
    if estimate.halving:
        source += f" About {estimate.halving:,} more random answers would halve this interval."
    return source


def describe_next(expected: ExpectedPresent | None) -> str:
    """Return what the next candidates are expected to hold; nothing without a model, or without candidates.

    It names no interval: docs/results/review.md says where that of the next candidates does not hold.

    Example:
        >>> describe_next(ExpectedPresent(50, 1.2, 0, 4))
        'The next 50 are expected to hold about 1.'
    """
    if expected is None or not expected.candidates:
        return ""
    return f"The next {expected.candidates:,} are expected to hold {_number(expected.present)}."


def _number(present: float) -> str:
    return f"about {present:,.0f}" if present >= 0.95 else "less than 1" if present >= 0.05 else "none"
