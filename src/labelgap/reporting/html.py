"""HTML pages as single files: templates, and figures as inline SVG. A page loads no script, font or other file;
the one script that it may contain, which sorts tables, is allowed by its hash."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from labelgap.reporting.figure_data import Columns, FigureData
from labelgap.reporting.formatting import single_line
from labelgap.reporting.style import NARROW, WIDE, inline_svg

_TEMPLATES: Final = Path(__file__).parent / "templates"
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, eq=False)
class ResponsiveFigure:
    """A figure of a page, drawn for a wide and for a narrow screen; CSS shows the one that fits.

    Attributes:
        wide: its SVG for a desktop.
        narrow: its SVG for a phone.
        name: of its files, unique in the page.
        description: the alternative text.
        data: the numbers behind it.
        draw: makes the figure for a width in inches.
    """

    wide: Markup
    narrow: Markup
    name: str
    description: str
    data: FigureData
    draw: Callable[[float], Figure]


class FigureRenderer:
    """Renders the figures of one page, and keeps them, so that they can be written as files too.

    The ids inside every SVG get a prefix of their own.
    """

    def __init__(self) -> None:
        self._figures: dict[str, ResponsiveFigure] = {}

    @property
    def figures(self) -> list[ResponsiveFigure]:
        """The figures in the order of the page."""
        return list(self._figures.values())

    def render(
        self, figure: Callable[[float], Figure], description: str, *, name: str, data: Columns
    ) -> ResponsiveFigure:
        """Render a figure for both screens.

        Args:
            figure: makes the figure for a width in inches.
            description: the alternative text.
            name: of its files, unique in the page: lower-case words with hyphens, such as ``learning-curves``.
            data: the numbers behind it: columns of equal length, one row per point, named as in a CSV file. Shares
                are 0 to 1, also where the figure shows percent; None or NaN is an empty cell.
        """
        return self._add(figure, description, name, data, shown=True)

    def keep(self, figure: Callable[[float], Figure], description: str, *, name: str, data: Columns) -> None:
        """Keep a figure for its files, where the page shows the same by other means."""
        self._add(figure, description, name, data, shown=False)

    def _add(
        self, figure: Callable[[float], Figure], description: str, name: str, data: Columns, *, shown: bool
    ) -> ResponsiveFigure:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a figure is named by lower-case words with hyphens, not {name!r}")
        if name in self._figures:
            raise ValueError(f"the page already has a figure {name!r}: its files would overwrite each other")
        table = FigureData(data)
        wide, narrow = Markup(""), Markup("")
        if shown:
            wide, narrow = both_screens(figure, f"f{len(self._figures) + 1}", description)
        self._figures[name] = ResponsiveFigure(wide, narrow, name, description, table, figure)
        return self._figures[name]


def both_screens(figure: Callable[[float], Figure], prefix: str, description: str) -> tuple[Markup, Markup]:
    """Draw a figure for a wide and for a narrow screen; ids begin with ``prefix``."""
    wide, narrow = figure(WIDE), figure(NARROW)
    return inline_svg(wide, f"{prefix}w", description), inline_svg(narrow, f"{prefix}n", description)


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
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_TEMPLATES / "sortable_tables.js").read_text(encoding="utf-8")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    environment.globals |= {"sortable_script": Markup(script), "script_hash": f"sha256-{digest}"}
    environment.filters |= {"single_line": single_line, "code": inline_code}
    return environment
