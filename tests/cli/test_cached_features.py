"""The commands share the feature cache: a photo is computed once, whichever asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.cli.conftest import call

import labelgap as lg
from labelgap.models import Backbone, InputSpec, WeightsInfo
from labelgap.models.registry import BACKBONES
from labelgap.training import features


class Colors(Backbone):
    """The mean of every color; counts the images of all its objects."""

    computed = 0

    def __init__(self) -> None:
        weights = WeightsInfo("arithmetic", "none needed")
        spec = InputSpec(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
        super().__init__(num_features=3, input_spec=spec, weights=weights, name="colors")

    def feature_maps(self, images: torch.Tensor) -> torch.Tensor:
        type(self).computed += len(images)
        return images


@pytest.fixture
def album(photos: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve photos whose states are trusted at once, and the backbone "colors"."""
    monkeypatch.setattr(features, "_SETTLED", -1_000_000_000)
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES._entries))
    lg.register_backbone("colors", Colors, weights=WeightsInfo("arithmetic", "none needed"))
    return photos


def computed(*arguments: str) -> int:
    """Run a command, and return how many photos its network computed."""
    Colors.computed = 0
    assert call(*arguments) == 0
    return Colors.computed


def test_a_photo_is_computed_once_for_all_commands(album: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "train tags.csv --images photos --backbone colors --protocol linear --epochs 2"
    train = (*words.split(), "--no-images")  # the report computes maps of the images that it shows
    data = ("tags.csv", "--images", "photos")
    assert computed(*train, "--out", "runs/a") >= 12, "and a few to measure the cost"
    assert computed("evaluate", "runs/a", *data, "--split", "all", "--resamples", "0") == 0
    assert "4 from the cache" in capsys.readouterr().err
    assert computed("compare", *data, "--backbone", "colors", "--methods", "an", "--epochs", "1", "--out", "c") == 0
    assert computed("linear-eval", *data, "--backbone", "colors", "--out", "l") == 0
    assert computed("audit", "runs/a", "--folds", "2") == 0
    assert computed("predict", "runs/a", "photos", "--out", "first.csv") == 0
    assert "12 of 12 images" in capsys.readouterr().err
    Path("photos/0.jpg").rename("photos/zero.jpg")
    assert computed("predict", "runs/a", "photos", "--out", "second.csv") == 1, "nothing is hashed, nothing stored"
