"""Our numbers of a paper's table beside the paper's, for the terminal and for the page."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from labelgap.reporting.formatting import NO_VALUE, format_learning_rate, format_options
from labelgap.reporting.tables.terminal import terminal_table
from labelgap.studies.reproduce import Reproduction, paper_tables
from labelgap.studies.reproduce.results import CellResult, format_images
from labelgap.studies.reproduce.tables import Cell, paper_images

REPRODUCTION_COLUMNS: Final = ("column", "ours", "±", "paper", "diff", "setting")
"""After the row's name; ± is the standard deviation over seeds."""


def reproduction_rows(reproduction: Reproduction, table: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the filled cells of a table: the name of the row, and texts under ``REPRODUCTION_COLUMNS``."""
    return [(cell.row.name, _cells(cell, result)) for cell, result in reproduction.results(table)]


def reproduction_notes(reproduction: Reproduction, table: str) -> list[str]:
    """Return what a reader of the numbers should know."""
    paper = paper_tables()[table]
    filled = reproduction.results(table)
    notes = [f"{len(filled)} of {len(paper.cells)} cells. {paper.paper}."]
    if paper.note:
        notes.append(paper.note)
    if reproduction.settings.changed:
        notes.append(f"Not as in the paper: {reproduction.settings.describe()}.")
    notes += dict.fromkeys(note for cell, result in filled if (note := _other_images(cell, result)))
    if any(result.deviation is None and cell.training.protocol != "linear-eval" for cell, result in filled):
        notes.append("One seed says nothing about the spread.")
    return notes


def reproduction_table(reproduction: Reproduction, table: str) -> Table:
    """Return the filled cells of a table for the terminal."""
    rows = [(label, cells, False, False) for label, cells in reproduction_rows(reproduction, table)]
    notes = reproduction_notes(reproduction, table)
    return terminal_table(f"{table}: {paper_tables()[table].title}", REPRODUCTION_COLUMNS, rows, notes)


def _cells(cell: Cell, result: CellResult) -> tuple[str, ...]:
    paper = difference = NO_VALUE
    if cell.published is not None:
        value = cell.published.value
        paper = f"{value:.1f}" if round(value, 1) == value and cell.column.metric != "epoch" else f"{value:g}"
        difference = f"{round(result.mean - value, 2) + 0.0:+.2f}"
    spread = NO_VALUE if result.deviation is None else f"{result.deviation:.2f}"
    return cell.column.name, f"{result.mean:.2f}", spread, paper, difference, _setting(cell, result)


def _other_images(cell: Cell, result: CellResult) -> str:
    """Return a note where the data have not as many images as in the paper."""
    expected = paper_images(cell.column.data, cell.training.preset)
    if not expected or expected == result.images:
        return ""
    found, printed = format_images(result.images), format_images(expected)
    return f"Other images than in the paper: {cell.column.data} has {found} here (train/val/test), {printed} there."


def _setting(cell: Cell, result: CellResult) -> str:
    """Return what val chose: rates, and the options that the paper searched."""
    options = {name: value for name, value in result.setting["options"].items() if name in cell.training.search}
    parts = [f"penalty {result.setting['penalty']:.2g}"] if "penalty" in result.setting else []
    parts += [f"lr {format_learning_rate(result.setting['lr'])}"] if "lr" in result.setting else []
    parts += [f"batch {result.setting['batch_size']}"] if "batch_size" in result.setting else []
    parts += [format_options(options)] if options else []
    parts += [] if result.known_absent is None else [f"{result.known_absent:,} known absent"]
    return ", ".join(parts)
