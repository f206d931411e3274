"""What sources of a prior were worth to a training: how often "present at p" is present, and what each adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from labelgap.reporting import style
from labelgap.reporting.formatting import format_measure
from labelgap.reporting.page import Page, render_template, stack_columns
from labelgap.training import Run


def reliability_figure(sources: Sequence[dict[str, Any]], *, width: float = style.WIDE) -> Figure:
    """Draw the share of present labels against what each source says of them, in the mean of ten bins."""
    figure, (axis,), columns = style.make_panels(1, width=width, each=3.0, extra=0.6)
    axis.plot([0, 100], [0, 100], color=style.MUTED_COLOR, linewidth=1, linestyle=style.DASHED)
    for source in sources:
        points = np.array([(said, share) for count, said, share in source["curve"] if count])
        axis.plot(*(100 * points.T), marker="o", markersize=5, label=source["source"])
    axis.set(xlim=(-2, 102), ylim=(-2, 102), xlabel="what the source says, in percent", ylabel="present, in percent")
    style.add_legend(figure, columns)
    return figure


def prior_section(run: Run, page: Page) -> Markup:
    """Return the section; nothing for a run without a prior."""
    record = run.metrics.get("prior")
    if record is None or not record["sources"]:
        return Markup("")
    sources = record["sources"]
    rows = []
    for each in sources:
        counted = sum(slope > 0 for slope in each["slopes"])
        cells = [each["labels"], each["called"], format_measure(each["right"]), each["added"]]
        worth = f"{np.mean(each['slopes']):.2f}" if counted else "says nothing" if record["calibrated"] else "–"
        rows.append((each["source"], [*cells, worth, f"{counted} of {len(each['slopes'])}"]))
    names = ("labels", "said", "present")
    columns = {each["source"]: np.array(each["curve"], dtype=float).T for each in sources}
    curves = {source: dict(zip(names, values, strict=True)) for source, values in columns.items()}
    description = "The share of present labels against what a source says; its numbers are below."
    figure = None
    if record["calibrated"]:
        figure = page.figure("prior", description, stack_columns("source", curves), reliability_figure, sources)
    scores = [format_measure(record[name]) for name in ("score", "score_without")]
    return render_template("sections/prior.html", figure=figure, rows=rows, record=record, scores=scores)
