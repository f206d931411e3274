"""The table of methods on shares of the training images, for the terminal and for the page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from labelgap.reporting.analysis.label_budget import LabelBudget, label_budget
from labelgap.reporting.formatting import NO_VALUE
from labelgap.reporting.tables.terminal import terminal_table
from labelgap.studies.shares import ShareComparison


def share_columns(found: ShareComparison) -> tuple[str, ...]:
    """Return the headers, after the method: the shares."""
    return tuple(f"{100 * share:g} %" for share in sorted({point.share for point in found.points}))


def share_rows(found: ShareComparison) -> list[tuple[str, tuple[str, ...], bool]]:
    """Return the name of every method, its mean with every share, and whether it saw more labels than the others."""
    shares = sorted({point.share for point in found.points})
    return [
        (name, tuple(_cell(budget, share) for share in shares), budget.extra_labels)
        for name, budget in label_budget(found).items()
    ]


def share_notes(found: ShareComparison) -> list[str]:
    """Return the notes under the table."""
    seeds = len({point.seed for point in found.points})
    notes = [f"{found.metric.name or 'Nothing could be measured'} by the share of the training images"]
    notes[0] += f", ± the standard deviation over {seeds} seeds." if seeds > 1 else ", one seed."
    if found.metric.reason:
        notes.append(f"{found.metric.reason[:1].upper()}{found.metric.reason[1:]}.")
    if extra := [name for name, _, more in share_rows(found) if more]:
        notes.append(f"Below the line: {', '.join(extra)}, which saw labels that were hidden from the others.")
    return notes


def share_table(found: ShareComparison) -> Table:
    """Return the table for the terminal."""
    rows = [(name, cells, False, extra) for name, cells, extra in share_rows(found)]
    return terminal_table(f"Fewer training images of {found.data}", share_columns(found), rows, share_notes(found))


def _cell(budget: LabelBudget, share: float) -> str:
    values: NDArray[np.float64] = budget.value[budget.share == share].ravel()
    known = 100 * values[np.isfinite(values)]
    if not len(known):
        return NO_VALUE
    return f"{known.mean():.1f}" + (f" ± {known.std(ddof=1):.1f}" if len(known) > 1 else "")
