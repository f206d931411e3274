"""Runs on precomputed features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.training.untrained_run import make_run

from labelgap.core.errors import InputError
from labelgap.data import Dataset, FeatureVectors, Split
from labelgap.labels import LabelTable
from labelgap.models import Classifier
from labelgap.training import Run, open_run
from labelgap.training.fit import fit
from labelgap.training.network import IdentityBackbone


def features(count: int = 60, width: int = 6) -> Dataset:
    """Three classes that the first three features determine."""
    random = np.random.default_rng(1)
    parts: dict[str, Split] = {}
    for split in ("train", "val", "test"):
        vectors = random.normal(size=(count, width)).astype(np.float16)
        names = [f"{split}{number}" for number in range(count)]
        truth = LabelTable.from_dense((vectors[:, :3] > 0).astype(np.int8), ["a", "b", "c"], names)
        parts[split] = Split(split, FeatureVectors(vectors, names), truth, truth)
    train, val, test = parts.values()
    return Dataset("vectors", train, val, test, backbone="features", protocol="linear", flip=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "a"
    return fit(features(), "bce", out=out, epochs=30, lr=0.05, device="cpu", quiet=True)


def test_a_linear_head_learns_on_vectors_and_predicts_when_it_is_opened_again(run: Run) -> None:
    assert (run.config.backbone, run.config.protocol) == ("features", "linear")
    assert run.metrics["test"]["map"] > 0.9
    test = features().split("test")
    assert isinstance(test.images, FeatureVectors)
    opened = open_run(run.path)
    assert isinstance(opened.model, Classifier) and isinstance(opened.model.backbone, IdentityBackbone)
    chance = opened.predict(test.images.vectors, device="cpu")
    assert chance.shape == (60, 3)
    assert np.array_equal(chance, opened.predict(test, device="cpu"))
    assert opened.evaluate(features(), device="cpu")["map"] == run.metrics["test"]["map"]


def test_inputs_of_another_kind_or_width_are_rejected(run: Run, digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pixels"):
        make_run(tmp_path / "a").predict(np.zeros((2, 7), dtype=np.float32), device="cpu")
    with pytest.raises(InputError, match=r"6 features.* 7"):
        run.predict(np.zeros((2, 7), dtype=np.float32), device="cpu")
    with pytest.raises(InputError, match="images"):
        run.predict(digits.split("test"), device="cpu")


def test_a_network_is_rejected_for_vectors_and_vectors_for_images(digits: Dataset, tmp_path: Path) -> None:
    cases = [(features(), {"protocol": "end-to-end"}), (features(), {"backbone": "small-cnn"})]
    for data, wishes in (*cases, (digits, {"backbone": "features"})):
        with pytest.raises(InputError, match="vectors"):
            fit(data, "bce", out=tmp_path / "a", quiet=True, **wishes)  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()
