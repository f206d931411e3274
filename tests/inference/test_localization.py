"""The pointing game: where maps are highest, in pixels of the image as stored, and which boxes that hits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.images import FileImages
from labelgap.inference import localization
from labelgap.inference.localization import pointing_game
from labelgap.labels import LabelTable
from labelgap.metrics.localization import pointing_accuracy
from labelgap.training import Run, fit


@pytest.fixture
def run_and_split(tmp_path: Path) -> tuple[Run, Split]:
    """A run on two photos of 80 × 40 pixels, with three classes."""
    for name in ("a.png", "b.png"):
        Image.new("RGB", (80, 40), (9, 9, 9)).save(tmp_path / name)
    images = FileImages(tmp_path, ["a.png", "b.png"])
    labels = LabelTable.from_dense([[1, 0, 1], [1, 1, 0]], images=["a.png", "b.png"])
    data = Dataset("two", Split("train", images, labels), Split("val", images, labels))
    settings = {"epochs": 1, "batch_size": 2, "trace": "off", "device": "cpu", "quiet": True, "size": 32}
    run = fit(data, "an", backbone="small-cnn", protocol="end-to-end", out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    return run, data.train


def test_the_maximum_is_mapped_back_to_the_image(
    run_and_split: tuple[Run, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, split = run_and_split
    maps = torch.zeros(2, 3, 4, 4)
    maps[:, 0, 1, 2] = maps[:, 1, 3, 0] = maps[:, 2, 0, 3] = 1.0
    # an eighth of 32 pixels a cell; 80 × 40: cell (1, 2) is x 40…60, y 10…20, cell (3, 0) x 0…20, y 30…40
    monkeypatch.setattr(localization, "class_activation_maps", lambda model, images: maps)
    corners = np.array([[41, 11, 59, 19], [0, 0, 79, 5], [0, 31, 19, 39], [41, 11, 59, 19]], dtype=np.float64)
    boxes = Boxes(np.array([0, 1, 1, 0]), np.array([0, 0, 1, 2]), corners, np.array([False, False, False, True]))
    # class 0: hit and miss; class 1: hit; class 2: difficult alone
    assert pointing_game(run, replace(split, boxes=boxes), device="cpu") == pytest.approx((0.5 + 1.0) / 2)
    with pytest.raises(InputError, match="no boxes"):
        pointing_game(run, split)


def test_a_point_on_an_edge_is_inside_and_classes_count_alike() -> None:
    corners = [[0, 0, 4, 4], [10, 10, 12, 12], [5, 5, 6, 6]]
    assert pointing_accuracy([[4, 0]], [3], [0], corners[:1]) == 1.0
    assert pointing_accuracy([[4.1, 0]], [3], [0], corners[:1]) == 0.0
    assert pointing_accuracy([[11, 11], [5, 5], [0, 0]], [0, 1, 1], [0, 0, 1], corners) == 0.75
    with pytest.raises(InputError, match="no box"):
        pointing_accuracy(np.zeros((0, 2)), [], [], np.zeros((0, 4)))
