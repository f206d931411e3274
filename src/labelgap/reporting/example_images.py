"""Test images with what is known of them and what models say: the pictures of data in a report.

Thumbnails are drawn anew from the pixels, so nothing of a photo's metadata (place, time, camera) gets into a report.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.style import single_line
from labelgap.training import Run
from labelgap.training.run import PREDICTIONS_FILE

__all__ = [
    "ClassPrediction",
    "ExampleImage",
    "ModelPrediction",
    "disagreement_examples",
    "random_examples",
    "thumbnail_data_url",
]

PredictionOutcome: TypeAlias = Literal["right", "wrong", "missed", "unknown"]

EXAMPLE_COUNT: Final = 12
DISAGREEMENT_COUNT: Final = 6
REPORT_THUMBNAIL_SIZE: Final = 224
_MOST: Final = 6
_LOOKED_AT: Final = 4_000_000
"""So many scores of each run are searched for the images on which runs differ."""
_VERDICTS: Final[dict[int, PredictionOutcome]] = {PRESENT: "right", ABSENT: "wrong", UNKNOWN: "unknown"}


@dataclass(frozen=True)
class ClassPrediction:
    """One class of one image: what the model said, and whether it is so.

    Attributes:
        name: of the class.
        chance: the model's probability, in percent.
        verdict: "right" and "wrong" for a class called present that is and is not; "missed" for a present one that was
            not called; "unknown" for one called present of which nobody knows.
    """

    name: str
    chance: str
    verdict: PredictionOutcome


@dataclass(frozen=True)
class ModelPrediction:
    """What one model says of an image: the classes it calls present, and those it missed.

    Attributes:
        label: of the model; empty when there is only one.
        chips: the most probable first.
        left_out: how many more there were.
        nearest: the most probable class and its chance, where none was called present; else empty.
    """

    label: str
    chips: tuple[ClassPrediction, ...]
    left_out: int
    nearest: str


@dataclass(frozen=True)
class ExampleImage:
    """An image with its labels and what models say.

    Attributes:
        image: name of the file.
        picture: a data address of the thumbnail.
        present: classes known to be there.
        complete: whether every class of this image is known.
        answers: one for each model.
    """

    image: str
    picture: str
    present: tuple[str, ...]
    complete: bool
    answers: tuple[ModelPrediction, ...]


def random_examples(run: Run, data: Dataset, count: int = EXAMPLE_COUNT) -> list[ExampleImage]:
    """Return test images drawn at random with the predictions of a run; none when there is nothing to show."""
    test = data.test
    if test is None or not run.finished or not (run.path / PREDICTIONS_FILE).exists():
        return []
    order = numpy_generator(run.config.seed, "report").permutation(len(test))
    rows = [int(row) for row in order[:count]]
    scores = _scores(run, test, rows)
    if scores is None:
        return []
    return _shown(test, rows, {"": (scores, run.thresholds.values)})


def disagreement_examples(
    runs: Mapping[str, Run], data: Dataset, count: int = DISAGREEMENT_COUNT
) -> list[ExampleImage]:
    """Return the test images on which runs differ most: the most classes that some call present and others do not.

    Args:
        runs: label → run; fewer than two finished ones give no examples.
        data: whose test images are shown.
        count: how many.
    """
    test = data.test
    done = {label: run for label, run in runs.items() if run.finished and (run.path / PREDICTIONS_FILE).exists()}
    if test is None or len(done) < 2:
        return []
    rows = list(range(min(len(test), max(1, _LOOKED_AT // len(data.classes)))))
    found = {label: _scores(run, test, rows) for label, run in done.items()}
    scores = {label: values for label, values in found.items() if values is not None}
    if len(scores) < 2:
        return []
    stacked = np.stack(list(scores.values()))
    cuts = np.stack([done[label].thresholds.values for label in scores])[:, None, :]
    called = stacked >= cuts
    split = (called.any(axis=0) != called.all(axis=0)).sum(axis=1)
    spread = np.ptp(stacked, axis=0).sum(axis=1)
    order = [int(row) for row in np.lexsort((-spread, -split)) if split[row] > 0][:count]
    chosen = {label: (values[order], done[label].thresholds.values) for label, values in scores.items()}
    return _shown(test, order, chosen)


def thumbnail_data_url(split: Split, row: int, side: int = REPORT_THUMBNAIL_SIZE) -> str:
    """Return an image as a data address, at most ``side`` pixels a side, without metadata.

    Small pictures are kept as they are, in PNG; photos become JPEG.
    """
    source = split.images
    pixels = source.read(row, side) if isinstance(source, FileImages) else source[row]
    picture = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
    small = max(picture.size) <= side // 2
    if not small:
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if small:
        picture.save(buffer, "PNG", optimize=True)
    else:
        picture.save(buffer, "JPEG", quality=80, optimize=True)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _shown(
    test: Split, rows: Sequence[int], models: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float64]]]
) -> list[ExampleImage]:
    """Put pictures, labels and answers together; an image that cannot be read is left out."""
    codes = test.evaluation_labels.batch(rows).numpy() if len(rows) else np.zeros((0, 0), dtype=np.int8)
    classes = test.labels.classes
    made = []
    for place, row in enumerate(rows):
        try:
            picture = thumbnail_data_url(test, row)
        except (InputError, OSError):
            continue
        known = codes[place]
        answers = tuple(_answer(label, scores[place], cuts, known, classes) for label, (scores, cuts) in models.items())
        present = tuple(single_line(classes[number]) for number in np.flatnonzero(known == PRESENT))
        made.append(
            ExampleImage(
                single_line(test.labels.images[row]), picture, present, bool((known != UNKNOWN).all()), answers
            )
        )
    return made


def _answer(
    label: str,
    scores: NDArray[np.float32],
    cuts: NDArray[np.float64],
    known: NDArray[np.int8],
    classes: Sequence[str],
) -> ModelPrediction:
    called = scores >= cuts
    order = [int(number) for number in np.argsort(-scores, kind="stable")]
    wanted = [number for number in order if called[number] or known[number] == PRESENT]
    chips = tuple(
        ClassPrediction(
            single_line(classes[number]),
            _chance(scores[number]),
            _VERDICTS[int(known[number])] if called[number] else "missed",
        )
        for number in wanted[:_MOST]
    )
    nearest = "" if called.any() else f"{single_line(classes[order[0]])} {_chance(scores[order[0]])}"
    return ModelPrediction(single_line(label), chips, len(wanted) - len(chips), nearest)


def _chance(score: np.float32) -> str:
    """Return a probability in whole percent, rounded down: nothing is certain."""
    return f"{int(100 * float(score))} %" if score >= 0.01 else "< 1 %"


def _scores(run: Run, test: Split, rows: Sequence[int]) -> NDArray[np.float32] | None:
    """Read the probabilities of some test images, ``(R, K)``; None when the file is not about these images."""
    names = pa.array([test.labels.images[row] for row in rows], pa.string())
    columns = [f"score.{name}" for name in run.config.classes]
    wanted = (pc.field("split") == "test") & pc.field("image").isin(names)
    table = pq.read_table(run.path / PREDICTIONS_FILE, filters=wanted)
    place = pc.index_in(names, table["image"].combine_chunks())
    if place.null_count:
        return None
    ordered = table.take(place)
    return np.stack([ordered[name].to_numpy() for name in columns], axis=1)
