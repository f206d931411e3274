"""Consoles of rich for text that other people wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from labelgap.core.text import escape_control


class _EscapingConsole(Console):
    """A console that escapes the control characters in what it renders; its own colors and cursor movements stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of a renderable, escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_control(segment.text))


def make_console(*, stderr: bool = False, **options: Any) -> Console:
    r"""Return a console that shows text as it is: control characters escaped, no markup, no emoji, no highlighting.

    Args:
        stderr: write to standard error.
        options: further arguments of ``rich.console.Console``.

    Example:
        >>> make_console(width=40).print("[red]\x1b[2J")
        [red]\x1b[2J
    """
    return _EscapingConsole(stderr=stderr, **{"markup": False, "emoji": False, "highlight": False, **options})
