"""Our numbers of papers' tables beside the papers': the page, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from markupsafe import Markup

from labelgap.core.text import pluralize
from labelgap.reporting.formatting import (
    NO_VALUE,
    ResultTable,
    format_learning_rate,
    format_number,
    format_options,
    val_score_name,
)
from labelgap.reporting.method_table import MethodCell, MethodColumn, MethodRow, MethodTable
from labelgap.reporting.page import Page, render_template
from labelgap.reporting.sections.curves import EpochScores, render_epoch_scores, scores_of_seeds
from labelgap.reporting.sections.parameter_effects import figure_name
from labelgap.studies.reproduce import Reproduction, paper_tables
from labelgap.studies.reproduce.results import CellResult, format_images
from labelgap.studies.reproduce.tables import EVALUATIONS, Cell, Column, paper_images

_COLUMNS: Final = ("column", "ours", "±", "paper", "diff", "setting")


def paper_table(reproduction: Reproduction, name: str) -> MethodTable:
    """Return a table as its paper prints it: the rows and columns in which a cell is filled, ours beside theirs."""
    paper, filled = paper_tables()[name], dict(reproduction.results(name))
    columns = list(dict.fromkeys(cell.column for cell in filled))
    rows = dict[str, list[MethodCell]]()
    for label in dict.fromkeys(cell.row.name for cell in paper.cells if cell in filled):
        cells = {cell.column: cell for cell in paper.cells if cell.row.name == label}
        rows[label] = [_method_cell(cells.get(column), filled) for column in columns]
    more = {cell.row.name for cell in filled if cell.training.extra_labels}
    seeds = max((len(result.values) for result in filled.values()), default=1)
    notes = [f"± is the standard deviation over {pluralize(seeds, 'seed')}."] if seeds > 1 else []
    if above := [label for label in rows if label in more]:
        notes.append(f"Below the line, as they see more labels than the others: {', '.join(above)}.")
    return MethodTable(
        name,
        f"{name}: {paper.title}",
        [_method_column(column) for column in columns],
        [
            MethodRow(label, cells, label in more)
            for label, cells in sorted(rows.items(), key=lambda row: row[0] in more)
        ],
        [*_notes(reproduction, name), *notes],
    )


def _method_column(column: Column) -> MethodColumn:
    name = column.data if column.metric == "map" else f"{column.data} {column.metric}"
    return MethodColumn(name, column.protocol, "" if column.metric == "epoch" else "highest")


def _method_cell(cell: Cell | None, filled: Mapping[Cell, CellResult]) -> MethodCell:
    published = None if cell is None or cell.published is None else cell.published.value
    result = None if cell is None else filled.get(cell)
    return MethodCell(None, None, published) if result is None else MethodCell(result.mean, result.deviation, published)


def _notes(reproduction: Reproduction, name: str) -> list[str]:
    paper, filled = paper_tables()[name], reproduction.results(name)
    notes = [f"{len(filled)} of {len(paper.cells)} cells. {paper.paper}."]
    if paper.note:
        notes.append(paper.note)
    if reproduction.settings.changed:
        notes.append(f"Not as in the paper: {reproduction.settings.describe()}.")
    expected = [(paper_images(cell.column.data, cell.training.preset), cell, result) for cell, result in filled]
    notes += dict.fromkeys(
        f"Other images than in the paper: {cell.column.data} has {format_images(result.images)} here (train/val/test), "
        f"{format_images(images)} there."
        for images, cell, result in expected
        if images and images != result.images
    )
    if any(result.deviation is None and cell.training.protocol not in EVALUATIONS for cell, result in filled):
        notes.append("One seed says nothing about the spread.")
    return notes


def reproduction_table(reproduction: Reproduction, table: str) -> ResultTable:
    """Return the filled cells of a table for the terminal."""
    return paper_table(reproduction, table).for_terminal()


def _cells(cell: Cell, result: CellResult) -> tuple[str, ...]:
    paper, difference = _method_cell(cell, {}).theirs or NO_VALUE, NO_VALUE
    if cell.published is not None:
        difference = f"{round(result.mean - cell.published.value, 2) + 0.0:+.2f}"
    ours, setting = (f"{result.mean:.2f}", format_number(result.deviation)), result.setting
    options = {name: value for name, value in setting["options"].items() if name in cell.training.search}
    parts = [f"penalty {setting['penalty']:.2g}"] if "penalty" in setting else []
    parts += [f"lr {format_learning_rate(setting['lr'])}"] if "lr" in setting else []
    parts += [f"batch {setting['batch_size']}"] if "batch_size" in setting else []
    parts += [format_options(options)] if options else []
    parts += [] if result.known_absent is None else [f"{result.known_absent:,} known absent"]
    return cell.column.name, *ours, paper, difference, ", ".join(parts)


def reproduction_page(reproduction: Reproduction, page: Page) -> Markup:
    """Return the page."""
    tables = []
    for name in reproduction.tables:
        published = (cell.published for cell, _ in reproduction.results(name))
        sources = "; ".join(dict.fromkeys(each.source for each in published if each is not None))
        settings = [(cell.row.name, _cells(cell, result)) for cell, result in reproduction.results(name)]
        tables.append((paper_table(reproduction, name), settings, sources, _curves(reproduction, name, page)))
    made = reproduction.settings.describe()
    return render_template("pages/reproduction.html", tables=tables, columns=_COLUMNS, made=made, has_images=False)


def _curves(reproduction: Reproduction, table: str, page: Page) -> list[Markup]:
    """Return the figure of val after each epoch for every column in which two or more networks were scored."""
    columns: dict[str, dict[str, EpochScores]] = {}
    for cell, result in reproduction.results(table):
        column = f"{cell.training.protocol}:{cell.column.data}"
        tests = [value / 100 if cell.column.metric == "map" else None for value in result.values]
        found = scores_of_seeds(result.scores, result.epochs, tests, val_score_name(result.rule or "clean"))
        if found is not None and result.row not in columns.get(column, {}):
            columns.setdefault(column, {})[result.row] = found
    return [
        render_epoch_scores(curves, page, figure_name("epoch-scores", table, name), f"{name}, epoch by epoch", level=3)
        for name, curves in columns.items()
        if len(curves) > 1
    ]
