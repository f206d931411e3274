"""A run and images to predict, in small chunks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.training.untrained_run import CALIBRATION, make_run

from labelgap.data import ArrayImages
from labelgap.inference import predict as predict_module
from labelgap.training import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "a", calibration=CALIBRATION)


@pytest.fixture(scope="module")
def images() -> ArrayImages:
    random = np.random.default_rng(0)
    names = [f"photo {number}.png" for number in range(150)]
    return ArrayImages(random.integers(0, 256, (150, 64, 64), dtype=np.uint8), names)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_module, "MAX_IMAGES", 16)
