"""The linear cells of a table: heads on fixed features, trained as ``compare`` trains them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import RunError
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES
from labelgap.losses.base.registry import published_options
from labelgap.studies.compare import compare
from labelgap.studies.compare.heads import damaged_heads
from labelgap.studies.compare.results import MethodResult, SeedResult
from labelgap.studies.linear_eval import LinearEvaluation, linear_eval
from labelgap.studies.reproduce.results import ReproductionSettings
from labelgap.studies.reproduce.sources import observed
from labelgap.studies.reproduce.tables import Training
from labelgap.training.presets import preset

FOLDER: Final = "linear"
EVALUATION_FOLDER: Final = "linear-eval"


def linear_groups(trainings: Sequence[Training], settings: ReproductionSettings) -> list[list[Training]]:
    """Return the trainings that can be compared together: on one data set, with one grid, every method once."""
    groups: dict[tuple[Any, ...], list[Training]] = {}
    for training in trainings:
        same = (training.data, training.labels, *linear_grid(training, settings))
        number = sum(
            training.method == other.method for key, group in groups.items() if key[1:] == same for other in group
        )
        groups.setdefault((number, *same), []).append(training)
    return list(groups.values())


def backbone_settings(training: Training, data: Dataset, settings: ReproductionSettings) -> dict[str, Any]:
    """Return backbone, weights and size that compute the features of a data set; none where it consists of features."""
    if data.backbone == FEATURES:
        return {}
    network = preset(training.preset, method=training.method, dataset=training.data, protocol="linear")
    own = {"backbone": settings.backbone or network["backbone"], "weights": settings.weights}
    return {**own, "size": settings.size or network["size"]}


def train_linear(
    trainings: Sequence[Training],
    data: Dataset,
    folder: Path,
    settings: ReproductionSettings,
    seeds: int,
    **execution: Any,
) -> dict[Training, MethodResult]:
    """Train a group of ``linear_groups``; heads that the folder has already are not trained again.

    A seed determines the initial weights and the order of the batches. The labels are the same for all seeds: those of
    the papers.
    """
    first = trainings[0]
    rates, batches = linear_grid(first, settings)
    network = preset(first.preset, method=first.method, dataset=first.data, protocol="linear")
    comparison = compare(
        observed(first, data),
        [training.method for training in trainings],
        out=folder / FOLDER / first.data,
        seeds=seeds,
        grid="full",
        options={each.method: {**published_options(each.method, each.data), **each.options} for each in trainings},
        learning_rates=rates,
        batch_sizes=batches,
        epochs=settings.epochs or network["epochs"],
        shuffle=True,
        baseline=False,
        **backbone_settings(first, data, settings),
        **execution,
    )
    rows = {row.method: row for row in comparison.methods}
    skipped = {row.method: row.reason for row in comparison.skipped}
    for training in trainings:
        if training.method not in rows:
            raise RunError(f"{training.method}: {skipped[training.method]}")
    return {training: rows[training.method] for training in trainings}


def damaged_linear_heads(data: str, folder: Path) -> list[str]:
    """Return the files of stored heads of a data set that are damaged or missing, relative to the folder."""
    return [f"{FOLDER}/{data}/{name}" for name in damaged_heads(folder / FOLDER / data)]


def evaluate_features(
    training: Training, data: Dataset, folder: Path, settings: ReproductionSettings, **execution: Any
) -> LinearEvaluation:
    """Fit a linear classifier with each of the paper's penalties on the features of a data set."""
    network: dict[str, Any] = {}
    if data.backbone != FEATURES:
        network = {"backbone": settings.backbone, "weights": settings.weights}
    return linear_eval(data, out=folder / EVALUATION_FOLDER / training.data, **network, **execution)


def measure_evaluation(evaluation: LinearEvaluation, metric: str) -> float | None:
    """Return the test accuracy at the penalty that val chose, or that of the best penalty on test."""
    result = evaluation.chosen if metric == "accuracy" else evaluation.best_on_test
    return None if result is None or evaluation.task != "single-label" else result.test


def measure_head(seed: SeedResult, metric: str) -> float | None:
    """Return a metric of one seed, from 0 to 1 except for epochs; None where it is not known."""
    if metric == "epoch":
        return float(seed.epoch)
    values: dict[str, float | None] = {"train_map": seed.train_map, "val_map": seed.score}
    return values[metric] if metric in values else (seed.test or {}).get(metric)


def linear_grid(training: Training, settings: ReproductionSettings) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the learning rates and the batch sizes that val chooses from."""
    if settings.grid == "paper":
        return training.learning_rates, training.batch_sizes
    stated = preset(training.preset, method=training.method, dataset=training.data, protocol="linear")
    return (stated["lr"],), (stated["batch_size"],)
