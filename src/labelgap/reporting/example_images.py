"""Test images with their known labels and the predictions of models, for the pages of a run and of a study.

Thumbnails are encoded from pixels, so no metadata of a photo (place, time, camera) gets into a report.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import decoded
from labelgap.data.images import StoredImages
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.formatting import single_line
from labelgap.training import Run
from labelgap.training.run_folder import read_predictions

PredictionOutcome: TypeAlias = Literal["right", "wrong", "missed", "unknown"]
ScoresAndThresholds: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float64]]

EXAMPLE_COUNT: Final = 12
DISAGREEMENT_COUNT: Final = 6
REPORT_THUMBNAIL_SIZE: Final = 224
_MAX_CLASSES: Final = 6
_MAX_SCORES: Final = 4_000_000
"""How many scores of each run are searched for disagreements."""
_OUTCOMES: Final[dict[int, PredictionOutcome]] = {PRESENT: "right", ABSENT: "wrong", UNKNOWN: "unknown"}


@dataclass(frozen=True)
class ClassPrediction:
    """The prediction for one class of one image.

    Attributes:
        name: the class.
        probability: as text, in percent.
        outcome: "right" or "wrong" for a class predicted present that is present or absent, "unknown" where its label
            is unknown, "missed" for a present class that was not predicted.
    """

    name: str
    probability: str
    outcome: PredictionOutcome


@dataclass(frozen=True)
class ModelPrediction:
    """The prediction of one model for one image.

    Attributes:
        label: of the model; empty when there is only one.
        classes: predicted present or missed, the most probable first.
        omitted: how many more there are.
        closest: the most probable class and its probability, where none was predicted present; else empty.
    """

    label: str
    classes: tuple[ClassPrediction, ...]
    omitted: int
    closest: str


@dataclass(frozen=True)
class ExampleImage:
    """An image with its labels and the predictions of models.

    Attributes:
        image: its name.
        thumbnail: as a data URL.
        present: classes known to be present.
        complete: whether every label of the image is known.
        predictions: one per model.
    """

    image: str
    thumbnail: str
    present: tuple[str, ...]
    complete: bool
    predictions: tuple[ModelPrediction, ...]


def random_examples(run: Run, data: Dataset, count: int = EXAMPLE_COUNT) -> list[ExampleImage]:
    """Return random test images with the predictions of a run; empty without a test split or predictions.

    Without a test split, training images with their out-of-fold predictions.
    """
    test = data.train if data.test is None and run.config.folds else data.test
    if test is None:
        return []
    rows = numpy_generator(run.config.seed, "report").permutation(len(test))[:count].tolist()
    scores = _read_scores(run, test, rows)
    return [] if scores is None else _examples(test, rows, {"": (scores, run.thresholds.values)})


def disagreement_examples(
    runs: Mapping[str, Run], data: Dataset, count: int = DISAGREEMENT_COUNT
) -> list[ExampleImage]:
    """Return the test images with the most classes that some runs predict present and others do not.

    ``runs`` are by label; fewer than two finished ones give no examples.
    """
    test = data.test
    if test is None or len(runs) < 2:
        return []
    rows = range(min(len(test), max(1, _MAX_SCORES // len(data.classes))))
    found = {label: _read_scores(run, test, rows) for label, run in runs.items()}
    scores = {label: values for label, values in found.items() if values is not None}
    if len(scores) < 2:
        return []
    thresholds = {label: runs[label].thresholds.values for label in scores}
    stacked = np.stack(list(scores.values()))
    predicted = stacked >= np.stack(list(thresholds.values()))[:, None, :]
    disagreements = (predicted.any(axis=0) != predicted.all(axis=0)).sum(axis=1)
    spread = np.ptp(stacked, axis=0).sum(axis=1)
    order = [int(row) for row in np.lexsort((-spread, -disagreements)) if disagreements[row] > 0][:count]
    return _examples(test, order, {k: (scores[k][order], thresholds[k]) for k in scores})


def thumbnail_image(split: Split, row: int, side: int = REPORT_THUMBNAIL_SIZE) -> Image.Image:
    """Return an image at most ``side`` pixels wide and high, without metadata; a small one keeps its pixels."""
    source = split.images
    if isinstance(source, StoredImages):
        with decoded(source.encoded(row), side) as opened:
            image = opened.thumbnail(side)
    else:
        pixels = source[row]
        image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return image


def thumbnail_data_url(split: Split, row: int, side: int = REPORT_THUMBNAIL_SIZE) -> str:
    """Return a thumbnail as a data URL: small images as PNG, larger ones as JPEG."""
    image = thumbnail_image(split, row, side)
    buffer = io.BytesIO()
    if max(image.size) <= side // 2:
        kind = "png"
        image.save(buffer, "PNG", optimize=True)
    else:
        kind = "jpeg"
        image.save(buffer, "JPEG", quality=80, optimize=True)
    return data_url(buffer.getvalue(), kind)


def data_url(image: bytes, kind: str = "png") -> str:
    """Return an encoded image as a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def _examples(test: Split, rows: Sequence[int], models: Mapping[str, ScoresAndThresholds]) -> list[ExampleImage]:
    """Combine thumbnails, labels and predictions; an image that cannot be read is left out."""
    codes = test.evaluation_labels.batch(rows).numpy() if len(rows) else np.zeros((0, 0), dtype=np.int8)
    classes = test.labels.classes
    examples = []
    for place, row in enumerate(rows):
        try:
            thumbnail = thumbnail_data_url(test, row)
        except (InputError, OSError):
            continue
        labels = codes[place]
        predictions = tuple(
            _prediction(label, scores[place], thresholds, labels, classes)
            for label, (scores, thresholds) in models.items()
        )
        present = tuple(single_line(classes[column]) for column in np.flatnonzero(labels == PRESENT))
        name, complete = single_line(test.labels.images[row]), bool((labels != UNKNOWN).all())
        examples.append(ExampleImage(name, thumbnail, present, complete, predictions))
    return examples


def _prediction(
    label: str,
    scores: NDArray[np.float32],
    thresholds: NDArray[np.float64],
    labels: NDArray[np.int8],
    classes: Sequence[str],
) -> ModelPrediction:
    predicted = scores >= thresholds
    order = [int(column) for column in np.argsort(-scores, kind="stable")]
    columns = [column for column in order if predicted[column] or labels[column] == PRESENT]
    shown = tuple(
        ClassPrediction(
            single_line(classes[column]),
            _format_probability(scores[column]),
            _OUTCOMES[int(labels[column])] if predicted[column] else "missed",
        )
        for column in columns[:_MAX_CLASSES]
    )
    first = order[0]
    closest = "" if predicted.any() else f"{single_line(classes[first])} {_format_probability(scores[first])}"
    return ModelPrediction(single_line(label), shown, len(columns) - len(shown), closest)


def _format_probability(score: np.float32) -> str:
    """Return a probability in percent, rounded down, so that none reads 100 % by rounding."""
    return f"{int(100 * float(score))} %" if score >= 0.01 else "< 1 %"


def _read_scores(run: Run, test: Split, rows: Sequence[int]) -> NDArray[np.float32] | None:
    """Read the scores of images, ``(R, K)``; None where a finished run's predictions do not have all of them."""
    if not run.finished:
        return None
    return read_predictions(run.path, test.name, [test.labels.images[row] for row in rows], run.config.classes)
