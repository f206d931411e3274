"""Where networks look: class activation maps of some images, with the boxes of the objects (Kim et al. 2022, table 4,
and figure 1 of its supplement)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset, Split
from labelgap.inference.localization import activation_maps, image_size, map_maximum, unseen_split
from labelgap.labels import PRESENT
from labelgap.metrics.localization import pointing_hits
from labelgap.reporting.analysis.diverse_sample import diverse_sample
from labelgap.training import Run

EXAMPLES: Final = 6


@dataclass(frozen=True, eq=False)
class ActivationExample:
    """The maps of one class in one image, by the label of the run.

    Attributes:
        split: with the image.
        row: of the image in it.
        class_name: the class.
        size: width and height of the image as stored.
        boxes: ``(B, 4)`` of the class in it, without difficult objects; none where the data have no boxes.
        maps: ``(h, w)`` each, without the bias.
        points: x and y in the image where a map is highest.
        hits: whether that is inside a box; empty where the data have no boxes.
    """

    split: Split
    row: int
    class_name: str
    size: tuple[int, int]
    boxes: NDArray[np.float64]
    maps: dict[str, NDArray[np.float32]]
    points: dict[str, tuple[float, float]]
    hits: dict[str, bool]


def activation_examples(
    runs: Mapping[str, Run], data: Dataset | Split, *, count: int = EXAMPLES, device: str = "auto"
) -> list[ActivationExample]:
    """Return class activation maps of random images, one class each, over as many classes as possible.

    Args:
        runs: by label; finished, trained on images that were resized as a whole.
        data: a split, or a data set: its test split, else val. Classes are those with a box in an image, or without
            boxes those that are known to be present.
        count: how many images.
        device: "auto", "cpu", "cuda", "mps".
    """
    split = unseen_split(data) if isinstance(data, Dataset) else data
    rows, columns = _candidates(split)
    chosen = np.sort(diverse_sample(rows, columns, count, "activation examples"))
    pairs = np.stack([rows[chosen], columns[chosen]], axis=1)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    found = {label: activation_maps(run, split.images, pairs, device=device) for label, run in runs.items()}
    sides = {label: run.model.backbone.input_spec.size for label, run in runs.items()}
    examples = []
    for number, (row, column) in enumerate(pairs.tolist()):
        size, boxes = image_size(split.images, row), _boxes(split, row, column)
        maps = {label: each[number] for label, each in found.items()}
        points = {label: map_maximum(each, sides[label], size) for label, each in maps.items()}
        of_point = np.zeros(len(boxes), dtype=np.int64)
        hits = {label: bool(pointing_hits([point], of_point, boxes)[0]) for label, point in points.items()}
        name = split.labels.classes[column]
        examples.append(ActivationExample(split, row, name, size, boxes, maps, points, hits if len(boxes) else {}))
    return examples


def _candidates(split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return image and class of every object that is not difficult, else of every label known to be present."""
    boxes, table = split.boxes, split.evaluation_labels
    if boxes is not None:
        kept = np.ones(len(boxes.rows), dtype=bool) if boxes.difficult is None else ~boxes.difficult
        return boxes.rows[kept], boxes.classes[kept]
    present = table.values == PRESENT
    return np.repeat(np.arange(len(table)), np.diff(table.starts))[present], table.columns[present].astype(np.int64)


def _boxes(split: Split, row: int, column: int) -> NDArray[np.float64]:
    boxes = split.boxes
    if boxes is None:
        return np.zeros((0, 4))
    own = (boxes.rows == row) & (boxes.classes == column)
    corners: NDArray[np.float64] = boxes.corners[own if boxes.difficult is None else own & ~boxes.difficult]
    return corners
