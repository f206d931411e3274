"""What can be said of scores against labels: only what the known labels support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.labels.codes import UNKNOWN
from labelgap.metrics import Thresholds, average_precision, f1, precision, recall
from labelgap.metrics.bootstrap import MIN_KNOWN_LABELS, bootstrap_intervals

__all__ = ["evaluate_in_full", "evaluate_scores", "match_classes", "probabilities"]

_NAMED = 10


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sigmoid of logits."""
    values: NDArray[np.float32] = expit(logits.astype(np.float64)).astype(np.float32)
    return values


def evaluate_scores(logits: NDArray[np.float32], labels: LabelTable, thresholds: Thresholds) -> dict[str, Any]:
    """Measure logits against what is known of the labels.

    A class counts only if it has a known present and a known absent; ``classes_counted`` says how many do. A number
    that no class supports is None.

    Args:
        logits: ``(N, K)``
        labels: the truth where known, else what was observed.
        thresholds: per class. F1 is an honest estimate where they were chosen on other images; that of val, which
            chose them, is a little too good.
    """
    codes = labels.to_dense()
    counts = labels.counts()
    both = (counts.present > 0) & (counts.absent > 0)
    chance = probabilities(logits)
    value, counted = average_precision(logits, codes, return_counted=True)
    samples, images_counted = average_precision(logits, codes, average="samples", return_counted=True)
    supported = np.where(both[None, :], codes, UNKNOWN).astype(np.int8)
    each = average_precision(logits, codes, average=None)
    result: dict[str, Any] = {
        "images": len(labels),
        "classes": len(labels.classes),
        "classes_counted": int(counted),
        "map": float(value) if counted else None,
        "map_samples": float(samples) if images_counted else None,
        "images_counted": int(images_counted),
    }
    averages: tuple[Literal["micro", "macro"], ...] = ("micro", "macro")
    for average in averages:
        for name, threshold in ((f"f1_{average}", thresholds.values), (f"f1_{average}_at_half", 0.5)):
            result[name] = float(f1(chance, supported, threshold=threshold, average=average)) if counted else None
    result["average_precision"] = {
        name: float(each[column]) if both[column] else None for column, name in enumerate(labels.classes)
    }
    return result


def evaluate_in_full(
    logits: NDArray[np.float32], labels: LabelTable, thresholds: Thresholds, *, resamples: int = 1000
) -> dict[str, Any]:
    """Measure as ``evaluate_scores`` does, with 95 % intervals and a row for every class.

    Args:
        logits: ``(N, K)``
        labels: the truth where known, else what was observed.
        thresholds: per class.
        resamples: of the bootstrap over images; 0 for no intervals.

    Returns:
        What ``evaluate_scores`` returns, and ``intervals`` (level, resamples, and low and high of map, map_samples,
        f1_micro, f1_macro; None where the labels support none), and ``per_class``: name, present, absent, unknown,
        average_precision and its interval, threshold, mark, precision, recall, f1, and ``why`` there is no number.
    """
    chance = probabilities(logits)
    decisions = chance >= thresholds.values.astype(np.float32)
    ranges: Sequence[tuple[float, float] | None] = [None] * len(labels.classes)
    means: dict[str, Any] | None = None
    if resamples and len(labels):
        found = bootstrap_intervals(logits, labels, decisions, resamples=resamples)
        ranges = found.average_precision
        names = ("map", "map_samples", "f1_micro", "f1_macro")
        means = {"level": found.level, "resamples": found.resamples, **{name: getattr(found, name) for name in names}}
    result = evaluate_scores(logits, labels, thresholds)
    rows = _rows(chance, labels, thresholds, ranges)
    for row in rows:
        row["average_precision"] = result["average_precision"][row["name"]]
    return {**result, "intervals": means, "per_class": rows}


def _rows(
    chance: NDArray[np.float32],
    labels: LabelTable,
    thresholds: Thresholds,
    ranges: Sequence[tuple[float, float] | None],
) -> list[dict[str, Any]]:
    """Return what can be said of each class's decisions."""
    codes, counts = labels.to_dense(), labels.counts()
    measured = {
        name: measure(chance, codes, thresholds.values, average=None)
        for name, measure in (("precision", precision), ("recall", recall), ("f1", f1))
    }
    rows: list[dict[str, Any]] = []
    for column, name in enumerate(labels.classes):
        present, absent = int(counts.present[column]), int(counts.absent[column])
        both = present > 0 and absent > 0
        row = {"name": name, "present": present, "absent": absent, "unknown": int(counts.unknown[column])}
        row |= {key: float(values[column]) if both else None for key, values in measured.items()}
        row |= {"interval": ranges[column], "threshold": float(thresholds.values[column])}
        rows.append({**row, "mark": thresholds.marks[column], "why": _why(present, absent)})
    return rows


def _why(present: int, absent: int) -> str | None:
    """Say why a class has no number, or no interval."""
    if not present or not absent:
        lacking = "label" if not present and not absent else "present" if not present else "absent"
        return f"no known {lacking}: nothing can be measured"
    return (
        f"fewer than {MIN_KNOWN_LABELS} known of a state: no interval"
        if min(present, absent) < MIN_KNOWN_LABELS
        else None
    )


def match_classes(
    tables: Sequence[LabelTable], classes: Sequence[str]
) -> tuple[LabelTable, tuple[str, ...], tuple[str, ...]]:
    """Lay labels out in the order of a run's classes, by name, one table below the other.

    Args:
        tables: of the same classes each, in whatever order.
        classes: the run's.

    Returns:
        The labels, images numbered; the run's classes that the tables do not have, unknown everywhere; and the tables'
        classes that the run does not know, which are left out.

    Raises:
        InputError: no class is in both.

    Example:
        >>> labels = LabelTable.from_dense([[1, 0, 1]], classes=["owl", "cat", "eel"])
        >>> found, missing, extra = match_classes([labels], ["cat", "dog", "owl"])
        >>> found.to_dense(), missing, extra
        (array([[ 0, -1,  1]], dtype=int8), ('dog',), ('eel',))
    """
    given = tables[0].classes
    place = {name: column for column, name in enumerate(classes)}
    missing = tuple(name for name in classes if name not in given)
    if len(missing) == len(classes):
        raise InputError(
            f"no class of the run is in these data. The run knows {_listed(classes)}; the data have {_listed(given)}. "
            "--rename old=new gives a class of the data another name."
        )
    target = np.array([place.get(name, 0) for name in given], dtype=np.int64)
    shared = np.array([name in place for name in given])
    starts = np.cumsum([0, *map(len, tables)])
    rows = np.concatenate([table.rows + start for table, start in zip(tables, starts, strict=False)])
    columns = np.concatenate([table.columns for table in tables])
    values = np.concatenate([table.values for table in tables])
    kept = shared[columns]
    found = LabelTable.from_entries(rows[kept], target[columns[kept]], values[kept], classes, int(starts[-1]))
    return found, missing, tuple(name for name in given if name not in place)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
