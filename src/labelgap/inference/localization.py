"""Class activation maps of a run's images, and the pointing game: is the maximum of a map inside a box of its class?"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.decoding import open_image
from labelgap.data.images import FEATURES, ImageSource, StoredImages
from labelgap.labels import PRESENT, LabelTable
from labelgap.models import class_activation_maps
from labelgap.models.inference import inference_network
from labelgap.training import Run
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.loop.inputs import ImageInputs, bounded_batch


def pointing_hits(
    points: ArrayLike, box_points: ArrayLike, corners: ArrayLike, *, tolerance: float = 0.0
) -> NDArray[np.bool_]:
    """Return ``(P,)``: whether each point ``(P, 2)`` is in one of its boxes, or within ``tolerance`` of one.

    ``box_points`` ``(M,)`` is the point that each of the ``corners`` belongs to. Zhang et al. allow 15 pixels, Kim et
    al. none.
    """
    place = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    of_point, box = np.asarray(box_points, dtype=np.int64), np.asarray(corners, dtype=np.float64).reshape(-1, 4)
    outside = np.maximum(box[:, :2] - place[of_point], place[of_point] - box[:, 2:]).clip(min=0)
    hits = np.zeros(len(place), dtype=bool)
    np.logical_or.at(hits, of_point, np.hypot(*outside.T) <= tolerance)
    return hits


def mean_class_rate(hits: ArrayLike, counts: ArrayLike) -> float:
    """Return the mean of hits / counts over the classes that were counted; an error if none was."""
    hit, count = np.asarray(hits, dtype=np.float64), np.asarray(counts)
    if not count.any():
        raise InputError("there is no box, so nothing can be pointed at.")
    return float((hit[count > 0] / count[count > 0]).mean())


_ENLARGED_AT_ONCE: Final = 64
_COLOR: Final = (213, 94, 0)
_MAX_ALPHA: Final = 170


@dataclass(frozen=True, eq=False)
class PointingGame:
    """The result of the pointing game, for every pair of an image and a class that has a box in it."""

    classes: tuple[str, ...]  # K names
    rows: NDArray[np.int64]  # (P,) row of the image in the split, ascending
    columns: NDArray[np.int64]  # (P,) class number
    points: NDArray[np.float64]  # (P, 2) x and y where the map is highest, in pixels of the image as stored
    hits: NDArray[np.bool_]  # (P,) whether that is inside a box of the class
    center_hits: NDArray[np.bool_]  # (P,) whether the center of the image is, whatever a network sees
    available: int  # how many images of the split have a box; ``images`` of them were taken

    @property
    def images(self) -> int:
        """How many images were taken."""
        return len(np.unique(self.rows))

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """``(K,)`` images that have a box of each class."""
        return np.bincount(self.columns, minlength=len(self.classes))

    @property
    def class_hits(self) -> NDArray[np.int64]:
        """``(K,)`` hits among them."""
        return np.bincount(self.columns[self.hits], minlength=len(self.classes))

    @property
    def hit_rate(self) -> float:
        """The hit rate averaged over the classes that have a box, 0 to 1."""
        return mean_class_rate(self.class_hits, self.class_counts)

    @property
    def center_rate(self) -> float:
        """The hit rate of pointing at the center of every image, averaged in the same way."""
        hits = np.bincount(self.columns[self.center_hits], minlength=len(self.classes))
        return mean_class_rate(hits, self.class_counts)


def pointing_game(
    run: Run,
    data: Dataset | Split,
    *,
    images: int | None = None,
    tolerance: float = 0.0,
    device: str = "auto",
    workers: int | None = None,
    batch_size: int = 16,
) -> PointingGame:
    """Return how often the maximum of a class's activation map falls inside a box of the class (Kim et al. 2022).

    Every class that is present in an image is tested there, in all images as in the paper: against its boxes without
    those of difficult objects and crowds, which count only where a present class has no other. The maps have no bias,
    are enlarged to the network's input by bilinear interpolation, and are mapped back to the image; of equal maxima the
    first one counts, from the top left. Edges are inside of a box.

    Args:
        run: a finished run, trained on images that were resized as a whole.
        data: a split with boxes, or a data set: its test split, else val.
        images: how many images to take at random, the same for every run; None for all that have a box.
        tolerance: how many pixels outside of a box still count as a hit; 15 in Zhang et al. 2016.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        batch_size: images at a time.
    """
    split = unseen_split(data) if isinstance(data, Dataset) else data
    if split.boxes is None:
        raise InputError(f"{split.name} has no boxes, and the pointing game needs them.")
    if run.config.classes != split.labels.classes:
        raise InputError(f"{split.name} has other classes than {run.path} was trained on.")
    pairs, of_pair, corners, available = _tested_pairs(split.boxes, split.evaluation_labels, images)
    known = {row: image_size(split.images, row) for row in np.unique(pairs[:, 0]).tolist()}
    sizes = np.array([known[row] for row in pairs[:, 0].tolist()], dtype=np.int64).reshape(-1, 2)
    center_hits = pointing_hits(_to_image(np.array([0.5, 0.5]), sizes), of_pair, corners, tolerance=tolerance)
    maps = _maps(run, split.images, pairs, choose_device(device), workers, batch_size)
    parts = [np.zeros((0, 2)), *(_maxima(each, run.model.backbone.input_spec.size) for each in maps)]
    points = _to_image(np.concatenate(parts), sizes)
    hits = pointing_hits(points, of_pair, corners, tolerance=tolerance)
    return PointingGame(run.config.classes, pairs[:, 0], pairs[:, 1], points, hits, center_hits, available)


def unseen_split(data: Dataset) -> Split:
    """Return test, else val, else train."""
    return next(each for each in (data.test, data.val, data.train) if each is not None)


def without_maps(run: Run) -> str:
    """Return why a run has no class activation maps of whole images; nothing if it may have them."""
    if run.config.backbone == FEATURES:
        return "it was trained on features, and has no network that sees images"
    if run.config.transform == "crop":
        return "it was trained on crops: their positions are not those of whole images"
    return ""


def activation_maps(
    run: Run, images: ImageSource, pairs: NDArray[np.int64], *, device: str = "auto", workers: int | None = None
) -> list[NDArray[np.float32]]:
    """Return the class activation map ``(h, w)`` of each of ``(P, 2)`` pairs of a row, which ascend, and a class."""
    maps = _maps(run, images, pairs, choose_device(device), workers, batch_size=16)
    return [each for batch in maps for each in batch.cpu().numpy()]


def map_maximum(activations: NDArray[np.float32], side: int, size: tuple[int, int]) -> tuple[float, float]:
    """Return x and y in an image of ``size`` pixels where a map ``(h, w)``, enlarged to ``side``, is highest."""
    point = _maxima(torch.from_numpy(activations)[None], side)
    x, y = _to_image(point, np.array([size]))[0].tolist()
    return x, y


def image_size(images: ImageSource, row: int) -> tuple[int, int]:
    """Return width and height of an image as stored."""
    if isinstance(images, StoredImages):
        with open_image(images.encoded(row)) as image:
            return image.size
    height, width = images[row].shape[:2]
    return width, height


def _tested_pairs(
    boxes: Boxes, labels: LabelTable, images: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], int]:
    """Return the ``(P, 2)`` images and classes to test, the pair and corners of every box, and the images with one."""
    kept = np.ones(len(boxes.rows), dtype=bool) if boxes.difficult is None else ~boxes.difficult
    place = boxes.rows * len(labels.classes) + boxes.classes
    kept |= (labels.codes_at(boxes.rows, boxes.classes) == PRESENT) & ~np.isin(place, place[kept])
    rows = np.unique(boxes.rows[kept])
    if images is not None and images < len(rows):
        kept &= np.isin(boxes.rows, numpy_generator(0, "pointing game").choice(rows, max(images, 0), replace=False))
    tested = np.stack([boxes.rows[kept], boxes.classes[kept]], axis=1)
    pairs, of_pair = np.unique(tested, axis=0, return_inverse=True)
    return pairs, of_pair.reshape(-1), boxes.corners[kept], len(rows)


def _maps(
    run: Run,
    images: ImageSource,
    pairs: NDArray[np.int64],
    device: torch.device,
    workers: int | None,
    batch_size: int,
) -> Iterator[Tensor]:
    """Yield the maps ``(p, h, w)`` of the pairs of one batch of images after another, on the device."""
    if reason := without_maps(run):
        raise InputError(f"{run.path} has no class activation maps: {reason}.")
    model = inference_network(run.model.to(device), device, run.config.feature_precision)
    inputs = ImageInputs(images, model.backbone, device, workers=choose_workers(workers, device))
    for index, values in inputs.batches(np.unique(pairs[:, 0]), batch_size=bounded_batch(batch_size, model.backbone)):
        batch = index.numpy()
        first, last = np.searchsorted(pairs[:, 0], [batch[0], batch[-1] + 1])
        image, column = torch.from_numpy(np.stack([np.searchsorted(batch, pairs[first:last, 0]), pairs[first:last, 1]]))
        with torch.inference_mode():
            yield class_activation_maps(model, values)[image.to(device), column.to(device)].float()


def _maxima(maps: Tensor, side: int) -> NDArray[np.float64]:
    """Return ``(p, 2)``: x and y where maps ``(p, h, w)``, enlarged to ``side``, are highest, as shares of the side."""
    places = []
    for part in torch.split(maps, _ENLARGED_AT_ONCE):
        large = interpolate(part[:, None], size=(side, side), mode="bilinear", align_corners=False)
        places.append(large.flatten(1).argmax(dim=1))
    place = torch.cat(places).cpu().numpy()
    return (np.stack([place % side, place // side], axis=1) + 0.5) / side


def _to_image(shares: NDArray[np.float64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return positions in pixels, of whole numbers at the centers, from shares of the width and the height."""
    return shares * sizes - 0.5


def heat_map_png(activations: NDArray[np.float32], size: tuple[int, int], side: int = 256) -> bytes:
    """Return a map ``(h, w)`` as a PNG in the shape of the image; its opacity grows with what is above the average."""
    above = np.clip(activations - activations.mean(), 0, None)
    share = above / max(float(above.max()), 1e-12)
    width, height = (max(1, round(side * length / max(size))) for length in size)
    alpha = Image.fromarray(np.rint(share * _MAX_ALPHA).astype(np.uint8))
    alpha = alpha.resize((width, height), Image.Resampling.BICUBIC)
    overlay = Image.new("RGBA", alpha.size, (*_COLOR, 0))
    overlay.putalpha(alpha)
    buffer = io.BytesIO()
    overlay.save(buffer, "PNG")
    return buffer.getvalue()
