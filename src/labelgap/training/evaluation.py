"""Measures of logits against labels: only those that the known labels support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.special import expit
from labelgap.core.text import join_names
from labelgap.labels import LabelTable
from labelgap.metrics import Thresholds, average_precision, corrected_average_precision, f1, precision, recall
from labelgap.metrics.bootstrap import bootstrap_intervals
from labelgap.metrics.thresholds import MIN_PRESENT
from labelgap.metrics.validation import MIN_KNOWN_LABELS, expected_random_precision
from labelgap.training.history import has_estimate
from labelgap.training.selection import measurable, measurable_labels

_NAMED = 10


def evaluate_scores(
    logits: NDArray[np.float32], labels: LabelTable, thresholds: Thresholds, *, groups: Sequence[int] | None = None
) -> dict[str, Any]:
    """Measure logits against the known labels.

    A class counts only if its known labels support an accuracy (``supports_accuracy``); ``classes_counted`` is the
    number of those. A measure that no class supports is None. ``chance`` is the mAP of random scores on these labels.
    ``map_estimated`` is the mAP over all images that ``corrected_average_precision`` estimates, with the mAP of random
    scores in ``chance_estimated`` and the number of classes with at least five known presents in
    ``classes_estimated``; None where every label is known, or less than three quarters of the way from chance to 1.
    ``estimated`` has the estimate and the prevalence of each of these classes.

    ``labels`` are the truth where known, else the observed labels. F1 is unbiased where the ``thresholds`` were chosen
    on other images; on val, which chose them, it is a little too high. ``groups`` has the number of the group of every
    class; that of the result has then a row for each group.
    """
    counts, both, scores = labels.counts(), measurable(labels), expit(logits)
    supported = measurable_labels(labels).to_dense()
    each, counted = average_precision(logits, supported, average=None, return_counted=True)
    samples, images_counted = average_precision(logits, supported, average="samples", return_counted=True)
    chance = expected_random_precision(counts.present[both], counts.absent[both])
    result: dict[str, Any] = {
        "images": len(labels),
        "classes": len(labels.classes),
        "classes_counted": int(counted),
        "map": float(each[~np.isnan(each)].mean()) if counted else None,
        "chance": float(chance.mean()) if counted else None,
        "known_absent": int(counts.absent.sum()),
        **_estimated(logits, labels),
        "map_samples": float(samples) if images_counted else None,
        "images_counted": int(images_counted),
    }
    averages: tuple[Literal["micro", "macro"], ...] = ("micro", "macro")
    for average in averages:
        for name, threshold in ((f"f1_{average}", thresholds.values), (f"f1_{average}_at_half", 0.5)):
            result[name] = float(f1(scores, supported, threshold=threshold, average=average)) if counted else None
    result["average_precision"] = {
        name: float(each[column]) if both[column] else None for column, name in enumerate(labels.classes)
    }
    if groups is not None:
        result["groups"] = _measure_groups(each, labels, groups)
    return result


def _measure_groups(
    average_precision: NDArray[np.float64], labels: LabelTable, groups: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the mAP of every group of classes, with the known labels of the classes that it is over."""
    counts, numbers = labels.counts(), np.asarray(groups)
    rows: list[dict[str, Any]] = []
    for number in range(1, int(numbers.max()) + 1):
        counted = (numbers == number) & ~np.isnan(average_precision)
        classes = {"group": number, "classes": int((numbers == number).sum()), "classes_counted": int(counted.sum())}
        mean = float(average_precision[counted].mean()) if counted.any() else None
        present, absent = int(counts.present[counted].sum()), int(counts.absent[counted].sum())
        rows.append({**classes, "map": mean, "present": present, "absent": absent})
    return rows


def evaluate_in_full(
    logits: NDArray[np.float32],
    labels: LabelTable,
    thresholds: Thresholds,
    *,
    resamples: int = 1000,
    groups: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the measures of ``evaluate_scores``, with 95 % intervals and a row for every class (``per_class``).

    ``intervals`` has (low, high) of map, map_samples, f1_micro, f1_macro, None where the labels support none.
    """
    scores = expit(logits)
    decisions = scores >= thresholds.values.astype(np.float32)
    intervals: Sequence[tuple[float, float] | None] = [None] * len(labels.classes)
    means: dict[str, Any] | None = None
    if resamples and len(labels):
        found = bootstrap_intervals(logits, measurable_labels(labels), decisions, resamples=resamples)
        intervals = found.average_precision
        names = ("map", "map_samples", "f1_micro", "f1_macro")
        means = {"level": found.level, "resamples": found.resamples, **{name: getattr(found, name) for name in names}}
    result = evaluate_scores(logits, labels, thresholds, groups=groups)
    codes, counts, supported = labels.to_dense(), labels.counts(), measurable(labels).tolist()
    measured = {
        name: measure(scores, codes, thresholds.values, average=None)
        for name, measure in (("precision", precision), ("recall", recall), ("f1", f1))
    }
    rows: list[dict[str, Any]] = []
    for column, name in enumerate(labels.classes):
        present, absent = int(counts.present[column]), int(counts.absent[column])
        row = {"name": name, "present": present, "absent": absent, "unknown": int(counts.unknown[column])}
        row |= {key: float(values[column]) if supported[column] else None for key, values in measured.items()}
        row |= {"interval": intervals[column], "threshold": float(thresholds.values[column])}
        row |= {"mark": thresholds.marks[column], "why": _why(present, absent, supported[column])}
        rows.append({**row, "average_precision": result["average_precision"][name]})
    return {**result, "intervals": means, "per_class": rows}


def _estimated(logits: NDArray[np.float32], labels: LabelTable) -> dict[str, Any]:
    """Return the estimated mAP over all images, where labels are unknown and scores rank better than at random."""
    counts = labels.counts()
    enough = np.flatnonzero(counts.present >= MIN_PRESENT)
    found = {"map_estimated": None, "chance_estimated": None, "classes_estimated": 0, "estimated": dict[str, Any]()}
    if labels.complete or not enough.size:
        return found
    estimate = corrected_average_precision(logits, labels)
    values, chance = estimate.values[enough], estimate.chance[enough]
    rows = {labels.classes[column]: row for column, *row in zip(enough, values.tolist(), chance.tolist(), strict=True)}
    supported = dict(zip(found, (float(values.mean()), float(chance.mean()), len(enough), rows), strict=True))
    return supported if has_estimate(supported) else found


def _why(present: int, absent: int, supported: bool) -> str | None:
    if not present or not absent:
        lacking = "label" if not present and not absent else "present" if not present else "absent"
        return f"no known {lacking}: nothing can be measured"
    if not supported:
        chance = 100 * float(expected_random_precision(np.array([present]), np.array([absent]))[0])
        return f"{absent:,} known absent beside {present:,} present: random scores would reach {chance:.0f}"
    few = min(present, absent) < MIN_KNOWN_LABELS
    return f"fewer than {MIN_KNOWN_LABELS} known of a state: no interval" if few else None


def match_classes(
    tables: Sequence[LabelTable], classes: Sequence[str]
) -> tuple[LabelTable, tuple[str, ...], tuple[str, ...]]:
    """Concatenate tables, with their columns in the order of a run's classes, matched by name.

    Then follow the classes of the run that the tables lack, and those of the tables that the run lacks.
    """
    given = tables[0].classes
    missing = tuple(name for name in classes if name not in given)
    if len(missing) == len(classes):
        known, named = join_names(classes, _NAMED), join_names(given, _NAMED)
        raise InputError(
            f"no class of the run is in these data. The run knows {known}; the data have {named}. "
            "--rename old=new gives a class of the data another name."
        )
    found = LabelTable.concatenate([table.with_classes(classes) for table in tables], keep_names=False)
    return found, missing, tuple(name for name in given if name not in classes)
