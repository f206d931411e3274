"""Linear evaluation: how well fixed features separate classes, by logistic regression with many penalties."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.files import write_text
from labelgap.core.tensors import write_tensors
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FEATURES
from labelgap.labels import PRESENT, LabelTable, paper_split
from labelgap.losses.base.terms import widest_float
from labelgap.metrics import average_precision
from labelgap.models import check_backbone
from labelgap.studies.compare.heads import compute_split_features
from labelgap.studies.compare.statistics import classes_with_both
from labelgap.studies.study import Count, Document, Share, Stored, Text, csv_cell, csv_text, study_folder
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.heads.solver import LogisticPath, fit_logistic_path
from labelgap.training.plan import default_linear_backbone
from labelgap.training.progress import Reporter
from labelgap.training.selection import choose_selection, measurable_labels

FILE: Final = "linear_eval.json"
TABLE: Final = "linear_eval.csv"
HEAD: Final = "head.safetensors"
FILES: Final = (FILE, TABLE, HEAD)
PAPER_PENALTIES: Final = tuple(float(value) for value in np.logspace(-6, 5, 45))
"""45 values, equally spaced in their logarithm, from 1e-6 to 1e5 (Kobayashi, CVPR 2023)."""
TASKS: Final = ("auto", "single-label", "multi-label")
_PRECISIONS: Final = {"float32": torch.float32, "float64": torch.float64}

Task = Literal["single-label", "multi-label"]


@dataclass(frozen=True)
class PenaltyResult(Stored):
    """The classifier of one penalty."""

    penalty: Annotated[float, Field(gt=0)]  # λ, of ½ λ ‖W‖² beside the loss summed over images; 1/C of scikit-learn
    val: Share  # accuracy or mAP
    test: Share | None  # None where there is no test, or its labels support no accuracy
    iterations: Count  # of L-BFGS, for the slowest class
    converged: bool  # whether all classes converged


@dataclass(frozen=True)
class ClassResult(Stored):
    """A class with the chosen penalty; None where the labels do not support a score."""

    name: Text
    present: Count  # training images that are known to have it
    val: Share | None  # average precision, or with one class per image the share of its images that get it
    test: Share | None


@dataclass(frozen=True)
class LinearEvaluation(Document):
    """A linear evaluation; without its head where it was read from a folder."""

    FILE = FILE
    KIND = "a linear evaluation"
    REMEDY = "Evaluate the features again."
    NOT_STORED = frozenset({"path", "head"})
    DERIVED = frozenset({"metric", "chosen", "best_on_test"})

    data: Text  # its name
    backbone: Text  # that computed the features; "features" where they came with the data
    task: Task  # "single-label" (softmax, accuracy) or "multi-label" (a sigmoid for each class, mAP)
    images: dict[str, int]  # number of each split
    classes: int
    classes_counted: dict[str, int]  # of val and test: how many the metric is a mean of
    results: Annotated[tuple[PenaltyResult, ...], Field(min_length=1)]  # by rising penalty
    class_results: tuple[ClassResult, ...] = ()  # with the chosen penalty
    notes: tuple[str, ...] = ()  # what the reader should know
    seconds: float = 0.0  # of the fits, without the computation of features
    head: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)
    """Weights ``(K, D)`` and biases ``(K,)`` of the chosen penalty."""

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return "accuracy" if self.task == "single-label" else "mAP"

    @property
    def chosen(self) -> PenaltyResult:
        """The best on val; of equal ones the largest penalty."""
        return max(self.results, key=lambda result: (result.val, result.penalty))

    @property
    def best_on_test(self) -> PenaltyResult | None:
        """The best on test, as the two-way paper chooses: no estimate of anything, for comparison with such tables."""
        measured = [(result.test, result.penalty, result) for result in self.results if result.test is not None]
        return max(measured, key=lambda each: each[:2])[2] if measured else None

    def as_json(self) -> dict[str, Any]:
        """Return everything but the head."""
        best = self.best_on_test
        derived = {"metric": self.metric, "chosen": asdict(self.chosen), "best_on_test": best and asdict(best)}
        return super().as_json() | derived

    def write(self) -> None:
        """Write the files of the folder, and the manifest."""
        rows = [[*map(csv_cell, asdict(result).values()), result == self.chosen] for result in self.results]
        with self.writing([TABLE, HEAD]):
            write_text(self.path / TABLE, csv_text([*PenaltyResult.__annotations__, "chosen"], rows))
            if self.head is not None:
                write_tensors(self.path / HEAD, dict(zip(("weight", "bias"), self.head, strict=True)))


def check_settings(
    task: str, penalties: Sequence[float] | None, precision: str, backbone: str | None, tolerance: float
) -> None:
    """Raise ``InputError`` for a setting that is wrong whatever the data are."""
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    if penalties is not None and (not penalties or not all(0 < value < math.inf for value in penalties)):
        raise InputError(f"--penalties {list(penalties)}: give finite numbers above 0, e.g. --penalties 0.1,1,10")
    if precision not in _PRECISIONS:
        raise InputError(f"--precision {precision}: it must be float32 or float64.")
    if not 0 < tolerance < 1:
        raise InputError(f"--tolerance {tolerance:g}: give a number between 0 and 1, e.g. 1e-5.")
    if backbone not in (None, FEATURES):
        check_backbone(str(backbone))


def linear_eval(
    data: Dataset,
    *,
    task: str = "auto",
    penalties: Sequence[float] | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    size: int | None = None,
    precision: str = "float32",
    tolerance: float = 1e-5,
    out: str | os.PathLike[str] = "runs/linear-eval",
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> LinearEvaluation:
    """Fit linear classifiers with an L2 penalty on fixed features, and choose the penalty on val, or a fifth of train.

    The task is "single-label", "multi-label", or "auto": single-label where each image is known to have one class.
    ``penalties`` are values of λ; for ``precision`` and ``tolerance`` see ``fit_logistic_path``, for the others
    ``fit``.
    """
    check_settings(task, penalties, precision, backbone, tolerance)
    folder, on_device, reporter = Path(out), choose_device(device), Reporter(quiet)
    backbone, chosen_task = backbone or default_linear_backbone(data), _choose_task(data, task)
    splits, notes = _with_val(data)
    with study_folder(folder, "evaluating features", "a linear evaluation", [FILE]):
        labels, rows = _training_labels(splits, chosen_task)
        measured = _measured(splits, chosen_task, notes)
        count = choose_workers(workers, on_device)
        features, _ = compute_split_features(splits, backbone, weights, on_device, count, reporter, size=size)
        values, started = sorted(penalties or PAPER_PENALTIES), time.perf_counter()
        reporter.log(f"fitting {len(values)} penalties together, {chosen_task}")
        dtype = widest_float(on_device) if on_device.type == "mps" else _PRECISIONS[precision]
        fit: dict[str, Any] = {"tolerance": tolerance, "device": on_device, "dtype": dtype}
        path = fit_logistic_path(features["train"][rows], labels, values, classes=len(data.classes), **fit)
        results, classes, number = _evaluate(path, features, measured, splits)
        notes += _fit_notes(path, labels, len(splits.train) - len(rows))
        if len(results) > 1 and number in (0, len(results) - 1):
            side = "smaller" if number == 0 else "larger"
            notes.append(f"the chosen penalty is at the end of the range: a {side} one may be better (--penalties)")
        evaluation = LinearEvaluation(
            folder,
            data=data.name,
            backbone=backbone,
            task=chosen_task,
            images={split.name: len(split) for split in splits.splits},
            classes=len(data.classes),
            classes_counted={name: each.counted for name, each in measured.items()},
            results=results,
            class_results=classes,
            notes=tuple(notes),
            seconds=time.perf_counter() - started,
            head=path.head(number),
        )
        evaluation.write()
    return evaluation


class _Labels(NamedTuple):
    """Labels that classifiers are scored with: class numbers ``(N,)`` or codes ``(N, K)``, and the images with one."""

    labels: NDArray[np.integer]
    rows: NDArray[np.int64]
    counted: int  # number of classes that the score is a mean of

    def score(self, logits: NDArray[np.floating]) -> float:
        if self.labels.ndim == 1:
            return float((logits[self.rows].argmax(axis=1) == self.labels).mean())
        return float(average_precision(logits, self.labels))

    def class_scores(self, logits: NDArray[np.floating]) -> list[float | None]:
        """Return the share of a class's images that get it, or its average precision; None where it is not known."""
        if self.labels.ndim == 1:
            right = logits[self.rows].argmax(axis=1) == self.labels
            own = [right[self.labels == column] for column in range(logits.shape[1])]
            return [float(each.mean()) if len(each) else None for each in own]
        scores = average_precision(logits, self.labels, average=None)
        return [None if np.isnan(score) else float(score) for score in scores]


def _choose_task(data: Dataset, task: str) -> Task:
    tables = [data.train.labels, *(split.evaluation_labels for split in data.splits[1:])]
    single = all(table.complete and bool((_present(table) == 1).all()) for table in tables)
    return "single-label" if task == "single-label" or (task == "auto" and single) else "multi-label"


def _with_val(data: Dataset) -> tuple[Dataset, list[str]]:
    if data.val is not None:
        return data, []
    train, val = paper_split(len(data.train))
    if not len(val):
        raise InputError(f"{data.name}: there is no val to choose the penalty on, and too few training images for one.")
    note = f"there is no val: {len(val):,} of the training images, drawn at random (seed 1200), take its place"
    return replace(data, train=data.train.select(train), val=data.train.select(val, "val")), [note]


def _training_labels(data: Dataset, task: Task) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    if task == "single-label":
        return _class_numbers(data.train, data.train.labels)
    if not classes_with_both(data.train.labels):
        remedy = "if each image has exactly one class, add --task single-label; else known absents are needed"
        if data.train.truth is not None and data.train.truth is not data.train.labels:
            remedy = "--observe positives=all,negatives=all takes all that is known of them"
        raise InputError(
            f"{data.name}: no class is known to be present in one training image and absent in another, and unknown "
            f"labels are left out, so there is nothing to learn: {remedy}."
        )
    return data.train.labels.to_dense(), np.arange(len(data.train))


def _measured(data: Dataset, task: Task, notes: list[str]) -> dict[str, _Labels]:
    """Return the labels of val and test, as far as something can be measured there."""
    found = dict[str, _Labels | None]()
    try:
        for split in data.splits[1:]:
            found[split.name] = _evaluation_labels(split, task)
    except InputError as error:
        for note in notes:  # where val comes from
            error.add_note(note)
        raise
    if found.get("test") is None:
        reason = "there is no test" if data.test is None else "the known labels of test support no accuracy"
        notes.append(f"{reason}: the score on val chose the penalty and is too optimistic")
    return {name: each for name, each in found.items() if each is not None}


def _evaluation_labels(split: Split, task: Task) -> _Labels | None:
    """Return the labels of val or test; None where those of test support no accuracy. Val chooses, and must."""
    if task == "single-label":
        labels, rows = _class_numbers(split, split.evaluation_labels)
        return _Labels(labels, rows, len(np.unique(labels)))
    table = measurable_labels(split.evaluation_labels)
    if split.name == "val":
        selection = choose_selection(split.labels, split.truth)
        if selection.labels is None or selection.rule not in ("clean", "known"):
            raise InputError(
                f"the known labels of {split.name} support no accuracy for half of the classes, so that no penalty can "
                "be chosen: a class needs images where it is present and, unless all its labels are known, more where "
                "it is absent. `labelgap train` and `labelgap compare` work on such labels."
            )
        table = selection.labels
    counted = classes_with_both(table)
    return _Labels(table.to_dense(), np.arange(len(split)), counted) if counted else None


def _present(table: LabelTable) -> NDArray[np.int64]:
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
    at = table.values == PRESENT
    if not at.any():
        raise InputError(f"no image of {split.name} has a class that is known to be present.")
    return table.columns[at].astype(np.int64), table.rows[at]


def _evaluate(
    path: LogisticPath, features: Mapping[str, Tensor], measured: Mapping[str, _Labels], data: Dataset
) -> tuple[tuple[PenaltyResult, ...], tuple[ClassResult, ...], int]:
    """Score every penalty on val and test, and every class with the penalty that val chooses; return its number too."""
    scores, by_class, chosen = dict[str, Sequence[Any]](), dict[str, list[float | None]](), 0
    for name, labels in measured.items():  # val is the first
        logits = [each.float().cpu().numpy() for each in path.logits(features[name])]
        found = [labels.score(each) for each in logits]
        if name == "val":
            chosen = max(range(len(found)), key=lambda number: (found[number], path.penalties[number]))
        scores[name], by_class[name] = found, labels.class_scores(logits[chosen])
    rows = (path.penalties, scores["val"], scores.get("test", [None] * len(path.penalties)))
    results = zip(*rows, path.iterations.tolist(), path.converged.tolist(), strict=True)
    present = data.train.labels.counts().present.tolist()
    classes = zip(data.classes, present, by_class["val"], by_class.get("test", [None] * len(present)), strict=True)
    return tuple(PenaltyResult(*row) for row in results), tuple(ClassResult(*row) for row in classes), chosen


def _fit_notes(path: LogisticPath, labels: NDArray[np.integer], unlabeled: int) -> list[str]:
    notes = []
    if unlabeled:
        notes.append(f"{unlabeled:,} training images without a known class were left out")
    silent = int((path.weight == 0).flatten(2).all(dim=2).all(dim=0).sum()) if path.weight.shape[2] else 0
    if silent:
        lacking = "training image" if labels.ndim == 1 else "known present or without a known absent in train"
        notes.append(f"nothing was learned for {pluralize(silent, 'class')} without a {lacking}")
    if not path.converged.all():
        worst = float(path.gradient.max())
        notes.append(
            f"{int((~path.converged).sum())} penalties did not reach the tolerance (largest gradient {worst:.1e}): "
            "--precision float64 is more exact"
        )
    return notes
