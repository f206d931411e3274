"""``linear_eval``: fit a linear classifier with every penalty on fixed features, and choose the penalty on val."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import remove_partials
from labelgap.core.lock import lock_folder
from labelgap.core.text import pluralize
from labelgap.core.trust import refuse_links
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES
from labelgap.labels import paper_split
from labelgap.losses.base.terms import widest_float
from labelgap.models import check_backbone
from labelgap.studies.compare.features import compute_split_features
from labelgap.studies.linear_eval.labels import (
    EvaluationLabels,
    check_task,
    choose_task,
    evaluation_labels,
    training_labels,
)
from labelgap.studies.linear_eval.results import ClassResult, LinearEvaluation, PenaltyResult, is_linear_evaluation
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.heads.solver import LogisticPath, fit_logistic_path
from labelgap.training.plan import default_linear_backbone
from labelgap.training.progress import Reporter

PAPER_PENALTIES: Final = tuple(float(value) for value in np.logspace(-6, 5, 45))
"""45 values, equally spaced in their logarithm, from 1e-6 to 1e5 (Kobayashi, CVPR 2023)."""
_PRECISIONS: Final = {"float32": torch.float32, "float64": torch.float64}


def check_settings(
    task: str, penalties: Sequence[float] | None, precision: str, backbone: str | None, tolerance: float
) -> None:
    """Raise ``InputError`` for a setting that is wrong whatever the data are."""
    check_task(task)
    if penalties is not None and (not penalties or not all(0 < value < math.inf for value in penalties)):
        raise InputError(f"--penalties {list(penalties)}: give finite numbers above 0, e.g. --penalties 0.1,1,10")
    if precision not in _PRECISIONS:
        raise InputError(f"--precision {precision}: it is float32 or float64.")
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
    precision: str = "float32",
    tolerance: float = 1e-5,
    out: str | os.PathLike[str] = "runs/linear-eval",
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> LinearEvaluation:
    """Fit linear classifiers with an L2 penalty on fixed features, and choose the penalty on val.

    Args:
        data: features, or images whose features a backbone computes (they are cached). Without val, a fifth of the
            training images takes its place.
        task: "single-label", "multi-label", or "auto": single-label where each image is known to have one class.
        penalties: values of λ; the paper's 45 when None.
        backbone: name of the network that computes features; the default for the data when None.
        weights: file of its weights.
        precision: "float32" or "float64".
        tolerance: see ``fit_logistic_path``.
        out: folder of the results; those of an earlier evaluation are replaced.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        quiet: print nothing.
    """
    check_settings(task, penalties, precision, backbone, tolerance)
    folder, on_device, reporter = Path(out), choose_device(device), Reporter(quiet)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another --out.")
    backbone, chosen_task = backbone or default_linear_backbone(data), choose_task(data, task)
    splits, notes = _with_val(data)
    labels, rows = training_labels(splits, chosen_task)
    measured = _measured(splits, chosen_task, notes)
    with lock_folder(folder, "evaluating features"):
        _check_folder(folder)
        count = choose_workers(workers, on_device)
        features, _ = compute_split_features(splits, backbone, weights, on_device, count, reporter)
        values, started = sorted(penalties or PAPER_PENALTIES), time.perf_counter()
        reporter.log(f"fitting {len(values)} penalties together, {chosen_task}")
        dtype = widest_float(on_device) if on_device.type == "mps" else _PRECISIONS[precision]
        fit: dict[str, Any] = {"tolerance": tolerance, "device": on_device, "dtype": dtype}
        path = fit_logistic_path(features["train"][rows], labels, values, classes=len(data.classes), **fit)
        evaluation = LinearEvaluation(
            folder,
            data=data.name,
            backbone=backbone,
            task=chosen_task,
            images={split.name: len(split) for split in splits.splits},
            classes=len(data.classes),
            classes_counted={name: each.counted for name, each in measured.items()},
            results=_results(path, features, measured),
            notes=(*notes, *_fit_notes(path, labels, len(splits.train) - len(rows))),
            seconds=time.perf_counter() - started,
        )
        return _write(evaluation, splits, path, features, measured)


def _write(
    evaluation: LinearEvaluation,
    data: Dataset,
    path: LogisticPath,
    features: dict[str, Tensor],
    measured: dict[str, EvaluationLabels],
) -> LinearEvaluation:
    """Add the chosen head, its scores of every class and a warning where it is at an end, and write the files."""
    number = evaluation.results.index(evaluation.chosen)
    scores = {
        name: labels.class_scores(path.logits(features[name])[number].float().cpu().numpy())
        for name, labels in measured.items()
    }
    unknown: list[float | None] = [None] * len(data.classes)
    columns = (data.train.labels.counts().present.tolist(), scores["val"], scores.get("test", unknown))
    classes = tuple(ClassResult(*row) for row in zip(data.classes, *columns, strict=True))
    notes = (*evaluation.notes, *_end_notes(evaluation))
    evaluation = replace(evaluation, head=path.head(number), class_results=classes, notes=notes)
    evaluation.write()
    return evaluation


def _with_val(data: Dataset) -> tuple[Dataset, list[str]]:
    """Return the data with a val split, and what was done for it."""
    if data.val is not None:
        return data, []
    train, val = paper_split(len(data.train))
    if not len(val):
        raise InputError(f"{data.name}: there is no val to choose the penalty on, and too few training images for one.")
    note = f"there is no val: {len(val):,} of the training images, drawn at random (seed 1200), take its place"
    return replace(data, train=data.train.select(train), val=data.train.select(val, "val")), [note]


def _measured(data: Dataset, task: str, notes: list[str]) -> dict[str, EvaluationLabels]:
    """Return the labels of val and test, as far as something can be measured there."""
    assert data.val is not None
    try:
        found = {"val": evaluation_labels(data.val, task, chooses=True)}  # type: ignore[arg-type]
    except InputError as error:
        for note in notes:  # where val comes from
            error.add_note(note)
        raise
    if data.test is not None:
        found["test"] = evaluation_labels(data.test, task, chooses=False)  # type: ignore[arg-type]
    if found.get("test") is None:
        reason = "there is no test" if data.test is None else "the known labels of test support no accuracy"
        notes.append(f"{reason}: the score on val chose the penalty and is too optimistic")
    return {name: each for name, each in found.items() if each is not None}


def _results(
    path: LogisticPath, features: dict[str, Tensor], measured: dict[str, EvaluationLabels]
) -> tuple[PenaltyResult, ...]:
    scores = {
        name: [labels.score(logits.float().cpu().numpy()) for logits in path.logits(features[name])]
        for name, labels in measured.items()
    }
    return tuple(
        PenaltyResult(
            penalty,
            scores["val"][number],
            scores["test"][number] if "test" in scores else None,
            int(path.iterations[number]),
            bool(path.converged[number]),
        )
        for number, penalty in enumerate(path.penalties)
    )


def _fit_notes(path: LogisticPath, labels: np.ndarray, unlabeled: int) -> list[str]:
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


def _end_notes(evaluation: LinearEvaluation) -> list[str]:
    """Return a warning where the chosen penalty is the first or the last."""
    ends = {evaluation.results[0].penalty: "smaller", evaluation.results[-1].penalty: "larger"}
    side = ends.get(evaluation.chosen.penalty)
    if side is None or len(evaluation.results) == 1:
        return []
    return [f"the chosen penalty is at the end of the range: a {side} one may be better (--penalties)"]


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else, and remove what a killed evaluation left."""
    if any(not path.name.startswith(".") for path in folder.iterdir()) and not is_linear_evaluation(folder):
        raise RunError(f"{folder} holds something else than a linear evaluation: choose another --out.")
    refuse_links(folder)
    remove_partials(folder)
