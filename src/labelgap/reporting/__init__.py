"""Reports: the HTML page of a run, a study or a comparison, its figures and tables, and the model card of a run."""

from labelgap.reporting.figures.gradients import gradient_comparison_figure, gradient_figure
from labelgap.reporting.figures.study import study_figure
from labelgap.reporting.gradients import BatchContext, GradientRegimes, example_context, gradient_regimes
from labelgap.reporting.memorization import label_losses
from labelgap.reporting.modified_labels import modified_labels_from_run
from labelgap.reporting.pages.methods import methods_markdown
from labelgap.reporting.report import write_report
from labelgap.reporting.tables.comparison import comparison_table
from labelgap.reporting.tables.reproduction import reproduction_table
from labelgap.reporting.tables.study import study_rows, study_table

__all__ = [
    "BatchContext",
    "GradientRegimes",
    "comparison_table",
    "example_context",
    "gradient_comparison_figure",
    "gradient_figure",
    "gradient_regimes",
    "label_losses",
    "methods_markdown",
    "modified_labels_from_run",
    "reproduction_table",
    "study_figure",
    "study_rows",
    "study_table",
    "write_report",
]
