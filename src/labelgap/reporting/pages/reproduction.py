"""The values of the page of papers' tables, for ``reproduction.html``."""

from __future__ import annotations

from typing import Any

from labelgap.reporting.formatting import single_line
from labelgap.reporting.tables.reproduction import REPRODUCTION_COLUMNS, reproduction_notes, reproduction_rows
from labelgap.studies.reproduce import Reproduction, paper_tables

__all__ = ["reproduction_page"]


def reproduction_page(reproduction: Reproduction) -> dict[str, Any]:
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
            }
            for name in reproduction.tables
        ],
        "columns": REPRODUCTION_COLUMNS,
        "settings": reproduction.settings.describe(),
    }


def _sources(reproduction: Reproduction, table: str) -> str:
    found = (cell.published for cell, _ in reproduction.results(table))
    return "; ".join(dict.fromkeys(each.source for each in found if each is not None))
