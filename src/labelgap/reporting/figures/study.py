"""A study in one picture, for a README or a talk."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from labelgap.core.errors import RunError
from labelgap.reporting.figures.run import (
    draw_memorization,
    draw_method_map,
    memorization_legend,
    set_memorization_limits,
)
from labelgap.reporting.memorization import Memorization, memorization_by_label
from labelgap.reporting.style import TEXT_COLOR, add_legend, style_axes, truncate_label
from labelgap.reporting.tables.study import study_rows
from labelgap.studies import Study

__all__ = ["study_figure"]


def study_figure(study: Study) -> Figure:
    """Draw what became of the missing labels, a panel for each method, and below it what that came to on the test.

    Save it with ``study_figure(study).savefig("demo.png", dpi=200)``; the background is white.
    """
    rows = study_rows(study)
    panels = memorization_by_label({member.label: run for member, run in study.runs if not member.extra_labels})
    methods = {row.label: row.map for row in rows if not row.extra_labels}
    ceilings = {row.label: row.map for row in rows if row.extra_labels}
    if not panels and all(value is None for value in [*methods.values(), *ceilings.values()]):
        raise RunError(f"{study.path} holds nothing to draw: no traces with known truth, and no test mAP.")
    longest = max(len(truncate_label(label)) for label in methods) if methods else 0
    left, right = 0.05 + 0.0115 * max(longest, 3), 0.965
    above, below = (4.3 if panels else 0.7), 1.15 + 0.38 * len(methods)
    height = above + below
    figure = Figure(figsize=(10, height), facecolor="white")
    figure.text(
        0.03,
        1 - 0.3 / height,
        truncate_label(study.title, 80),
        va="top",
        fontsize=17,
        fontweight="bold",
        color=TEXT_COLOR,
    )
    if panels:
        grid = figure.add_gridspec(
            1, len(panels), left=left, right=right, top=1 - 1.5 / height, bottom=(below + 0.5) / height, wspace=0.16
        )
        _draw_panels(figure, grid, panels)
        add_legend(figure, *memorization_legend(), columns=2, place=(0.022, 1 - 0.72 / height))
    grid = figure.add_gridspec(1, 1, left=left, right=right, top=(below - 0.5) / height, bottom=0.6 / height)
    axis = figure.add_subplot(grid[0])
    style_axes(axis)
    draw_method_map(axis, methods, ceilings, 28)
    return figure


def _draw_panels(figure: Figure, grid: GridSpec, panels: Mapping[str, Memorization]) -> None:
    """Draw a panel for each method."""
    for place, (label, values) in enumerate(panels.items()):
        axis = figure.add_subplot(grid[place])
        style_axes(axis)
        draw_memorization(axis, values)
        axis.set_title(
            truncate_label(label, 20), loc="left", color=TEXT_COLOR, fontsize=13, fontweight="bold", parse_math=False
        )
        axis.set_xlabel("epoch")
        axis.set_ylabel("mean training loss" if place == 0 else "")
    set_memorization_limits(figure.axes, panels.values(), len(panels))
