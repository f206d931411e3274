"""Reports: the HTML page of a run, a study or a comparison, its figures and tables, and the model card of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names

if TYPE_CHECKING:
    from labelgap.inference.localization import PointingGame, pointing_game
    from labelgap.reporting.descriptions import methods_markdown
    from labelgap.reporting.gradients import (
        BatchContext,
        GradientRegimes,
        example_context,
        gradient_comparison_figure,
        gradient_figure,
        gradient_regimes,
    )
    from labelgap.reporting.pages.comparison import comparison_table
    from labelgap.reporting.pages.datasets import critical_difference_figure, dataset_method_table, dataset_table
    from labelgap.reporting.pages.reproduction import paper_table, reproduction_table
    from labelgap.reporting.pages.shares import LabelBudget, label_budget, label_budget_figure, share_table
    from labelgap.reporting.pages.study import study_table
    from labelgap.reporting.report import write_report
    from labelgap.reporting.sections.calibration import calibration_figure
    from labelgap.reporting.sections.classes import ClassTable, class_table
    from labelgap.reporting.sections.curves import EpochScores, epoch_scores, epoch_scores_figure
    from labelgap.reporting.sections.label_changes import LabelChanges, label_change_figure, label_changes
    from labelgap.reporting.sections.label_scores import (
        LabelScores,
        absolute_logit_panels,
        label_scores,
        positive_loss_figure,
        probability_panels,
    )
    from labelgap.reporting.sections.localization import (
        ActivationExample,
        activation_examples,
        activation_figure,
        pointing_figure,
    )
    from labelgap.reporting.sections.memorization import label_losses
    from labelgap.reporting.sections.modified_labels import modified_labels_from_run
    from labelgap.reporting.sections.parameter_effects import (
        ParameterEffect,
        parameter_effect_figure,
        parameter_effects,
    )
    from labelgap.reporting.sections.separability import (
        ClassSeparability,
        class_separability,
        score_density_figure,
        separability_from_trace,
        unknown_positive_bars,
    )

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
    "PointingGame",
    "absolute_logit_panels",
    "activation_examples",
    "activation_figure",
    "calibration_figure",
    "class_separability",
    "class_table",
    "comparison_table",
    "critical_difference_figure",
    "dataset_method_table",
    "dataset_table",
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
    "paper_table",
    "parameter_effect_figure",
    "parameter_effects",
    "pointing_figure",
    "pointing_game",
    "positive_loss_figure",
    "probability_panels",
    "reproduction_table",
    "score_density_figure",
    "separability_from_trace",
    "share_table",
    "study_table",
    "unknown_positive_bars",
    "write_report",
]

_PAGES = ("comparison", "datasets", "reproduction", "shares", "study")
_SECTIONS = (
    *("calibration", "classes", "curves", "label_changes", "label_scores", "localization", "memorization"),
    *("modified_labels", "parameter_effects", "separability"),
)
__getattr__ = lazy_names(
    __name__,
    *("descriptions", "report", "gradients"),
    *(f"pages.{name}" for name in _PAGES),
    *(f"sections.{name}" for name in _SECTIONS),
)
