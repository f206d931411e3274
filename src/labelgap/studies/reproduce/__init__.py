"""Reproduce the tables of the papers: our numbers beside theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names

if TYPE_CHECKING:
    from labelgap.studies.reproduce.results import Reproduction
    from labelgap.studies.reproduce.runner import reproduce
    from labelgap.studies.reproduce.tables import paper_tables

__all__ = ["Reproduction", "paper_tables", "reproduce"]

__getattr__ = lazy_names(__name__, "results", "runner", "tables")
