"""A study in one picture, for a README or a talk."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from labelgap.core.errors import RunError
from labelgap.reporting.figures import draw_comparison, draw_memorisation, fit_memorisation, memorisation_key
from labelgap.reporting.look import INK, dress, key, shorten
from labelgap.reporting.memorisation import Memorisation
from labelgap.reporting.study_page import memorised
from labelgap.reporting.tables import study_rows
from labelgap.studies import Study

__all__ = ["study_picture"]


def study_picture(study: Study) -> Figure:
    """Draw what became of the missing labels, a panel for each method, and below it what that came to on the test.

    Save it with ``study_picture(study).savefig("demo.png", dpi=200)``; the background is white.
    """
    rows = study_rows(study)
    panels = memorised([(member, run) for member, run in study.runs if not member.ceiling])
    methods = {row.label: row.map for row in rows if not row.ceiling}
    ceilings = {row.label: row.map for row in rows if row.ceiling}
    if not panels and all(value is None for value in [*methods.values(), *ceilings.values()]):
        raise RunError(f"{study.path} holds nothing to draw: no traces with known truth, and no test mAP.")
    longest = max(len(shorten(label)) for label in methods) if methods else 0
    left, right = 0.05 + 0.0115 * max(longest, 3), 0.965
    above, below = (4.3 if panels else 0.7), 1.15 + 0.38 * len(methods)
    height = above + below
    figure = Figure(figsize=(10, height), facecolor="white")
    figure.text(0.03, 1 - 0.3 / height, shorten(study.title, 80), va="top", fontsize=17, fontweight="bold", color=INK)
    if panels:
        grid = figure.add_gridspec(
            1, len(panels), left=left, right=right, top=1 - 1.5 / height, bottom=(below + 0.5) / height, wspace=0.16
        )
        _draw_panels(figure, grid, panels)
        key(figure, *memorisation_key(), columns=2, place=(0.022, 1 - 0.72 / height))
    grid = figure.add_gridspec(1, 1, left=left, right=right, top=(below - 0.5) / height, bottom=0.6 / height)
    axis = figure.add_subplot(grid[0])
    dress(axis)
    draw_comparison(axis, methods, ceilings, 28)
    return figure


def _draw_panels(figure: Figure, grid: GridSpec, panels: Mapping[str, Memorisation]) -> None:
    """Draw a panel for each method."""
    for place, (label, values) in enumerate(panels.items()):
        axis = figure.add_subplot(grid[place])
        dress(axis)
        draw_memorisation(axis, values)
        axis.set_title(shorten(label, 20), loc="left", color=INK, fontsize=13, fontweight="bold", parse_math=False)
        axis.set_xlabel("epoch")
        axis.set_ylabel("mean training loss" if place == 0 else "")
    fit_memorisation(figure.axes, panels.values(), len(panels))
