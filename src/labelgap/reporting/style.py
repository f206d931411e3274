"""The style of figures: colors, axes, panels, legends, and their conversion to SVG.

The colors are Okabe and Ito's; lines also differ in marker or dash. In a page every color is a CSS variable of its
theme.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from labelgap.reporting.formatting import single_line, truncate_label

TEXT_COLOR: Final = "#1d2129"
MUTED_COLOR: Final = "#68707c"
GRID_COLOR: Final = "#dfe2e7"
BACKGROUND_COLOR: Final = "#fdfefe"
BLUE: Final = "#0072b2"
VERMILLION: Final = "#d55e00"
GREEN: Final = "#009e73"
PURPLE: Final = "#a3568c"
ORANGE: Final = "#b87a00"
SKY: Final = "#2d94cf"
COLOR_CYCLE: Final = ((BLUE, "o"), (VERMILLION, "s"), (GREEN, "^"), (PURPLE, "D"), (ORANGE, "v"), (SKY, "P"))
"""A color and a marker for each of several methods."""
CSS_VARIABLES: Final = {
    **{TEXT_COLOR: "currentColor", MUTED_COLOR: "var(--faint)", GRID_COLOR: "var(--grid)"},
    **{BACKGROUND_COLOR: "var(--paper)", BLUE: "var(--blue)", VERMILLION: "var(--vermillion)", GREEN: "var(--green)"},
    **{PURPLE: "var(--purple)", ORANGE: "var(--orange)", SKY: "var(--sky)"},
}
WIDE: Final = 10.0  # width of a figure on a desktop, in inches of 72 CSS pixels
NARROW: Final = 5.0  # and on a phone
DASHED: Final = (0, (4, 3))
_SIZE: Final = 12
T = TypeVar("T")


def make_figure(
    rows: int = 1, columns: int = 1, *, width: float = WIDE, height: float = 3.0
) -> tuple[Figure, list[Axes]]:
    """Return a styled figure, its size in inches, and the axes of its panels, row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04, wspace=0.05, hspace=0.07)  # type: ignore[union-attr,call-arg]
    figure.patch.set_alpha(0)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in panels:  # without the frame and ticks that carry no information
        axis.patch.set_alpha(0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.spines["bottom"].set_color(MUTED_COLOR)
        axis.grid(True, axis="y", color=GRID_COLOR, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.tick_params(colors=MUTED_COLOR, labelcolor=MUTED_COLOR, labelsize=_SIZE - 1, length=0, pad=6)
        for label in (axis.xaxis.label, axis.yaxis.label):
            label.set(color=MUTED_COLOR, fontsize=_SIZE - 1)
        axis.set_title("", loc="left", fontsize=_SIZE, color=TEXT_COLOR)
    return figure, panels


def make_panels(
    count: int, *, width: float, each: float, extra: float = 0.0, wide: int | None = None, narrow: int = 1
) -> tuple[Figure, list[Axes], int]:
    """Return a figure of so many panels, their axes, and how many are side by side: at most ``wide``, or ``narrow``."""
    columns = max(min(count, narrow if width <= NARROW else wide or count), 1)
    rows = max(-(-count // columns), 1)
    figure, axes = make_figure(rows, columns, width=width, height=each * rows + extra)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count], columns


def set_epoch_axis(axis: Axes, epochs: int, first: int = 1) -> None:
    """Label the x axis with epochs, counted from 1, or from 0."""
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    margin = max(0.3, 0.03 * epochs)
    axis.set_xlim(first - margin, max(epochs, 1) + margin)


def label_panels(axes: Sequence[Axes], columns: int, x: str, y: str = "", titles: Iterable[str] = ()) -> None:
    """Name the x axis of the lowest panels and the y axis of the leftmost ones; titles are bold."""
    for place, axis in enumerate(axes):
        axis.set_xlabel(x if place + columns >= len(axes) else "")
        axis.set_ylabel(y if place % columns == 0 else "")
    for axis, title in zip(axes, titles, strict=False):
        axis.set_title(truncate_label(title, 24), loc="left", fontweight="bold", parse_math=False)


def set_top(axis: Axes, top: float) -> None:
    """Let the y axis go from zero to just above the highest value."""
    axis.set_ylim(0, 1.06 * top if top > 0 else 1.0)


def fit_names(names: Iterable[str], width: float, wide: int = 24, narrow: int = 16) -> list[str]:
    """Truncate names beside an axis to so many letters on a desktop, and on a phone."""
    return [truncate_label(name, wide if width > NARROW else narrow) for name in names]


def set_rows(axis: Axes, places: Sequence[float] | NDArray[Any], names: Sequence[str], size: int = _SIZE - 1) -> None:
    """Label the y axis with the names of rows, from the top down."""
    axis.set_yticks(places, names, parse_math=False)
    axis.tick_params(axis="y", labelcolor=TEXT_COLOR, labelsize=size)
    axis.set_ylim((places[-1] if len(places) else 0) + 0.6, -0.6)


def swap_grid(axis: Axes) -> None:
    """Draw the grid of the x axis in place of that of the y axis, for rows."""
    axis.grid(False)
    axis.grid(True, axis="x", color=GRID_COLOR, linewidth=0.8)


def outermost(order: Sequence[T], most: int) -> list[T]:
    """Return the first and the last of an order, ``most`` together, or all if there are not more."""
    half = most // 2
    return list(order) if len(order) <= most else [*order[:half], *order[-half:]]


def set_class_rows(axis: Axes, names: Sequence[str], counted: int) -> NDArray[np.float64]:
    """Label the rows with the outermost of so many classes, from the top down, and return their places."""
    places = np.arange(len(names), dtype=np.float64)
    if len(names) < counted:
        half = len(names) // 2
        places[half:] += 1
        axis.text(0, half, f"… {counted - len(names):,} more classes between …", va="center", color=MUTED_COLOR)
    set_rows(axis, places, names)
    return places


def draw_bars(
    axis: Axes, places: NDArray[np.float64], values: Sequence[float], color: str, top: float, end: float
) -> None:
    """Draw a bar for each class up to ``top`` at the most, and its value at the end of the row."""
    axis.barh(places, values, height=0.66, color=color)
    look: Any = {"va": "center", "ha": "right", "color": MUTED_COLOR, "fontsize": 11, "in_layout": False}
    for place, value in zip(places, values, strict=True):
        axis.text(end - 0.01 * top, place, f"{value:.1f}", **look)
    axis.set_xlim(0, end)
    swap_grid(axis)
    axis.spines["bottom"].set_visible(False)


def draw_line(axis: Axes, x: ArrayLike, y: ArrayLike, color: str, marker: str = "o", **style: Any) -> Line2D:
    """Draw a line whose markers are set apart from it."""
    style = {"linewidth": 2, "markeredgecolor": BACKGROUND_COLOR, **style}
    (line,) = axis.plot(x, y, color=color, marker=marker, **style)
    return line


def cycle(number: int) -> tuple[str, str]:
    """Return color and marker of one of several methods."""
    return COLOR_CYCLE[number % len(COLOR_CYCLE)]


def curve_style(number: int) -> tuple[str, str, Any]:
    """Return color, marker and dash of one of many curves; the second six are dashed."""
    return *cycle(number), "-" if number % (2 * len(COLOR_CYCLE)) < len(COLOR_CYCLE) else (0, (2, 1.5))


def draw_spread(
    axis: Axes, places: NDArray[Any], table: NDArray[np.float64], color: str, marker: str, dash: Any, label: str = ""
) -> None:
    """Draw the means over the columns of a table, with their standard deviation where there are several."""
    known = np.isfinite(table).any(axis=1)
    places, table = places[known], table[known]
    counts, means = np.isfinite(table).sum(axis=1), np.nanmean(table, axis=1)
    spread = np.sqrt(np.nansum((table - means[:, None]) ** 2, axis=1) / np.maximum(counts - 1, 1))
    if (counts > 1).any():
        axis.vlines(places, means - spread, means + spread, color=color, linewidth=1.4, alpha=0.8)
    draw_line(axis, places, means, color, marker, markersize=7, linewidth=1.8, linestyle=dash, label=label or None)


def draw_value(axis: Axes, text: str, x: float, y: float, *, offset: float = 9, color: str = TEXT_COLOR) -> None:
    """Write a value to the right of its mark, so many points from it."""
    axis.annotate(text, (x, y), (offset, 0), textcoords="offset points", va="center", color=color, fontsize=_SIZE - 1)


def add_legend(figure: Figure, columns: int | None = None, lines: Sequence[Line2D] = ()) -> None:
    """Put a legend above the panels, of lines or of all that have a label; by default in up to four columns."""
    drawn = (line for axis in figure.axes for line in axis.lines)
    shown = lines or [line for line in drawn if not str(line.get_label()).startswith("_child")]
    legend = figure.legend(
        shown,
        [str(line.get_label()) for line in shown],
        loc="outside upper left",
        ncols=columns or (1 if figure.get_figwidth() <= NARROW else max(min(len(shown), 4), 1)),
        frameon=False,
        fontsize=_SIZE,
        labelcolor=TEXT_COLOR,
        handlelength=1.8,
        borderaxespad=0,
        borderpad=0.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def inline_svg(figure: Figure, prefix: str, description: str) -> Markup:
    """Return a figure as SVG with the fonts and color variables of the page; ``prefix`` makes its ids unique."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's fonts have it
        FigureCanvasSVG(figure)
        figure.dpi = 72
        for axis in (side for axes in figure.axes for side in (axes.xaxis, axes.yaxis) if not side.label.get_text()):
            axis.set_label_coords(0, 0)  # or it measures all ticks, to place the label that it does not have
        figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
        figure.set_layout_engine(None)  # ``savefig`` would draw everything for it, twice
        figure.savefig(buffer, format="svg", dpi=72, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag.rpartition("}")[2] in ("metadata", "style")]:
            parent.remove(child)
    for element in root.iter():
        _simplify(element, prefix)
    for name in ("version", "height"):
        root.attrib.pop(name, None)
    root.set("width", root.get("viewBox", "0 0 720 0").split()[2])
    root.set("role", "img")
    root.set("aria-label", single_line(description))
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _simplify(element: ElementTree.Element, prefix: str) -> None:
    """Remove namespaces, prefix the ids that are referred to, and replace colors by variables."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    element.attrib.clear()
    for name, value in attributes.items():
        if name == "id":
            if element.tag == "g":
                continue
            value = f"{prefix}-{value}"
        elif name in ("href", "clip-path"):
            value = value.replace("#", f"#{prefix}-", 1)
        elif name == "style":
            value = _themed(value)
        element.set(name, value)


def _themed(style: str) -> str:
    declarations = []
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":
            declarations += [f"font-size: {part}" for part in value.split() if part.endswith("px")]
            declarations += [f"font-weight: {part}" for part in value.split() if part in ("bold", "600", "700")]
        elif name and name != "font-family":
            declarations.append(f"{name}: {CSS_VARIABLES.get(value, value)}")
    return "; ".join(declarations)
