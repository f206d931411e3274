"""From what people type to values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labelgap.core.errors import InputError, nearest

__all__ = ["parse_observe", "parse_options", "parse_value"]


def parse_value(text: str) -> Any:
    """Read a whole number, a number, true, false or none; anything else stays a text.

    Example:
        >>> [parse_value(text) for text in ("3", "0.2", "true", "all")]
        [3, 0.2, True, 'all']
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_options(pairs: Iterable[str], name: str = "--option") -> dict[str, Any]:
    """Read ``key=value`` pairs.

    Example:
        >>> parse_options(["delta_rel=0.2", "base=all"])
        {'delta_rel': 0.2, 'base': 'all'}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise InputError(f"{name} {pair}: write it as key=value, e.g. {name} delta_rel=0.2")
        if key in options:
            raise InputError(f"{name} {key} is given twice.")
        options[key] = parse_value(value.strip())
    return options


def parse_observe(text: str) -> dict[str, Any]:
    """Read ``positives=1,negatives=0``.

    Example:
        >>> parse_observe("positives=1,negatives=all")
        {'positives': 1, 'negatives': 'all'}
    """
    given = parse_options((part for part in text.split(",") if part.strip()), "--observe")
    allowed = ("positives", "negatives")
    for key in given:
        if key not in allowed:
            raise InputError(
                f"--observe knows positives and negatives, not '{key}'. Did you mean '{nearest(key, allowed)}'?"
            )
    return given
