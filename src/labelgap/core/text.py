"""Parts of messages: counts, options, long names cut short."""

from __future__ import annotations

import shlex

__all__ = ["format_option", "plural", "pluralize", "truncate_text"]


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
