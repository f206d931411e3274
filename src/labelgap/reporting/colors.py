"""The colors of figures.

They are Okabe and Ito's, which people with any color vision can distinguish; lines also differ in marker or dash. In a
page every color is a CSS variable, so a figure follows the reader's light or dark theme.
"""

from __future__ import annotations

from typing import Final

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
    TEXT_COLOR: "currentColor",
    MUTED_COLOR: "var(--faint)",
    GRID_COLOR: "var(--grid)",
    BACKGROUND_COLOR: "var(--paper)",
    BLUE: "var(--blue)",
    VERMILLION: "var(--vermillion)",
    GREEN: "var(--green)",
    PURPLE: "var(--purple)",
    ORANGE: "var(--orange)",
    SKY: "var(--sky)",
}
