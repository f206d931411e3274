"""What is said of a review, on the page and in the terminal alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review.sample_estimate import MIN_SAMPLE, SampleEstimate

__all__ = ["ANSWER_TEXT", "format_estimate", "format_percent", "parse_duration"]

ANSWER_TEXT: Final = {PRESENT: "yes", ABSENT: "no", UNKNOWN: "can't tell"}

_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?")


def format_estimate(made: SampleEstimate | None, of: str = "", before: Mapping[str, Any] | None = None) -> str:
    """Say how many labels are missing, and how sure that is.

    Args:
        made: the estimate.
        of: a class, where it is about one; else how many classes it speaks of is said.
        before: what the audit estimated, with its assumption; it is said until there is something better.

    Example:
        >>> from labelgap.review.sample_estimate import estimate_missing
        >>> format_estimate(estimate_missing([0] * 20, [1] * 2 + [0] * 18, [1000]), "dog")
        'About 100 labels of dog are missing (95 %: 27 to 302). 20 random ones were decided, 2 of them there.'
    """
    if made is None or made.looked < MIN_SAMPLE:
        count = 0 if made is None else made.looked
        guess = f"About {before['missing']:,}, if {before['assumption']}. " if before and "assumption" in before else ""
        return (
            f"{guess}The random ones among what is listed will tell, from {MIN_SAMPLE} on; {count} so far. "
            "They count as far as a list is decided without a gap."
        )
    estimate, low, high = made.missing
    whose = f"labels of {of}" if of else f"labels of {made.classes:,} {'class' if made.classes == 1 else 'classes'}"
    unsure = f" {made.unsure:,} where nobody could tell are left out." if made.unsure else ""
    sample = f"{made.looked:,} random ones were decided, {made.present:,} of them there."
    return f"About {estimate:,} {whose} are missing (95 %: {low:,} to {high:,}). {sample}{unsure}"


def format_percent(score: float) -> str:
    """Return a probability in whole percent, rounded down; nothing where there is none.

    Example:
        >>> format_percent(0.879), format_percent(0.004), format_percent(float("nan"))
        ('87 %', '< 1 %', '')
    """
    if math.isnan(score):
        return ""
    return f"{int(100 * score)} %" if score >= 0.01 else "< 1 %"


def parse_duration(text: str) -> int:
    """Read a duration: ``15m``, ``1h30m``, ``90s``; a bare number is minutes.

    Example:
        >>> parse_duration("15m"), parse_duration("1h30m"), parse_duration("2")
        (900, 5400, 120)
    """
    plain = text.strip().lower().replace(" ", "")
    plain = f"{plain}m" if plain.isascii() and plain.isdigit() else plain
    found = _DURATION.fullmatch(plain)
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total <= 7 * 86400:
        raise InputError(f"--budget {text}: write it as 15m, 1h30m or 90s.")
    return total
