"""Test images with their known labels and the predictions of models; thumbnails carry no metadata of a photo."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import decoded
from labelgap.data.images import StoredImages
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics.label_model import PlattCalibration
from labelgap.reporting.formatting import format_probability
from labelgap.reporting.page import Page, render_template
from labelgap.training import Run
from labelgap.training.run_folder import read_predictions

THUMBNAIL_SIDE: Final = 224
_MAX_CLASSES: Final = 6
_MAX_SCORES: Final = 4_000_000  # how many scores of each run are searched for disagreements
_OUTCOMES: Final = {PRESENT: "right", ABSENT: "wrong", UNKNOWN: "unknown"}


def random_examples(run: Run, data: Dataset, count: int = 12) -> list[dict[str, Any]]:
    """Return random test images with the predictions of a run, else training images with those out of fold."""
    test = data.train if data.test is None and run.config.folds else data.test
    if test is None:
        return []
    rows = numpy_generator(run.config.seed, "report").permutation(len(test))[:count].tolist()
    scores = _read_scores(run, test, rows)
    return [] if scores is None else _examples(test, rows, {"": (scores, run)})


def disagreement_examples(runs: Mapping[str, Run], data: Dataset, count: int = 6) -> list[dict[str, Any]]:
    """Return the test images with the most classes that some runs, by label, predict present and others do not."""
    test = data.test
    if test is None or len(runs) < 2:
        return []
    rows = range(min(len(test), max(1, _MAX_SCORES // len(data.classes))))
    found = {label: _read_scores(run, test, rows) for label, run in runs.items()}
    models = {label: (scores, runs[label]) for label, scores in found.items() if scores is not None}
    if len(models) < 2:
        return []
    stacked = np.stack([scores for scores, _ in models.values()])
    predicted = stacked >= np.stack([run.thresholds.values for _, run in models.values()])[:, None, :]
    disagreements = (predicted.any(axis=0) != predicted.all(axis=0)).sum(axis=1)
    spread = np.ptp(stacked, axis=0).sum(axis=1)
    order = [int(row) for row in np.lexsort((-spread, -disagreements)) if disagreements[row] > 0][:count]
    return _examples(test, order, {label: (scores[order], run) for label, (scores, run) in models.items()})


def examples_section(run: Run, page: Page) -> Markup:
    """Return random images with the predictions of a run; nothing without the data."""
    examples = random_examples(run, page.data) if page.data is not None and page.images else []
    tested = run.metrics.get("test") is not None or not run.config.folds
    return render_template("sections/examples.html", examples=examples, contrasts=False, tested=tested)


def disagreements_section(runs: Mapping[str, Run], page: Page) -> Markup:
    """Return the images that runs disagree about; nothing without the data."""
    examples = disagreement_examples(runs, page.data) if page.data is not None and page.images else []
    return render_template("sections/examples.html", examples=examples, contrasts=True)


def thumbnail_image(split: Split, row: int) -> Image.Image:
    """Return an image at most ``THUMBNAIL_SIDE`` pixels wide and high, without metadata."""
    source = split.images
    if isinstance(source, StoredImages):
        with decoded(source.encoded(row), THUMBNAIL_SIDE) as opened:
            image = opened.thumbnail(THUMBNAIL_SIDE)
    else:
        pixels = source[row]
        image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    return image


def thumbnail_data_url(split: Split, row: int) -> str:
    """Return a thumbnail as a data URL: small images as PNG, larger ones as JPEG."""
    image = thumbnail_image(split, row)
    kind, options = ("png", {}) if max(image.size) <= THUMBNAIL_SIDE // 2 else ("jpeg", {"quality": 80})
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True, **options)
    return data_url(buffer.getvalue(), kind)


def data_url(image: bytes, kind: str = "png") -> str:
    """Return an encoded image as a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def diverse_sample(images: NDArray[np.int64], kinds: NDArray[np.int64], count: int, name: str) -> NDArray[np.int64]:
    """Return the positions of at most ``count`` entries, one per image; a kind comes again after every other kind."""
    order = numpy_generator(0, name).permutation(len(images))
    by_kind = order[np.argsort(kinds[order], kind="stable")]
    _, first, lengths = np.unique(kinds[by_kind], return_index=True, return_counts=True)
    turn = np.empty(len(order), dtype=np.int64)
    turn[by_kind] = np.arange(len(order)) - np.repeat(first, lengths)
    in_turn = order[np.argsort(turn[order], kind="stable")]
    _, places = np.unique(images[in_turn], return_index=True)
    return in_turn[np.sort(places)[:count]]


def _examples(
    test: Split, rows: Sequence[int], models: Mapping[str, tuple[NDArray[np.float32], Run]]
) -> list[dict[str, Any]]:
    """Combine thumbnails, labels and predictions of every model; an image that cannot be read is left out."""
    codes = test.evaluation_labels.batch(rows).numpy() if len(rows) else np.zeros((0, 0), dtype=np.int8)
    classes, examples = test.labels.classes, []
    lines = {label: (scores, run, run.calibration) for label, (scores, run) in models.items()}
    for place, row in enumerate(rows):
        try:
            thumbnail = thumbnail_data_url(test, row)
        except (InputError, OSError):
            continue
        labels = codes[place]
        examples.append(
            {
                "image": test.labels.images[row],
                "thumbnail": thumbnail,
                "present": [classes[column] for column in np.flatnonzero(labels == PRESENT)],
                "complete": bool((labels != UNKNOWN).all()),
                "predictions": [
                    {"label": label, **_prediction(scores[place], run.thresholds.values, labels, classes, line)}
                    for label, (scores, run, line) in lines.items()
                ],
            }
        )
    return examples


def _prediction(
    scores: NDArray[np.float32],
    thresholds: NDArray[np.float64],
    labels: NDArray[np.int8],
    classes: Sequence[str],
    calibration: PlattCalibration | None = None,
) -> dict[str, Any]:
    """Return what a model predicts: classes with their probability or score and outcome, and the closest if none."""
    chances = np.full(len(scores), np.nan) if calibration is None else calibration.of_scores(scores[None])[0]
    predicted = scores >= thresholds
    order = np.argsort(-np.where(np.isnan(chances), scores, chances), kind="stable").tolist()

    def value(column: int) -> str:
        score = f"score {int(100 * float(scores[column])) / 100:.2f}"
        return score if np.isnan(chances[column]) else format_probability(float(chances[column]))

    columns = [column for column in order if predicted[column] or labels[column] == PRESENT]
    outcomes = {column: _OUTCOMES[int(labels[column])] if predicted[column] else "missed" for column in columns}
    shown = [
        {"name": classes[column], "value": value(column), "outcome": outcomes[column]}
        for column in columns[:_MAX_CLASSES]
    ]
    closest = "" if predicted.any() else f"{classes[order[0]]} {value(order[0])}"
    return {"classes": shown, "omitted": len(columns) - len(shown), "closest": closest}


def _read_scores(run: Run, test: Split, rows: Sequence[int]) -> NDArray[np.float32] | None:
    """Read the scores of images, ``(R, K)``; None where a finished run's predictions do not have all of them."""
    images = [test.labels.images[row] for row in rows]
    return read_predictions(run.path, test.name, images, run.config.classes) if run.finished else None
