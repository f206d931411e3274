"""Methods on several data sets: the table with average ranks, what the tests find, the critical-difference figure."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from labelgap.core.text import join_names, pluralize
from labelgap.reporting import style
from labelgap.reporting.formatting import ResultTable
from labelgap.reporting.method_table import MethodCell, MethodColumn, MethodRow, MethodTable
from labelgap.reporting.page import REPORT_FILE, Page, render_template
from labelgap.studies.datasets import FEW, DatasetComparison, Ranking

TABLE: Final = "methods"
_MAX_METHODS: Final = 5


def dataset_method_table(found: DatasetComparison) -> MethodTable:
    """Return methods × data sets, the best average rank first; below the line those that are not ranked."""
    ranking, comparisons = found.ranking, found.comparisons
    ranks = dict(zip(ranking.methods, ranking.average.tolist(), strict=True))
    rows = []
    for name in sorted(found.rows, key=lambda name: ranks.get(name, np.inf)):
        cells = [MethodCell() if row is None else _cell(row.mean, row.deviation) for row in found.rows[name]]
        rows.append(MethodRow(name, [*cells, MethodCell(ranks.get(name))], name not in ranks))
    metrics = list(dict.fromkeys(each.metric.name for each in comparisons.values()))
    seeds = {len(row.seeds) for each in comparisons.values() for row in each.methods}
    notes = [f"{', '.join(metrics)} in percent{', as stated above its data set' if len(metrics) > 1 else ''}."]
    notes += [f"± is the standard deviation over {pluralize(max(seeds), 'seed')}."] if max(seeds, default=1) > 1 else []
    if below := [row.label for row in rows if row.apart]:
        notes.append(
            f"Not ranked, for more labels than the others saw, or no number on a data set: {', '.join(below)}."
        )
    columns = [MethodColumn(name, each.metric.name if len(metrics) > 1 else "") for name, each in comparisons.items()]
    title = f"{pluralize(len(rows), 'method')} on {pluralize(len(comparisons), 'data set')}"
    return MethodTable(TABLE, title, [*columns, MethodColumn("average rank", best="lowest")], rows, notes)


def dataset_table(found: DatasetComparison) -> ResultTable:
    """Return the table for the terminal."""
    return dataset_method_table(found).for_terminal()


def _cell(mean: float | None, deviation: float | None) -> MethodCell:
    return MethodCell(*(None if value is None else 100 * value for value in (mean, deviation)))


def ranking_findings(ranking: Ranking) -> list[str]:
    """Return what the tests find, and what they cannot."""
    if ranking.p_value is None:
        return ["Friedman's test needs three methods that are ranked, and two data sets."]
    test = f"Friedman's test: p = {ranking.p_value:.2g}" if ranking.p_value >= 1e-4 else "Friedman's test: p < 0.0001"
    said = [f"{test}, so no method can be called better than another."]
    if ranking.differ:
        best, far = ranking.methods[0], ranking.average > ranking.average[0] + ranking.critical_difference
        worse = [f"`{name}`" for name, behind in zip(ranking.methods, far, strict=True) if behind]
        better = f"`{best}` is better than {join_names(worse, _MAX_METHODS)}"
        none = f"none is behind `{best}` by more"
        said = [
            f"{test}: the methods differ. By Nemenyi's critical difference of {ranking.critical_difference:.2f} ranks "
            f"{better if worse else none}."
        ]
    if ranking.datasets < FEW:
        said.append(
            f"With {ranking.datasets} data sets the tests find large differences only; ten or more are advised."
        )
    return said


def critical_difference_figure(ranking: Ranking, *, width: float = style.WIDE) -> Figure:
    """Draw the average ranks of methods; a bar joins methods of which no two differ (Demšar 2006, figure 1)."""
    count, narrow = len(ranking.methods), width <= style.NARROW
    groups, half = ranking.groups, -(-count // 2)
    depth = 0.45 + 0.26 * len(groups)
    figure, (axis,) = style.make_figure(width=width, height=0.9 + 0.27 * (half + len(groups) + 2))
    low, high = 1, max(count, 2)
    space = (high - low) * (0.75 if narrow else 0.4)
    axis.set(xlim=(low - space, high + space), ylim=(-(depth + 0.45 * half), 1.35))
    axis.axis("off")
    look: dict[str, Any] = {"color": style.TEXT_COLOR, "linewidth": 1.1, "solid_capstyle": "butt"}
    text_style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "parse_math": False}
    text_style |= {"color": style.TEXT_COLOR, "fontsize": 11}
    axis.plot([low, high], [0, 0], **look)
    for tick in range(low, high + 1):
        axis.plot([tick, tick], [0, 0.12], **look)
        axis.text(tick, 0.2, f"{tick}", ha="center", va="bottom", color=style.MUTED_COLOR, fontsize=10)
    reach = min(ranking.critical_difference, high - low + space)
    axis.plot([low, low + reach], [0.8, 0.8], color=style.VERMILLION, linewidth=2.4, solid_capstyle="butt")
    text = f"critical difference {ranking.critical_difference:.2f}"
    axis.text(low, 0.88, text, va="bottom", color=style.VERMILLION, fontsize=11)
    for number, (first, last) in enumerate(groups):
        ends = [ranking.average[first] - 0.012 * (high - low), ranking.average[last] + 0.012 * (high - low)]
        axis.plot(ends, 2 * [-0.3 - 0.26 * number], color=style.BLUE, linewidth=4, solid_capstyle="butt")
    for number, name in enumerate(style.fit_names(ranking.methods, width, 24, 14)):
        rank, left = float(ranking.average[number]), number < half
        place = -(depth + 0.45 * (number if left else count - 1 - number))
        edge = low - 0.04 * space if left else high + 0.04 * space
        axis.plot([rank, rank, edge], [0, place, place], **look)
        label, side = (f"{name}  {rank:.2f}", "right") if left else (f"{rank:.2f}  {name}", "left")
        axis.annotate(label, (edge, place), (-5 if left else 5, 0), ha=side, **text_style)
    return figure


def datasets_page(found: DatasetComparison, page: Page) -> Markup:
    """Return the page."""
    ranking, figure = found.ranking, None
    if ranking.p_value is not None:
        columns = {"method": ranking.methods, "average_rank": ranking.average}
        shown = "; ".join(f"{name} {rank:.2f}" for name, rank in zip(ranking.methods, ranking.average, strict=True))
        text = f"Average ranks: {shown}. Critical difference {ranking.critical_difference:.2f}."
        figure = page.figure("critical-difference", text, columns, critical_difference_figure, ranking)
    return render_template(
        "pages/datasets.html",
        found=found,
        findings=ranking_findings(ranking),
        table=dataset_method_table(found),
        figure=figure,
        differ=ranking.differ,
        report=REPORT_FILE,
        skipped=[
            (f"{name}: {row.method}", row.reason) for name, each in found.comparisons.items() for row in each.skipped
        ],
        has_images=False,
    )
