"""Reproduce the tables of the papers: our numbers beside theirs."""

from labelgap.studies.reproduce.results import Reproduction
from labelgap.studies.reproduce.runner import reproduce
from labelgap.studies.reproduce.tables import paper_tables

__all__ = ["Reproduction", "paper_tables", "reproduce"]
