"""HTML pages as single files: templates, and figures as inline SVG. A page loads no script, font or other file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from labelgap.reporting.formatting import single_line
from labelgap.reporting.style import NARROW, WIDE, inline_svg

__all__ = ["FigureRenderer", "ResponsiveFigure", "inline_code", "package_version", "render_template"]


@dataclass(frozen=True)
class ResponsiveFigure:
    """A figure drawn twice, for a wide and for a narrow screen; CSS shows the one that fits."""

    wide: Markup
    narrow: Markup


class FigureRenderer:
    """Renders the figures of one page; the ids inside every SVG get a prefix of its own."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def render(self, figure: Callable[[float], Figure], description: str) -> ResponsiveFigure:
        """Render a figure, made for a width in inches, for both screens; ``description`` is the alternative text."""
        number = next(self._numbers)
        wide = inline_svg(figure(WIDE), f"f{number}w", description)
        return ResponsiveFigure(wide, inline_svg(figure(NARROW), f"f{number}n", description))


def render_template(template: str, **values: Any) -> str:
    """Render a template of this package; values that are not ``Markup`` are escaped."""
    return _environment().get_template(template).render(version=package_version(), **values)


def inline_code(text: str) -> Markup:
    """Return escaped text in which the parts between backticks are code.

    Example:
        >>> inline_code("like `an` & more")
        Markup('like <code>an</code> &amp; more')
    """
    parts = (
        Markup("<code>{}</code>").format(part) if odd % 2 else escape(part) for odd, part in enumerate(text.split("`"))
    )
    return Markup("").join(parts)


def package_version() -> str:
    """Return the installed version of labelgap."""
    try:
        return version("labelgap")
    except PackageNotFoundError:
        return "from source"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"single_line": single_line, "code": inline_code}
    return environment
