"""Numbers as people read them, and the sentences that say what a number means or why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

__all__ = [
    "NO_VALUE",
    "format_class_count",
    "format_count",
    "format_elapsed",
    "format_measure",
    "join_names",
    "modified_caption",
    "selection_rule_text",
]

NO_VALUE: Final = "–"
"""Stands where the known labels support no number."""

_SELECTION: Final = {
    "clean": "Every label of val is known, so the epoch with the highest val mAP was kept.",
    "known": "The epoch with the highest val mAP was kept, over the classes with known presents and known absents.",
    "observed": "Too few labels of val are known to measure accuracy. Epochs were ordered by how high they rank the "
    "observed positives, which is not an accuracy. For a true estimate, have a few hundred random val images labelled "
    "in full.",
    "last": "The last epoch was kept; no val split had a say.",
}


def format_measure(value: float | None) -> str:
    """Return a measure from 0 to 1 in percent, or a dash when there is none.

    Example:
        >>> format_measure(0.78432), format_measure(None)
        ('78.4', '–')
    """
    return NO_VALUE if value is None or not math.isfinite(value) else f"{100 * value:.1f}"


def format_count(value: int) -> str:
    """Return a whole number with separators.

    Example:
        >>> format_count(912130)
        '912,130'
    """
    return f"{value:,}"


def format_elapsed(seconds: float | None) -> str:
    """Return a time as a person says it.

    Example:
        >>> format_elapsed(7.25), format_elapsed(192), format_elapsed(8000)
        ('7.2 s', '3 min 12 s', '2 h 13 min')
    """
    if seconds is None or not math.isfinite(seconds):
        return NO_VALUE
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_class_count(count: int | None, classes: int | None) -> str:
    """Return how many classes a mean is over."""
    return NO_VALUE if count is None or classes is None else f"{count:,} of {classes:,}"


def join_names(names: Sequence[str], most: int = 20) -> str:
    """Return names in a row, the first of many.

    Example:
        >>> join_names(["cat", "dog", "owl"], 2)
        'cat, dog and 1 more'
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def selection_rule_text(rule: str) -> str:
    """Return the sentence that says how the epoch was chosen, and what follows from it."""
    return _SELECTION[rule]


def modified_caption(names: str) -> str:
    """Return what is said under the figure of the modified labels."""
    return (
        f"What {names} did to unknown labels: how many it no longer took as absent, and how many of those are truly "
        "present. The dashed line is what modifying at random would hit."
    )
