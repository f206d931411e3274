"""How long a training will take here, from a few images."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from labelgap.core.errors import LabelGapError

if TYPE_CHECKING:
    from labelgap.data import Dataset

__all__ = ["estimate_training"]

_IMAGES: Final = 8
_STEPS: Final = 5
_PATIENCE: Final = 2.0
"""Seconds that a look at the future may take; a machine too busy for that is not to be judged by it."""


def estimate_training(data: Dataset, device: str = "auto") -> str | None:
    """Return how long the linear protocol takes on this machine, in words, measured on eight images.

    Features are computed once for every image, then the head is trained on them. The quickest of a few tries counts:
    the machine left alone. None where the data ask for another protocol, where the machine is too busy to tell, or
    where an image or the network cannot be read: the training will say why.
    """
    from labelgap.data.images import FileImages

    if data.protocol != "linear" or not isinstance(data.train.images, FileImages):
        return None
    try:
        seconds = _features(data, device) + _head(data, device)
    except (LabelGapError, ImportError, RuntimeError, OSError):
        return None
    return f"about {_told(seconds)} on this machine (linear, {data.backbone})"


def _features(data: Dataset, device: str) -> float:
    """Return the seconds that the features of all images will take."""
    import torch

    from labelgap.models import create
    from labelgap.training.devices import choose_device
    from labelgap.training.inputs import ImageInputs

    place = choose_device(device)
    backbone = create(data.backbone).to(place).eval()
    inputs = ImageInputs(data.train.images, backbone, place)
    rows = np.unique(np.linspace(0, len(inputs) - 1, _IMAGES).astype(np.int64))

    def pair(start: int) -> None:
        for _, values in inputs.batches(rows[start : start + 2], batch_size=2):
            backbone.features(values).cpu()

    taken: list[float] = []
    with torch.inference_mode():
        pair(0)
        for start in range(0, len(rows) - 1, 2):
            taken.append(_seconds(lambda start=start: pair(start)) / 2)  # type: ignore[misc]
            if sum(taken) > _PATIENCE:
                break
    if not taken or min(taken) > _PATIENCE / 2:
        raise TimeoutError
    return min(taken) * sum(map(len, data.splits))


def _head(data: Dataset, device: str) -> float:
    """Return the seconds that the steps of a linear head will take."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    from labelgap.training.defaults import defaults_for
    from labelgap.training.devices import choose_device

    place, chosen = choose_device(device), defaults_for("linear", True)
    head = torch.nn.Linear(1280, len(data.classes), device=place)
    optimiser = torch.optim.Adam(head.parameters())
    features = torch.zeros(chosen.batch_size, 1280, device=place)
    targets = torch.zeros(chosen.batch_size, len(data.classes), device=place)

    def step() -> float:
        optimiser.zero_grad()
        loss = binary_cross_entropy_with_logits(head(features), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.item()  # waits for the device

    step()
    steps = chosen.epochs * -(-len(data.train) // chosen.batch_size)
    return min(_seconds(step) for _ in range(_STEPS)) * steps


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _told(seconds: float) -> str:
    """Return a time that does not pretend to be exact.

    Example:
        >>> _told(20), _told(1260), _told(8000)
        ('half a minute', '21 min', '2.2 h')
    """
    if seconds < 45:
        return "half a minute"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
