"""Parse option values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

from labelgap.core.errors import InputError, nearest
from labelgap.core.text import parse_scalar

_DURATION: Final = re.compile(r"(?:([\d.]+)w)?(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s)?")
_SECONDS: Final = (7 * 86400, 86400, 3600, 60, 1)


def parse_duration(text: str, name: str) -> float:
    """Parse a duration in weeks, days, hours, minutes and seconds, and return seconds; a bare number is minutes.

    Example:
        >>> [parse_duration(text, "--budget") for text in ("15m", "1h30m", "2", "30d")]
        [900.0, 5400.0, 120.0, 2592000.0]
    """
    compact = text.strip().lower().replace(" ", "")
    match = _DURATION.fullmatch(f"{compact}m" if compact.isdecimal() else compact)
    try:
        if match is None or not compact:
            raise ValueError
        return sum(float(count or 0) * seconds for count, seconds in zip(match.groups(), _SECONDS, strict=True))
    except ValueError:
        raise InputError(f"{name} {text}: write a duration as 30d, 12h, 1h30m or 90s.") from None


def parse_share(text: str, name: str) -> float:
    """Parse a share: percent with the sign, or a number from 0 to 1.

    Example:
        >>> [parse_share(text, "--double") for text in ("5%", "12.5 %", "0.05", "100%")]
        [0.05, 0.125, 0.05, 1.0]
    """
    compact = text.strip()
    try:
        number = float(compact.removesuffix("%"))
    except ValueError:
        number = math.nan
    share = number / 100 if compact.endswith("%") else number
    if not 0 <= share <= 1:
        raise InputError(f"{name} {text}: write a share from 0% to 100%, e.g. {name} 5%")
    return share


def parse_numbers(text: str | None, name: str, number: type[int] | type[float]) -> list[float] | None:
    """Parse comma-separated numbers; None where the option is not given.

    Example:
        >>> parse_numbers("1e-3,0.1", "--lr", float)
        [0.001, 0.1]
    """
    if text is None:
        return None
    try:
        return [number(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{name} {text}: write comma-separated numbers, e.g. {name} 16") from None


def parse_value(text: str) -> Any:
    """Parse an integer, a float, true or false, or a comma-separated list of them; anything else stays a string.

    Example:
        >>> [parse_value(text) for text in ("3", "0.2", "true", "all", "0.1,0.9")]
        [3, 0.2, True, 'all', [0.1, 0.9]]
    """
    if "," in text:
        return [parse_value(part.strip()) for part in text.split(",")]
    return parse_scalar(text)


def parse_options(pairs: Iterable[str], name: str = "--option") -> dict[str, Any]:
    """Parse ``key=value`` pairs.

    Example:
        >>> parse_options(["delta_rel=0.2", "base=all"])
        {'delta_rel': 0.2, 'base': 'all'}
    """
    parts = (pair.partition("=") for pair in pairs)
    found = parse_pairs((key.replace("-", "_") + equals + value for key, equals, value in parts), name, "delta_rel=0.2")
    return {key: parse_value(value) for key, value in (found or {}).items()}


def parse_names(texts: Iterable[str] | None, name: str) -> list[str] | None:
    """Parse comma-separated names from one or several options; None when no option was given.

    Example:
        >>> parse_names(["cat,dog", "owl"], "--classes")
        ['cat', 'dog', 'owl']
    """
    if texts is None:
        return None
    names = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if not names:
        raise InputError(f"{name}: name at least one, e.g. {name} cat,dog")
    return names


def parse_pairs(pairs: Iterable[str] | None, name: str, example: str = "dog=Dog") -> dict[str, str] | None:
    """Parse ``key=value`` pairs of names; None when no option was given.

    Example:
        >>> parse_pairs(["dog=Dog", "1=one"], "--rename")
        {'dog': 'Dog', '1': 'one'}
    """
    if pairs is None:
        return None
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise InputError(f"{name} {pair}: write it as key=value, e.g. {name} {example}")
        if found.setdefault(key, value) != value:
            raise InputError(f"{name} {key} is given twice.")
    return found


def parse_observe(text: str) -> dict[str, Any]:
    """Parse ``positives=1,negatives=0``, or a rule for the present labels and its options.

    Example:
        >>> parse_observe("positives=1,negatives=all")
        {'positives': 1, 'negatives': 'all'}
        >>> parse_observe("small-overlooked,share=0.3,negatives=1")
        {'positives': 'small-overlooked', 'share': 0.3, 'negatives': 1}
    """
    from labelgap.labels.gaps import check_draw

    first, *others = [part.strip() for part in text.split(",") if part.strip()] or [""]
    if first and "=" not in first:
        first = f"positives={first}"
    given = parse_options([part for part in (first, *others) if part], "--observe")
    options = {key: value for key, value in given.items() if key not in ("positives", "negatives")}
    rule, allowed = given.get("positives", 1), ("positives", "negatives")
    for key in options:
        if not isinstance(rule, str) and (near := nearest(key, allowed)):
            raise InputError(f"--observe takes positives and negatives, not '{key}'. Did you mean '{near}'?")
    try:
        check_draw(rule, options)
    except InputError as error:
        raise InputError(f"--observe {text}: {error}") from None
    return given
