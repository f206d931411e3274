"""From what people type to values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labelgap.core.errors import InputError, nearest

__all__ = ["parse_names", "parse_observe", "parse_options", "parse_pairs", "parse_value"]


def parse_value(text: str) -> Any:
    """Read a whole number, a number, true or false, or several of them between commas; anything else stays a text.

    Example:
        >>> [parse_value(text) for text in ("3", "0.2", "true", "all", "0.1,0.9")]
        [3, 0.2, True, 'all', [0.1, 0.9]]
    """
    if "," in text:
        return [parse_value(part.strip()) for part in text.split(",")]
    words = {"true": True, "false": False}
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


def parse_names(texts: Iterable[str] | None, name: str) -> list[str] | None:
    """Read names with commas between them, from one option or several; None where nothing was said.

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


def parse_pairs(pairs: Iterable[str] | None, name: str) -> dict[str, str] | None:
    """Read ``old=new`` pairs of names as they are written; None where nothing was said.

    Example:
        >>> parse_pairs(["dog=Dog", "1=one"], "--rename")
        {'dog': 'Dog', '1': 'one'}
    """
    if pairs is None:
        return None
    found: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = (part.strip() for part in pair.partition("="))
        if not equals or not old or not new:
            raise InputError(f"{name} {pair}: write it as old=new, e.g. {name} dog=Dog")
        if found.setdefault(old, new) != new:
            raise InputError(f"{name} {old} is given twice.")
    return found


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
