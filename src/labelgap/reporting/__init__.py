"""Figures, tables and the self-contained page of a run or a study."""

from labelgap.reporting.compare_table import compare_table
from labelgap.reporting.methods_page import methods_page
from labelgap.reporting.picture import study_picture
from labelgap.reporting.report import write_report
from labelgap.reporting.tables import study_rows, terminal_table

__all__ = ["compare_table", "methods_page", "study_picture", "study_rows", "terminal_table", "write_report"]
