"""Reports: the HTML page of a run, a study or a comparison, its figures and tables, and the model card of a run."""

from labelgap.inference.localization import PointingGame, pointing_game
from labelgap.reporting.analysis.activation_maps import ActivationExample, activation_examples
from labelgap.reporting.analysis.class_table import ClassTable, class_table
from labelgap.reporting.analysis.epoch_scores import EpochScores, epoch_scores
from labelgap.reporting.analysis.gradients import BatchContext, GradientRegimes, example_context, gradient_regimes
from labelgap.reporting.analysis.label_budget import LabelBudget, label_budget
from labelgap.reporting.analysis.label_changes import LabelChanges, label_changes
from labelgap.reporting.analysis.label_scores import LabelScores, label_scores
from labelgap.reporting.analysis.memorization import label_losses
from labelgap.reporting.analysis.modified_labels import modified_labels_from_run
from labelgap.reporting.analysis.parameter_effects import ParameterEffect, parameter_effects
from labelgap.reporting.analysis.partial_evidence import PartialEvidence, partial_evidence
from labelgap.reporting.analysis.separability import (
    ClassSeparability,
    UnknownPositives,
    class_separability,
    count_unknown_positives,
    separability_from_trace,
)
from labelgap.reporting.figures.activation_maps import activation_figure, pointing_figure
from labelgap.reporting.figures.calibration import calibration_figure
from labelgap.reporting.figures.curves import epoch_scores_figure, label_budget_figure, parameter_effect_figure
from labelgap.reporting.figures.gradients import gradient_comparison_figure, gradient_figure
from labelgap.reporting.figures.label_changes import label_change_figure
from labelgap.reporting.figures.label_scores import absolute_logit_panels, positive_loss_figure, probability_panels
from labelgap.reporting.figures.separability import score_density_figure, unknown_positive_bars
from labelgap.reporting.figures.study import study_figure
from labelgap.reporting.pages.methods import methods_markdown
from labelgap.reporting.report import write_report
from labelgap.reporting.tables.comparison import comparison_table
from labelgap.reporting.tables.reproduction import reproduction_table
from labelgap.reporting.tables.shares import share_table
from labelgap.reporting.tables.study import study_rows, study_table

__all__ = [
    "ActivationExample",
    "BatchContext",
    "ClassSeparability",
    "ClassTable",
    "EpochScores",
    "GradientRegimes",
    "LabelBudget",
    "LabelChanges",
    "LabelScores",
    "ParameterEffect",
    "PartialEvidence",
    "PointingGame",
    "UnknownPositives",
    "absolute_logit_panels",
    "activation_examples",
    "activation_figure",
    "calibration_figure",
    "class_separability",
    "class_table",
    "comparison_table",
    "count_unknown_positives",
    "epoch_scores",
    "epoch_scores_figure",
    "example_context",
    "gradient_comparison_figure",
    "gradient_figure",
    "gradient_regimes",
    "label_budget",
    "label_budget_figure",
    "label_change_figure",
    "label_changes",
    "label_losses",
    "label_scores",
    "methods_markdown",
    "modified_labels_from_run",
    "parameter_effect_figure",
    "parameter_effects",
    "partial_evidence",
    "pointing_figure",
    "pointing_game",
    "positive_loss_figure",
    "probability_panels",
    "reproduction_table",
    "score_density_figure",
    "separability_from_trace",
    "share_table",
    "study_figure",
    "study_rows",
    "study_table",
    "unknown_positive_bars",
    "write_report",
]
