"""What a run has in the end: the measures of its best epoch, predictions, trace, and the summary."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from scipy.special import expit

from labelgap.core.distributed import is_main_process
from labelgap.labels.class_groups import group_numbers
from labelgap.metrics import Thresholds, choose_thresholds, revision_quality
from labelgap.metrics.calibration import fit_platt_calibration
from labelgap.training.checkpoint import report_saved_epochs
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.history import write_history
from labelgap.training.loop.trace import merge_trace
from labelgap.training.loop.trainer import TrainingContext, should_stop
from labelgap.training.predictions import write_predictions
from labelgap.training.protocols import PhaseResult
from labelgap.training.run_folder import finish_folder
from labelgap.training.search import Search


def write_results(context: TrainingContext, result: PhaseResult, search: Search | None = None) -> None:
    """Measure the best epoch, and write predictions, trace and summary; nothing where no epoch is complete.

    With a cross-validation the training images are measured as well, by their out-of-fold scores.
    """
    data, config, state = context.data, context.config, result.state
    if not state.epoch:
        return
    unseen = None if search is None else search.logits
    measured = [
        split for split in data.splits if split.name != "train" or split.truth is not None or unseen is not None
    ]
    logits = {split.name: result.logits(split.name) for split in measured if split.name != "train" or unseen is None}
    if unseen is not None:
        logits["train"] = unseen
    chosen_on, backbone = data.val if unseen is None else data.train, context.network.backbone
    cuts, calibration = Thresholds.default(len(data.classes)), None
    if chosen_on is not None:
        cuts = choose_thresholds(expit(logits[chosen_on.name]), chosen_on.labels.to_dense())
        calibration = fit_platt_calibration(logits[chosen_on.name], chosen_on.labels)
    summary: dict[str, Any] = {
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "divergences": state.divergences,
        "interrupted": state.epoch < config.epochs and not should_stop(state, config.stop_below),
        "seconds": sum(record["seconds"] for record in state.history) + result.seconds_before,
        "select": config.select,
        "score": state.best_score,
        "weights": {"source": backbone.source, "license": backbone.license, "size": backbone.input_spec.size},
        "calibration": calibration,
        "thresholds": {"values": cuts.values.tolist(), "marks": list(cuts.marks)},
    }
    summary["class_groups"] = groups = group_numbers(data.train.labels)
    for split in measured:
        summary[split.name] = evaluate_scores(logits[split.name], split.evaluation_labels, cuts, groups=groups)
    truth = data.train.truth
    if len(result.revisions) and truth is not None:
        summary["revisions"] = asdict(revision_quality(data.train.labels, truth, result.revisions))
    if not is_main_process():
        return
    if search is not None:
        compared = list(search.compared)
        if unseen is None:
            summary["search"] = {"compared": compared}
        else:
            summary["cross_validation"] = {"folds": config.folds, "compared": compared}
    scored = [split for split in measured if split.name != "train" or unseen is not None]
    held_out = {split.name: (split.labels.images, logits[split.name]) for split in scored}
    with report_saved_epochs(context.folder):
        write_predictions(context.folder, held_out, config.classes)
        merge_trace(context.folder)
        write_history(context.folder, state.history, summary)
        finish_folder(context.folder, interrupted=summary["interrupted"])
