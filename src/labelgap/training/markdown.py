"""The little Markdown that a card needs, with names that people made up kept from being read as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["escape_markdown", "join_escaped_names", "markdown_table"]


def escape_markdown(name: str) -> str:
    r"""Return a name on one line that looks in Markdown, also in a table, as it was written.

    Example:
        >>> print(escape_markdown("a|b *c*"))
        a\|b \*c\*
    """
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())
    return re.sub(r"([\\`*_\[\]<>|~$])", r"\\\1", line.replace("&", "&amp;"))


def join_escaped_names(names: Sequence[str], most: int = 20) -> str:
    """Return names in a row, the first of many.

    Example:
        >>> join_escaped_names(["cat", "dog", "owl"], 2)
        'cat, dog and 1 more'
    """
    shown = ", ".join(map(escape_markdown, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> list[str]:
    """Return the lines of a table: the first column at the left, the others at the right where they are numbers."""
    rule = ["---", *["---:" if numbers else "---"] * (len(columns) - 1)]
    return [f"| {' | '.join(line)} |" for line in (columns, rule, *rows)]
