"""A run: a folder that anyone can read, and this class that reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import atomic_path
from labelgap.data.dataset import Dataset, Split
from labelgap.data.features import FEATURES, FeatureVectors
from labelgap.data.images import FileImages, ImageSource
from labelgap.labels import Revisions
from labelgap.metrics import Thresholds
from labelgap.models import Classifier
from labelgap.training.checkpoint import BEST, load_weights
from labelgap.training.config import RunConfig, read_config
from labelgap.training.devices import choose_device
from labelgap.training.evaluation import evaluate_scores, probabilities
from labelgap.training.history import read_history
from labelgap.training.inputs import ImageInputs
from labelgap.training.loop import REVISIONS, score_all
from labelgap.training.traces import read_trace
from labelgap.training.vectors import build_network, stored_width, vector_inputs

__all__ = ["Run", "open_run", "write_predictions"]

PREDICTIONS = "predictions.parquet"


class Run:
    """One training and its result. Made by ``fit``, or by ``open_run`` from its folder.

    Attributes:
        path: the folder.
        config: its effective settings.
        history: one dictionary per epoch.
        metrics: what the run came to: best epoch, val and test measures, thresholds; empty while it is not done.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config: RunConfig = read_config(self.path)
        self.history, self.metrics = read_history(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end, or to a Ctrl-C with at least one whole epoch."""
        return bool(self.metrics)

    @property
    def thresholds(self) -> Thresholds:
        """The probability per class from which a label is called present, and how it was found."""
        stored = self._summary()["thresholds"]
        return Thresholds(np.asarray(stored["values"], dtype=np.float64), tuple(stored["marks"]))

    @cached_property
    def model(self) -> Classifier:
        """The network with the weights of the best epoch, in eval mode."""
        if not (self.path / BEST).exists():
            raise RunError(f"{self.path} has no finished epoch yet: resume it with --resume.")
        width = stored_width(self.path / BEST) if self.config.backbone == FEATURES else None
        network = build_network(self.config, width)
        load_weights(self.path, network)
        return network.eval()

    @cached_property
    def revisions(self) -> Revisions:
        """Every label the method changed: what it became, and when."""
        path = self.path / REVISIONS
        return Revisions.from_parquet(path) if path.exists() else Revisions()

    @cached_property
    def trace(self) -> dict[str, NDArray[Any]]:
        """Loss, logit and modified flag of recorded training entries per epoch; empty when none were recorded."""
        return read_trace(self.path)

    def logits(self, images: ImageSource, *, device: str = "auto", workers: int = 0) -> NDArray[np.float32]:
        """Return the (N, K) logits of images, or of features where the run was trained on features."""
        where = choose_device(device)
        network = self.model.to(where)
        if not len(images):
            return np.zeros((0, len(self.config.classes)), dtype=np.float32)
        vectors = vector_inputs(images, network, where)
        pictures = ImageInputs(images, network.backbone, where, workers=workers)
        return score_all(network, pictures if vectors is None else vectors, batch_size=64)

    def predict(
        self,
        images: ImageSource | Split | Sequence[str | os.PathLike[str]] | os.PathLike[str] | NDArray[np.floating[Any]],
        *,
        device: str = "auto",
    ) -> NDArray[np.float32]:
        """Return the (N, K) probabilities of images: a split, a source, files or one file; or of (N, D) features."""
        source: ImageSource
        if isinstance(images, Split):
            source = images.images
        elif isinstance(images, np.ndarray):
            source = FeatureVectors(images)
        elif isinstance(images, ImageSource):
            source = images
        else:
            files = [images] if isinstance(images, str | os.PathLike) else images
            paths = [Path(name).absolute() for name in files]
            source = FileImages(paths[0].anchor if paths else ".", [os.fspath(path) for path in paths])
        return probabilities(self.logits(source, device=device))

    def evaluate(self, data: Dataset, split: str = "test", *, device: str = "auto") -> dict[str, Any]:
        """Measure the run on a split of a data set, against the truth where it is known, else the known labels."""
        if data.classes != self.config.classes:
            raise InputError(f"{data.name} has other classes than {self.path} was trained on.")
        chosen = data.split(split)
        return evaluate_scores(self.logits(chosen.images, device=device), chosen.best_labels, self.thresholds)

    def _summary(self) -> dict[str, Any]:
        if not self.metrics:
            raise RunError(f"{self.path} is not finished: resume it with --resume.")
        return self.metrics

    def __repr__(self) -> str:
        test = self.metrics.get("test") or {}
        score = f", test mAP {100 * test['map']:.2f}" if test.get("map") is not None else ""
        return (
            f"Run({str(self.path)!r}: {self.config.method}, {len(self.history)} of {self.config.epochs} epochs{score})"
        )


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open the folder of a run."""
    return Run(path)


def write_predictions(
    folder: Path, scores: Mapping[str, tuple[Sequence[str], NDArray[np.float32]]], classes: Sequence[str]
) -> None:
    """Write ``predictions.parquet``: image, split, and a column ``score.CLASS`` of probabilities per class.

    Args:
        folder: of the run.
        scores: split → (names of its images, logits).
        classes: in the order of the columns.
    """
    tables = []
    for split, (images, logits) in scores.items():
        columns = {"image": pa.array(list(images)), "split": pa.array([split] * len(images))}
        chance = probabilities(logits)
        columns |= {f"score.{name}": pa.array(chance[:, column]) for column, name in enumerate(classes)}
        tables.append(pa.table(columns))
    if tables:
        with atomic_path(folder / PREDICTIONS) as temporary:
            pq.write_table(pa.concat_tables(tables), temporary)
