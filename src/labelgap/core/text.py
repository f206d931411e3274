"""Parts of messages: counts, options, long names cut short, control characters escaped."""

from __future__ import annotations

import re
import shlex
from typing import Final

__all__ = ["escape_control", "format_option", "plural", "pluralize", "truncate_text"]

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it, except for line ends and tabs: C0 and C1, line and paragraph separators,
marks and overrides of the direction of writing; and half characters, which no encoding has."""


def escape_control(text: str) -> str:
    r"""Return a text with its control characters written as escapes, as Python writes them.

    Line ends and tabs stay.

    Example:
        >>> print(escape_control("cat\x1b[2J, \u202egod"))
        cat\x1b[2J, \u202egod
    """
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plural(noun: str) -> str:
    """Return the plural of a noun.

    Example:
        >>> plural("tag"), plural("class")
        ('tags', 'classes')
    """
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def pluralize(count: int, noun: str) -> str:
    """Return a number and its noun, in the plural where needed.

    Example:
        >>> pluralize(1, "label"), pluralize(2_000, "label")
        ('1 label', '2,000 labels')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def format_option(name: str, value: str) -> str:
    """Return a command-line option, quoted for a shell.

    Example:
        >>> format_option("ignore-columns", "Image width")
        "--ignore-columns 'Image width'"
    """
    return f"--{name} {shlex.quote(truncate_text(value))}"


def truncate_text(text: str, most: int = 60) -> str:
    """Return a text on one line of bounded length."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))
    return text if len(text) <= most else text[: most - 1] + "…"
