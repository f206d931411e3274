"""A linear head that starts from the zero-shot scores of the class names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.open_clip_models import SIZE, TINY, open_clip_or_skip, save_weights

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data import ArrayImages, Split
from labelgap.models import LinearHead, create_backbone
from labelgap.models.open_clip import zero_shot_classifier

CLASSES = ("dog", "cat", "zebra")


@pytest.fixture(scope="module", autouse=True)
def open_clip() -> None:
    open_clip_or_skip()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "tiny.pt"
    save_weights(path)
    return path


@pytest.fixture(scope="module")
def data(weights: Path) -> lg.Dataset:
    """Images of noise; what is known to be present follows the zero-shot scores."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (70, SIZE, SIZE, 3), dtype=np.uint8)
    logits = features_of(images, weights) @ zero_shot_classifier(TINY, CLASSES, weights=weights).weight.T
    z = (logits - logits.mean(axis=0)) / logits.std(axis=0)
    present = random.random(z.shape) < 1 / (1 + np.exp(1.0 - 2.0 * z))
    codes = np.where(present & (random.random(z.shape) < 0.7), 1, -1).astype(np.int8)
    codes[50:] = present[50:]
    table = lg.LabelTable.from_dense(codes, classes=CLASSES)
    train, val = (
        Split(name, ArrayImages(images[rows]), table.select(rows))
        for name, rows in (("train", np.arange(50)), ("val", np.arange(50, 70)))
    )
    return lg.Dataset("noise", train, val)


def features_of(images: Any, weights: Path) -> Any:
    backbone = create_backbone(TINY, weights=weights).eval()
    with torch.inference_mode():
        return backbone(backbone.normalize(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))).numpy()


def prior(data: lg.Dataset, weights: Path) -> Any:
    """The logits of the prior on train, from the formula."""
    features = features_of(np.stack([data.train.images[row] for row in range(50)]), weights)
    logits = features @ zero_shot_classifier(TINY, CLASSES, weights=weights).weight.T
    z = (logits - logits.mean(axis=0)) / logits.std(axis=0)
    present = data.train.labels.to_dense() == 1
    n, m = present.sum(), (~present).sum()
    target = np.where(present, (n + 1) / (n + 2), 1 / (m + 2))

    def loss(line: Any) -> float:
        x = line[0] * z + line[1]
        return float((np.logaddexp(0, x) - target * x).sum())

    slope, intercept = minimize(loss, [1.0, 0.0], method="BFGS").x
    assert slope > 0.5
    return slope * z + intercept


@pytest.mark.parametrize("protocol", ["linear", "linear-init"])
def test_a_run_starts_from_the_prior(
    data: lg.Dataset, weights: Path, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a learning rate of next to nothing it also ends there."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    settings: dict[str, Any] = {"backbone": TINY, "weights": weights, "protocol": protocol, "epochs": 1, "lr": 1e-12}
    if protocol == "linear-init":
        settings |= {"linear_lr": 1e-12, "backbone_lr": 1e-12, "average_flips": False}
    run = lg.fit(data, "an", head="zero-shot", out=tmp_path / "run", device="cpu", quiet=True, **settings)
    opened = lg.open_run(run.path)
    assert isinstance(opened.model.head, LinearHead) and opened.config.head == "zero-shot"
    logits = opened.logits(data.train.images, device="cpu", workers=0)
    np.testing.assert_allclose(logits, prior(data, weights), atol=5e-3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"backbone": "small-cnn", "weights": None}, "text tower"),
        ({"protocol": "end-to-end"}, "--protocol linear or linear-init"),
        ({"optimizer": "newton"}, "--folds 0 --optimizer adam"),
        ({"weights": "none"}, "random weights"),
    ],
)
def test_where_there_is_no_such_start_it_is_refused(
    data: lg.Dataset, weights: Path, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    settings = {"backbone": TINY, "weights": weights, "protocol": "linear", "epochs": 1, "device": "cpu", **changed}
    with pytest.raises(InputError, match=message):
        lg.fit(data, "an", head="zero-shot", out=tmp_path / "run", quiet=True, **settings)
