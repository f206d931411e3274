"""A table for the terminal: rows of text with notes below, and a gap before the rows that saw more labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from labelgap.reporting.formatting import single_line

_LABEL_WIDTH: Final = 24
"""Characters of a label that are shown in the narrowest terminal."""


def terminal_table(
    title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str], bool, bool]], notes: Sequence[str]
) -> Table:
    """Return a table. Where the terminal is too narrow, headers and cells take two lines; labels stay whole.

    Args:
        title: above it.
        columns: headers, after the label.
        rows: label, cells, whether it is bold, and whether it saw more labels than the others: those come last.
        notes: below it.
    """
    table = Table(
        title=Text(single_line(title)),
        caption=Text("\n".join(notes)) if notes else None,
        title_justify="left",
        caption_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
        caption_style="dim",
        title_style="bold",
    )
    rows = list(rows)
    table.add_column("", no_wrap=True, min_width=min(_LABEL_WIDTH, max((len(row[0]) for row in rows), default=0)))
    for name in columns:
        table.add_column(Text(name), justify="right", overflow="fold")
    before = True
    for label, cells, bold, extra_labels in rows:
        if extra_labels and not before:
            table.add_row()
        before = extra_labels
        table.add_row(
            Text(single_line(label)), *map(Text, cells), style="dim" if extra_labels else "bold" if bold else ""
        )
    return table
