"""Run folders without training: untrained networks, and any thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from tests.training.plain_config import PLAIN

from labelgap.data import ArrayImages, ImageSource
from labelgap.inference.predict import predict_to_file
from labelgap.models import Classifier, create_backbone
from labelgap.training import Run
from labelgap.training.checkpoint import save_weights
from labelgap.training.config import RunConfig, write_config
from labelgap.training.history import write_history
from labelgap.training.network import IdentityBackbone

CLASSES = ("cat", "dog", "owl")
MARKS = ("measured", "estimated", "default")
CALIBRATION: dict[str, Any] = {"method": "platt", "scale": 2.0, "offset": -0.5, "classes": [True, False, True]}
CALIBRATION |= {"present": 30, "absent": 60, "known": 1.0}
SETTINGS: dict[str, Any] = {"data": {}, "method": "an", "epochs": 1, "lr": 0.1, "backbone_lr": 0.1, "batch_size": 8}


def make_run(
    folder: Path,
    *,
    classes: Sequence[str] = CLASSES,
    backbone: str = "small-cnn",
    head: str = "linear",
    width: int = 5,
    marks: Sequence[str] = MARKS,
    calibration: dict[str, Any] | None = None,
    finished: bool = True,
    protocol: str | None = None,
    **settings: Any,
) -> Run:
    """Write the folder of an untrained run; other classes than ``CLASSES`` have default thresholds."""
    by_default = "linear" if backbone in ("features", "efficientnet-lite0") and head == "linear" else "end-to-end"
    protocol = protocol or by_default
    folder.mkdir(parents=True)
    own = {"classes": tuple(classes), "backbone": backbone, "protocol": protocol, "head": head, "select": "last"}
    write_config(folder, RunConfig.checked(**{**PLAIN, **SETTINGS, **own}, **settings))
    torch.manual_seed(0)
    given = {name: settings[name] for name in ("weights", "size") if name in settings}
    made = IdentityBackbone(width) if backbone == "features" else create_backbone(backbone, **given)
    network = Classifier(made, len(classes), head)
    save_weights(folder, torch.nn.ModuleDict({"head": network.head}) if protocol == "linear" else network, 1)
    thresholds = {"values": [0.4, 0.5, 0.5], "marks": list(marks)}
    if classes is not CLASSES:
        thresholds = {"values": [0.5] * len(classes), "marks": ["default"] * len(classes)}
    summary = {"best_epoch": 1, "epochs": 1, "interrupted": False, "seconds": 1.0, "select": "last", "score": None}
    summary |= {"thresholds": thresholds, **({"calibration": calibration} if calibration else {})}
    write_history(folder, [{"epoch": 1, "loss": 1.0, "seconds": 1.0}], summary if finished else None)
    return Run(folder)


def predict_many(
    folder: str, out: str, count: int = 100, wrap: Callable[[ArrayImages], ImageSource] = lambda images: images
) -> None:
    """Predict images in chunks of 16."""
    torch.set_num_threads(1)
    pixels = np.random.default_rng(0).integers(0, 256, (count, 64, 64), dtype=np.uint8)
    with patch("labelgap.inference.predict.MAX_IMAGES", 16):
        predict_to_file(Run(folder), wrap(ArrayImages(pixels)), out, device="cpu", batch_size=16)


def predict_when_refused(wait: Callable[[], None], folder: str, out: str) -> None:
    """Predict images of which the first waits until another process was refused."""

    class WaitingImages(ArrayImages):
        def __getitem__(self, row: int) -> NDArray[np.uint8]:
            wait()
            return super().__getitem__(row)

    pixels = np.random.default_rng(0).integers(0, 256, (40, 64, 64), dtype=np.uint8)
    predict_to_file(Run(folder), WaitingImages(pixels), out, device="cpu", batch_size=16)
