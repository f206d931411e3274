"""The values of the page of papers' tables, for ``reproduction.html``."""

from __future__ import annotations

from typing import Any

from labelgap.reporting.analysis.epoch_scores import EpochScores, scores_of_seeds
from labelgap.reporting.analysis.parameter_effects import val_score_name
from labelgap.reporting.formatting import single_line
from labelgap.reporting.html import FigureRenderer
from labelgap.reporting.pages.sections.curves import figure_name, render_epoch_scores
from labelgap.reporting.tables.reproduction import REPRODUCTION_COLUMNS, reproduction_notes, reproduction_rows
from labelgap.studies.reproduce import Reproduction, paper_tables


def reproduction_page(reproduction: Reproduction, figures: FigureRenderer) -> dict[str, Any]:
    """Return the values of the template."""
    return {
        "tables": [
            {
                "name": name,
                "title": paper_tables()[name].title,
                "rows": [
                    (single_line(label), [single_line(text) for text in cells])
                    for label, cells in reproduction_rows(reproduction, name)
                ],
                "notes": reproduction_notes(reproduction, name),
                "sources": _sources(reproduction, name),
                "curves": _curves(reproduction, name, figures),
            }
            for name in reproduction.tables
        ],
        "columns": REPRODUCTION_COLUMNS,
        "settings": reproduction.settings.describe(),
    }


def _sources(reproduction: Reproduction, table: str) -> str:
    found = (cell.published for cell, _ in reproduction.results(table))
    return "; ".join(dict.fromkeys(each.source for each in found if each is not None))


def _curves(reproduction: Reproduction, table: str, figures: FigureRenderer) -> list[dict[str, Any]]:
    """Return a figure of val after each epoch for every column in which two or more networks were scored."""
    columns: dict[str, dict[str, EpochScores]] = {}
    for cell, result in reproduction.results(table):
        column = f"{cell.training.protocol}:{cell.column.data}"
        tests = [value / 100 if cell.column.metric == "map" else None for value in result.values]
        found = scores_of_seeds(result.scores, result.epochs, tests, val_score_name(result.rule or "clean"))
        if found is not None and result.row not in columns.get(column, {}):
            columns.setdefault(column, {})[result.row] = found
    return [
        {"title": column, **render_epoch_scores(curves, figures, figure_name("epoch-scores", table, column))}
        for column, curves in columns.items()
        if len(curves) > 1
    ]
