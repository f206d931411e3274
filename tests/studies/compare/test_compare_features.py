"""The features that a comparison shares: computed once, by a network that has learned something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.studies.compare.small_features import features

from labelgap.core.errors import InputError
from labelgap.data import load
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import ArrayImages
from labelgap.labels import LabelTable
from labelgap.models import Backbone, InputSpec
from labelgap.studies.compare import compare
from labelgap.studies.compare import heads as compare_heads
from labelgap.studies.compare.heads import compute_split_features
from labelgap.training.plan import default_linear_backbone
from labelgap.training.progress import Reporter

CPU = torch.device("cpu")


class Means(Backbone):
    """Means over the colours of a picture; counts its batches."""

    batches = 0

    def __init__(self) -> None:
        super().__init__(num_features=3, input_spec=InputSpec(size=4, mean=(0.5,) * 3, std=(0.5,) * 3, channels=3))

    def feature_maps(self, images: torch.Tensor) -> torch.Tensor:
        type(self).batches += 1
        return images


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compare_heads, "create_backbone", lambda name, weights, size: Means())
    Means.batches = 0
    random = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        pixels = random.integers(0, 255, (40, 6, 6, 3), dtype=np.uint8)
        table = LabelTable.from_dense(pixels.mean(axis=(1, 2)) > 127)
        parts[name] = Split(name, ArrayImages(pixels), table)
    return Dataset("colours", **parts)


def test_features_of_photos_are_computed_once(photos: Dataset, tmp_path: Path) -> None:
    def run(*names: str) -> list[str]:
        settings: dict[str, Any] = {"seeds": 1, "epochs": 1, "grid": "small", "baseline": False}
        made = compare(photos, names, device="cpu", quiet=True, out=tmp_path / "c", **settings)
        return [row.method for row in made.methods]

    assert run("an") == ["an"]
    before = Means.batches
    assert before > 0 and sorted(run("an", "asl")) == ["an", "asl"] and Means.batches == before


def test_vectors_are_used_without_a_backbone() -> None:
    data = features()
    splits, _ = compute_split_features(data, "features", None, CPU, 0, Reporter(quiet=True))
    assert np.array_equal(splits["train"].numpy(), data.train.images.vectors)  # type: ignore[attr-defined]
    assert {name: len(values) for name, values in splits.items()} == {"train": 90, "val": 110, "test": 80}


def test_an_untrained_network_is_refused_and_never_the_default() -> None:
    digits = load("digits", train=10, val=10, test=10)
    assert digits.backbone == "small-cnn" and default_linear_backbone(digits) == "efficientnet-lite0"
    assert default_linear_backbone(features()) == "features"
    with pytest.raises(InputError, match="no pretrained weights"):
        compute_split_features(digits, "small-cnn", None, CPU, 0, Reporter(quiet=True))


def test_other_weights_in_the_same_file_are_another_network(photos: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    fingerprints = []
    for content in (b"one", b"two", b"one"):
        file.write_bytes(content)
        _, fingerprint = compute_split_features(photos, "resnet50", str(file), CPU, 0, Reporter(quiet=True))
        fingerprints.append(fingerprint)
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]
