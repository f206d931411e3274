"""From a template and its words to one file that needs nothing else: no network, no script, no font."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from labelgap.reporting.style import NARROW, WIDE, inline_svg, single_line

__all__ = ["FigureRenderer", "ResponsiveFigure", "inline_code", "render_template"]


@dataclass(frozen=True)
class ResponsiveFigure:
    """A figure in a page, drawn twice: for a wide and for a narrow screen; the page shows the one that fits."""

    wide: Markup
    narrow: Markup


class FigureRenderer:
    """Makes the drawings of one page, each with ids of its own."""

    def __init__(self) -> None:
        self._made = 0

    def draw(self, figure: Callable[[float], Figure], description: str) -> ResponsiveFigure:
        """Draw a figure for both screens.

        Args:
            figure: from a width in inches to a figure.
            description: what a person who cannot see it should hear.
        """
        self._made += 1
        wide, narrow = (
            inline_svg(figure(width), f"f{self._made}{suffix}", description)
            for width, suffix in ((WIDE, "w"), (NARROW, "n"))
        )
        return ResponsiveFigure(wide, narrow)


def render_template(template: str, **words: Any) -> str:
    """Fill a template; whatever is not marked as safe is escaped."""
    return _templates().get_template(template).render(**words)


def inline_code(text: str) -> Markup:
    """Set what stands between backticks as code; everything is escaped.

    Example:
        >>> inline_code("like `an` & more")
        Markup('like <code>an</code> &amp; more')
    """
    parts = (
        Markup("<code>{}</code>").format(part) if odd % 2 else escape(part) for odd, part in enumerate(text.split("`"))
    )
    return Markup("").join(parts)


@lru_cache(maxsize=1)
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"plain": single_line, "code": inline_code}
    return made
