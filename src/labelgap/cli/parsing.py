"""Declare options, and parse their values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import typer

from labelgap.core.errors import InputError, nearest
from labelgap.core.text import parse_scalar

_DURATION: Final = re.compile(r"(?:([\d.]+)w)?(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s)?")
_SECONDS: Final = (7 * 86400, 86400, 3600, 60, 1)


def option(about: str, default: str | bool = True, name: str | None = None, **more: Any) -> Any:
    """Declare an option: its help, what the help says of the default, and its name where it is not the parameter's."""
    return typer.Option(*([] if name is None else [name]), help=about, show_default=default, **more)


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


def parse_numbers(text: str | None, name: str, number: type[int] | type[float]) -> list[float] | None:
    """Parse comma-separated numbers; None where the option is not given."""
    try:
        return None if text is None else [number(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{name} {text}: write comma-separated numbers, e.g. {name} 16") from None


def parse_options(pairs: Iterable[str], name: str = "--option") -> dict[str, Any]:
    """Parse ``key=value`` pairs whose values are numbers, true or false, lists of them with commas, or texts.

    Example:
        >>> parse_options(["delta-rel=0.2", "base=all", "range=0.1,0.9"])
        {'delta_rel': 0.2, 'base': 'all', 'range': [0.1, 0.9]}
    """
    found = parse_pairs(pairs, name, "delta_rel=0.2") or {}
    values = {key: [parse_scalar(part.strip()) for part in value.split(",")] for key, value in found.items()}
    return {key.replace("-", "_"): value if len(value) > 1 else value[0] for key, value in values.items()}


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
    """Parse ``key=value`` pairs of names; None when no option was given."""
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
        >>> parse_observe("small-overlooked,share=0.3,negatives=1")
        {'positives': 'small-overlooked', 'share': 0.3, 'negatives': 1}
    """
    from labelgap.labels.masking import check_draw

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


def file_stem(name: str) -> str:
    """Return the name of data without its folder and suffix, for the names of files that are made of them."""
    return re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "data"
