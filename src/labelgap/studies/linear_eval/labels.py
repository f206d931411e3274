"""The labels of a linear evaluation: one class number for each image, or a state for each class."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset, Split
from labelgap.labels import PRESENT, LabelTable
from labelgap.metrics import average_precision
from labelgap.training.selection import choose_selection, measurable_labels

Task = Literal["single-label", "multi-label"]
TASKS: Final = ("auto", "single-label", "multi-label")


class EvaluationLabels(NamedTuple):
    """Labels that classifiers are scored with.

    Attributes:
        labels: ``(N,)`` class numbers or ``(N, K)`` codes.
        rows: those images of the split that have a label.
        counted: number of classes that the score is a mean of.
    """

    labels: NDArray[np.integer]
    rows: NDArray[np.int64]
    counted: int

    def score(self, logits: NDArray[np.floating]) -> float:
        """Return the accuracy or the mAP, from 0 to 1."""
        if self.labels.ndim == 1:
            return float((logits[self.rows].argmax(axis=1) == self.labels).mean())
        return float(average_precision(logits, self.labels))

    def class_scores(self, logits: NDArray[np.floating]) -> list[float | None]:
        """Return the share of a class's images that get it, or its average precision; None where it is not known."""
        if self.labels.ndim == 1:
            right = logits[self.rows].argmax(axis=1) == self.labels
            images = np.bincount(self.labels, minlength=logits.shape[1])
            found = np.bincount(self.labels, weights=right, minlength=logits.shape[1])
            scores = np.divide(found, images, out=np.full(len(images), np.nan), where=images > 0)
        else:
            scores = average_precision(logits, self.labels, average=None)
        return [None if np.isnan(score) else float(score) for score in scores]


def check_task(task: str) -> None:
    """Raise an error for an unknown task."""
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS)


def choose_task(data: Dataset, task: str) -> Task:
    """Return the task: single-label where every label is known and each image has exactly one class."""
    check_task(task)
    if task == "auto":
        tables = [data.train.labels, *(split.evaluation_labels for split in data.splits[1:])]
        single = all(table.complete and bool((_present(table) == 1).all()) for table in tables)
        return "single-label" if single else "multi-label"
    return "single-label" if task == "single-label" else "multi-label"


def training_labels(data: Dataset, task: Task) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the labels of the training images that have one, and their rows."""
    if task == "single-label":
        return _class_numbers(data.train, data.train.labels)
    counts = data.train.labels.counts()
    if not ((counts.present > 0) & (counts.absent > 0)).any():
        hidden = data.train.truth is not None and data.train.truth is not data.train.labels
        remedy = (
            "--observe positives=all,negatives=all takes all that is known of them"
            if hidden
            else "if each image has exactly one class, add --task single-label; else known absents are needed"
        )
        raise InputError(
            f"{data.name}: no class is known to be present in one training image and absent in another, and unknown "
            f"labels are left out, so there is nothing to learn: {remedy}."
        )
    return data.train.labels.to_dense(), np.arange(len(data.train))


def evaluation_labels(split: Split, task: Task, *, chooses: bool) -> EvaluationLabels | None:
    """Return the labels of val or test; None where they support no accuracy and the split ``chooses`` nothing."""
    if task == "single-label":
        labels, rows = _class_numbers(split, split.evaluation_labels)
        return EvaluationLabels(labels, rows, len(np.unique(labels)))
    table: LabelTable | None = measurable_labels(split.evaluation_labels)
    if chooses:
        selection = choose_selection(split.labels, split.truth)
        table = selection.labels if selection.rule in ("clean", "known") else None
        if table is None:
            raise InputError(
                f"the known labels of {split.name} support no accuracy for half of the classes, so that no penalty can "
                "be chosen: a class needs images where it is present and, unless all its labels are known, more where "
                "it is absent. `labelgap train` and `labelgap compare` work on such labels."
            )
    assert table is not None
    counts = table.counts()
    counted = int(((counts.present > 0) & (counts.absent > 0)).sum())
    return EvaluationLabels(table.to_dense(), np.arange(len(split)), counted) if counted else None


def _present(table: LabelTable) -> NDArray[np.int64]:
    """Return how many classes are present in each image."""
    return np.bincount(table.rows[table.values == PRESENT], minlength=len(table))


def _class_numbers(split: Split, table: LabelTable) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the class of every image that has one, and the rows of these images."""
    present = _present(table)
    if len(several := np.flatnonzero(present > 1)):
        name = table.images[several[0]] if table.images else f"image {several[0]}"
        raise InputError(
            f"--task single-label: {pluralize(len(several), 'image')} of {split.name} have several classes, the first "
            f"is {name}. Leave --task out, or take multi-label."
        )
    rows = np.flatnonzero(present == 1)
    if not len(rows):
        raise InputError(f"no image of {split.name} has a class that is known to be present.")
    at = table.values == PRESENT
    numbers = np.zeros(len(table), dtype=np.int64)
    numbers[table.rows[at]] = table.columns[at]
    return numbers[rows], rows
