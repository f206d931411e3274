r"""The first screen of a run's page: what was measured or, where the labels support no accuracy, what can be said, and
what a review of random images would give.

With :math:`n` random images labeled in full, the average precision of a class of prevalence :math:`\pi` has a variance
of at most about :math:`1 / (4 n \pi)` (that of a share, at its worst: Boyd, Eng & Page, ECML PKDD 2013), so that the
half-width of the 95 % interval of the mean over :math:`k` classes is, as an upper estimate,

.. math:: \frac{1.96}{k} \sqrt{\sum_{j=1}^k \frac{1}{4\, n\, \pi_j}}
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from labelgap.audit.candidates import FILE as CANDIDATES_FILE
from labelgap.audit.candidates import read_metadata
from labelgap.data.dataset import Dataset
from labelgap.metrics.validation import MIN_KNOWN_LABELS, expected_random_precision
from labelgap.reporting.formatting import chosen_by_val, format_class_count, format_measure
from labelgap.reporting.page import Page, render_template
from labelgap.reporting.sections.classes import ClassTable, evidence_split
from labelgap.training import Run
from labelgap.training.history import describe_estimated, describe_kept_epoch, has_accuracy, has_estimate, unseen_splits
from labelgap.training.rerun import RANDOM_IMAGES, review_split, run_audit_commands, run_review_commands

_NORMAL: Final = 1.959964
_SPLITS: Final = {
    "test": "test",
    "val": "val (used to select {chosen})",
    "train": "train (against the labels hidden from training)",
}
_MEASURES: Final = ("map", "chance", "map_samples", "f1_micro", "f1_macro")


def partial_evidence(run: Run, data: Dataset | None, table: ClassTable) -> dict[str, Any]:
    """Return what can be said of a finished run without an accuracy, and what a review of random images would give."""
    splits = [name for name in unseen_splits(run.metrics) if has_estimate(run.metrics[name])]
    drawn = None if data is None else review_split(data)
    images = RANDOM_IMAGES if drawn is None else min(RANDOM_IMAGES, len(drawn))
    prevalence = table.prevalence  # the estimated one, else the known presents alone: the least that it can be
    if np.isnan(prevalence).all() and drawn is not None:
        prevalence = drawn.labels.counts().present / max(len(drawn), 1)
    counted = prevalence[np.nan_to_num(prevalence) * images >= MIN_KNOWN_LABELS]
    audit = run.path / CANDIDATES_FILE
    missing = (read_metadata(audit)["estimate"] if audit.is_file() else None) or {"missing": None, "range": None}
    return {
        "estimate": run.metrics[splits[0]] if splits else None,
        "ranking": _observed_ranking(run, data),
        "known": None if data is None else data.train.labels.counts().total,
        "missing": missing["missing"],
        "missing_range": missing["range"],
        "review_images": images,
        "available_images": None if drawn is None else len(drawn),
        "half_width": expected_half_width(counted, images) if len(counted) else None,
        "review_classes": len(counted),
        "images_for_point": images_for_half_width(counted, 0.01) if len(counted) else None,
    }


def expected_half_width(prevalence: NDArray[np.float64], images: int) -> float:
    """Return the half-width of the interval of the mAP that random images labeled in full would give, at its worst."""
    return _NORMAL / len(prevalence) * float(np.sqrt((1 / (4 * images * prevalence)).sum()))


def images_for_half_width(prevalence: NDArray[np.float64], half_width: float) -> int:
    """Return how many random images give such an interval, rounded up to two digits."""
    exact = (expected_half_width(prevalence, 1) / half_width) ** 2
    unit: int = 10 ** max(len(str(int(exact))) - 2, 0)
    return math.ceil(exact / unit) * unit


def _observed_ranking(run: Run, data: Dataset | None) -> dict[str, float | None] | None:
    """Return how high the known presents of val rank if every unknown label counts as absent; it is no accuracy."""
    scores = [record["score"] for record in run.history if record.get("score") is not None]
    kept = run.metrics.get("score")
    if run.config.select != "observed" or not scores or kept is None:
        return None
    random = None
    if data is not None and data.val is not None:
        present = data.val.labels.counts().present
        ranked = present[(present > 0) & (present < len(data.val))]
        random = float(expected_random_precision(ranked, len(data.val) - ranked).mean()) if len(ranked) else None
    return {"first": scores[0], "kept": kept, "random": random}


def summary_section(run: Run, table: ClassTable, page: Page) -> Markup:
    """Return tiles, what is measured or can be said, and the commands to know more."""
    metrics, config, accurate, data = run.metrics, run.config, has_accuracy(run.metrics), page.data
    measured = {split: metrics[split] for split in _SPLITS if metrics.get(split) is not None}
    complete = data is not None and all(each.labels.complete for each in data.splits)
    split = evidence_split(metrics)
    evidence = partial_evidence(run, data, table) if run.finished and not accurate else None
    estimates = {name: describe_estimated(each) for name, each in measured.items()}
    kept = run.finished and (not metrics["best_epoch"] or metrics.get("divergences"))
    return render_template(
        "sections/summary.html",
        run=run,
        heading=unseen_splits(metrics).get(split, ""),
        shown=measured.get(split) if accurate else None,
        evidence=evidence,
        estimate=None if evidence is None or evidence["estimate"] is None else describe_estimated(evidence["estimate"]),
        complete=complete,
        kept=describe_kept_epoch(metrics) if kept else "",  # the linear head was kept, or the training diverged
        tested="test" in measured,
        chosen=chosen_by_val(config.select),
        measures=_measures(measured, config.folds, config.select),
        unsupported=[name for name, values in measured.items() if values["map"] is None],
        estimated={name: text for name, text in estimates.items() if text and measured[name]["map"] is not None},
        audit_commands=() if evidence is None else run_audit_commands(run.path, config, data, share=True),
        review_commands=() if accurate else run_review_commands(run.path, config, data, share=True),
    )


def _measures(measured: dict[str, dict[str, Any]], folds: int, rule: str) -> list[tuple[str, list[Any]]]:
    """Return a row for every split with a number."""
    rows = []
    for split, values in measured.items():
        if values["map"] is not None:
            name = "out-of-fold" if folds and split == "train" else _SPLITS[split].format(chosen=chosen_by_val(rule))
            counted = format_class_count(values["classes_counted"], values["classes"])
            rows.append((name, [*(format_measure(values.get(key)) for key in _MEASURES), counted, values["images"]]))
    return rows
