"""Parts of messages, and names from files made safe: for a terminal, and for a spreadsheet that opens a CSV."""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from typing import Any, Final

CONTROL: Final = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
"""A regular expression: what a terminal obeys instead of showing it, except for line ends and tabs: C0 and C1, line
and paragraph separators, marks and overrides of the direction of writing; and half characters, which no encoding has.
"""
_CONTROL: Final = re.compile(CONTROL)
_UNSEEN: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""What Unicode has drawn as nothing (``Default_Ignorable_Code_Point``), and the empty letter of braille."""
_NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z"
FORMULA: Final = rf"'*(?!{_NUMBER})[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""A regular expression: the beginning of a cell that ``quote_formula`` quotes."""
_FORMULA: Final = re.compile(FORMULA)
_SPOKEN_AS_VOWEL: Final = re.compile(
    r"(?!uni[^mn]|us[beu]|ut[ei]|ur[ai]|eu|ewe|once?\b)[aeiou]|hour|honest|heir|8|1[18]$|[AEFHILMNORSX]$"
)
_ONE_THING: Final = re.compile("building|ceiling|drawing|earring|king|painting|railing|ring|string|swing|wedding|wing")
_NOT_COUNTED: Final = re.compile(
    "art|black|blonde?|blue|blurry|bread|bright|broccoli|brown|cattle|children|cloudy|clothing|cold|dark|equipment|fire"
    "|fog|food|frost|furniture|gold|graffiti|grass|gr[ae]y|green|hair|happy|ice|indoor|jewelry|landscape|large|light"
    "|litter|luggage|makeup|men|metal|mice|military|mud|nature|new|night|nighttime|old|open|outdoor|people|pink"
    "|plastic|police|purple|rain|red|round|rust|sad|sand|silver|sky|skis|small|smoke|snow|sport|square|sun|sunny|surf"
    "|teeth|text|traffic|trash|vegetation|water|weather|wet|white|women|wood|yellow|young"
)
"""Names of classes that are no thing of which there is one: materials, qualities, several of something."""
HOUR: Final = 3600.0
DAY: Final = 24 * HOUR  # seconds


def escape_control(text: str) -> str:
    """Return a text with its control characters, except for line ends and tabs, as the escapes that Python writes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def parse_scalar(text: str) -> bool | int | float | str:
    """Parse an integer, a float, true or false; anything else stays a string."""
    stripped = text.strip()
    if stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(stripped)
    return text


def quote_formula(text: str) -> str:
    """Return the text of a CSV cell such that no spreadsheet takes it for a formula; plain numbers stay.

    What begins like a formula, or has apostrophes before that, gets an apostrophe in front, which makes it reversible.
    """
    return f"'{text}" if _FORMULA.match(text) else text


def quote_formulas(cells: Iterable[object]) -> list[object]:
    """Return the cells of a CSV row, the texts among them by ``quote_formula``; numbers and others as they are."""
    return [quote_formula(cell) if isinstance(cell, str) else cell for cell in cells]


def unquote_formula(text: str) -> str:
    """Return the text that ``quote_formula`` made a cell of."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def fold_name(name: str) -> str:
    """Return what the spellings of a name have in common that a person takes for one.

    They differ in case, blanks, Unicode's forms of a letter, or characters that nobody sees.

    Example:
        >>> {fold_name(name) for name in ("Fire truck", "FIRE  truck ", "fire\\u00a0tru\\u200dck", "fire truck\\ufe0f")}
        {'fire truck'}
    """
    normal = unicodedata.normalize("NFKC", _UNSEEN.sub("", name))
    return " ".join(unicodedata.normalize("NFKC", normal.casefold()).split())


def indefinite_article(name: str) -> str:
    """Return the article and the blank that English has before the name of a class; empty where it has none.

    Example:
        >>> names = "person", "aeroplane", "unicycle", "hourglass", "X-ray", "8", "skis", "snow", "running", "red"
        >>> print(", ".join(indefinite_article(name) + name for name in names))
        a person, an aeroplane, a unicycle, an hourglass, an X-ray, an 8, skis, snow, running, red
    """
    words = re.split(r"[\s_-]+", name)
    last = words[-1].casefold()
    several = re.search("[^isu]s$", last) or (last.endswith("ing") and not _ONE_THING.fullmatch(last))
    if not re.fullmatch(r"[A-Za-z][A-Za-z' _-]*|[0-9]+", name) or several or _NOT_COUNTED.fullmatch(last):
        return ""
    return "an " if _SPOKEN_AS_VOWEL.match(words[0].upper() if len(words[0]) == 1 else words[0].casefold()) else "a "


def plural(noun: str) -> str:
    """Return the plural of a noun."""
    return f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"


def pluralize(count: int, noun: str, several: str | None = None) -> str:
    """Return a number and its noun, in the plural where needed; ``several`` is the plural where it is no -s or -es."""
    return f"{count:,} {noun if count == 1 else several or plural(noun)}"


def join_names(names: Sequence[str], most: int = 20) -> str:
    """Return names separated by commas, at most so many."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def join_numbers(value: Any) -> str:
    """Return the value of a method's option as the commands take it: several numbers with commas."""
    return ",".join(f"{each:g}" for each in value) if isinstance(value, list | tuple) else str(value)


def format_duration(seconds: float) -> str:
    """Return a duration as rounded text: "15 s", "21 min", "2.2 h", "5 days"."""
    if seconds < 57.5:
        return f"{max(5 * math.ceil(seconds / 5), 5)} s"
    if seconds < 1.5 * HOUR:
        return f"{max(round(seconds / 60), 1)} min"
    return f"{seconds / HOUR:.1f} h" if seconds < 2 * DAY else f"{seconds / DAY:,.0f} days"


def html_facts(kind: str, facts: Iterable[tuple[str, str]], rest: str = "") -> str:
    """Return names and texts as a small HTML table for a notebook; both are escaped."""
    cells = "".join(
        f'<tr><th style="text-align:left;padding:2px 12px 2px 0">{escape(name)}</th>'
        f'<td style="text-align:left;padding:2px 0">{escape(text)}</td></tr>'
        for name, text in facts
    )
    return f'<div class="labelgap-{kind}"><table style="border-collapse:collapse">{cells}</table>{rest}</div>'


def format_option(name: str, value: str) -> str:
    """Return a command-line option, quoted for a shell."""
    return f"--{name} {shlex.quote(truncate_text(value))}"


def truncate_text(text: str, most: int = 60) -> str:
    """Return a text on one line of bounded length."""
    start = text[: 16 * most]  # a cell may have megabytes
    letters = " ".join(start.split())
    line = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in letters)
    return line if len(line) <= most and len(start) == len(text) else line[: most - 1] + "…"
