"""What a run will cost, told before it begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import labelgap as lg
from labelgap.data.dataset import Dataset
from labelgap.models import Classifier
from labelgap.training import cost
from labelgap.training.cost import CostEstimate, _bytes_on_gpu
from labelgap.training.fit import dry_run
from labelgap.training.network import build_classifier
from labelgap.training.plan import TrainingRequest, plan_training


@pytest.fixture
def photos(tmp_path: Path) -> Dataset:
    random = np.random.default_rng(0)
    rows = ["image,split,red,green"]
    for number in range(24):
        Image.fromarray(random.integers(0, 255, (20, 20, 3)).astype(np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'val' if number % 4 == 0 else 'train'},{number % 2},{number % 3 % 2}")
    (tmp_path / "tags.csv").write_text("\n".join(rows))
    return lg.load("csv", tmp_path / "tags.csv", images=tmp_path)


def wishes(protocol: str = "end-to-end", **training: Any) -> TrainingRequest:
    return TrainingRequest(method="an", backbone="small-cnn", protocol=protocol, training=training)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", ["linear", "end-to-end", "linear-init"])
def test_every_protocol_is_measured(
    protocol: str, photos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    measured = dry_run(photos, wishes(protocol, epochs=2, batch_size=8), device="cpu")
    assert 0 < measured.seconds < 600 and measured.memory > 0 and measured.disk > 0 and not measured.folds
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_batch_that_takes_long_is_not_measured_whole(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    request = wishes(batch_size=8)
    sizes: list[int] = []
    forward = Classifier.forward

    def counting(network: Classifier, values: torch.Tensor) -> torch.Tensor:
        sizes.append(len(values))
        return forward(network, values)

    monkeypatch.setattr(Classifier, "forward", counting)
    dry_run(photos, request, device="cpu")
    assert set(sizes) == {2, 8}
    sizes.clear()
    monkeypatch.setattr(cost, "MAX_SECONDS", 0.0)
    assert dry_run(photos, request, device="cpu").seconds > 0 and sizes == [2]


def test_images_on_a_gpu_count_as_far_as_they_fit(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(plan_training(photos, wishes()), device=torch.device("cuda"))
    network = build_classifier(plan.config, None)
    spec = network.backbone.input_spec
    image = spec.channels * spec.size**2
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    for free, stored in ((24, 24), (23, 18), (17, 6)):  # 18 images of train, 6 of val
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (4 * free * image, 0))
        assert _bytes_on_gpu(plan, network) == stored * image


def test_what_is_long_and_what_is_left_out_are_told(photos: Dataset) -> None:
    def suggested(seconds: float, device: str, protocol: str) -> bool:
        return "--protocol linear" in str(CostEstimate(seconds, 1000, 1000, device, protocol))

    hours = [
        (4000, "cpu", "end-to-end"),
        (3000, "cpu", "end-to-end"),
        (4000, "cuda", "end-to-end"),
        (4000, "cpu", "linear"),
    ]
    assert [suggested(*each) for each in hours] == [True, False, False, False]
    measured = dry_run(replace(photos, val=None), wishes("linear"), device="cpu")
    assert measured.folds == 5 and "5 folds" in str(measured)
    one, many = (min(dry_run(photos, wishes(epochs=n), device="cpu").seconds for _ in range(2)) for n in (1, 10_000))
    assert 1000 < many / one < 100_000
