"""The pointing game of a run: where its class activation maps are highest, against the boxes of the objects."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from labelgap.core.errors import InputError
from labelgap.data.dataset import Split
from labelgap.data.decoding.image_file import open_image
from labelgap.data.images import ImageSource, StoredImages
from labelgap.metrics.localization import pointing_accuracy
from labelgap.models import class_activation_maps
from labelgap.training import Run
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.loop.inputs import ImageInputs

__all__ = ["pointing_game"]


def pointing_game(
    run: Run, split: Split, *, device: str = "auto", workers: int | None = None, batch_size: int = 16
) -> float:
    """Return how often the maximum of a class's activation map falls inside a box of the class (Kim et al. 2022).

    Every class that has a box in an image is tested there; difficult objects are left out. The maps have no bias, are
    enlarged to the network's input by bilinear interpolation, and are mapped back to the image. The hit rates are
    averaged over the classes.

    Args:
        run: finished, trained on images that were resized as a whole.
        split: with boxes.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        batch_size: images at a time.
    """
    if split.boxes is None:
        raise InputError(f"{split.name} has no boxes, and the pointing game needs them.")
    if run.config.transform == "crop":
        raise InputError(f"{run.path} was trained on crops: their positions are not those of whole images.")
    boxes = split.boxes
    kept = np.ones(len(boxes.rows), dtype=bool) if boxes.difficult is None else ~boxes.difficult
    pairs, of_pair = np.unique(np.stack([boxes.rows[kept], boxes.classes[kept]], axis=1), axis=0, return_inverse=True)
    peaks = _peaks(run, split.images, pairs, choose_device(device), workers, batch_size)
    return pointing_accuracy(peaks, pairs[:, 1], of_pair.reshape(-1), boxes.corners[kept])


def _peaks(
    run: Run,
    images: ImageSource,
    pairs: NDArray[np.int64],
    device: torch.device,
    workers: int | None,
    batch_size: int,
) -> NDArray[np.float64]:
    """Return the ``(P, 2)`` position in the image where the map of each pair of image and class is highest."""
    model = run.model.to(device)
    size = model.backbone.input_spec.size
    rows = np.unique(pairs[:, 0])
    first, last = (np.searchsorted(pairs[:, 0], rows, side) for side in ("left", "right"))
    peaks, number = np.empty((len(pairs), 2)), 0
    inputs = ImageInputs(images, model.backbone, device, workers=choose_workers(workers, device))
    for index, values in inputs.batches(rows, batch_size=batch_size):
        with torch.inference_mode():
            maps = class_activation_maps(model, values).float()
            for row, each in zip(index.tolist(), maps, strict=True):
                wanted = slice(first[number], last[number])
                classes = torch.from_numpy(pairs[wanted, 1]).to(device)
                large = interpolate(each[classes][None], size=(size, size), mode="bilinear", align_corners=False)[0]
                place = large.flatten(1).argmax(dim=1).cpu().numpy()
                width, height = _image_size(images, row)
                peaks[wanted, 0] = (place % size + 0.5) * width / size - 0.5
                peaks[wanted, 1] = (place // size + 0.5) * height / size - 0.5
                number += 1
    return peaks


def _image_size(images: ImageSource, row: int) -> tuple[int, int]:
    """Return width and height of an image as stored."""
    if isinstance(images, StoredImages):
        with open_image(images.encoded(row)) as image:
            return image.size
    height, width = images[row].shape[:2]
    return width, height
