"""What is decided before a training: the papers' settings, what the user says, and what it will cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.models import inference
from labelgap.training.config import RunConfig
from labelgap.training.fit import dry_run
from labelgap.training.plan import (
    NETWORK_RECIPE,
    TrainingRequest,
    describe_random_features,
    plan_training,
    resolve_settings,
)
from labelgap.training.presets import PRESETS, preset
from labelgap.training.rerun import fit_arguments


def of(name: str, method: str, dataset: str, *settings: str, protocol: str | None = None) -> tuple[Any, ...]:
    found = preset(name, method=method, dataset=dataset, protocol=protocol)
    return tuple(found.get(setting) for setting in settings)


def test_the_settings_of_the_papers_are_theirs() -> None:
    rates = ("optimizer", "lr", "backbone_lr", "batch_size")
    for dataset, optimizer, rate in (("voc2012", "sgd", 5e-3), ("coco2014", None, 1e-5), ("cub", None, 7.5e-5)):
        assert of("kim2022", "ll-r", dataset, *rates) == (optimizer, pytest.approx(10 * rate), rate, 16)
    whole = ("backbone", "size", "protocol", "epochs", "stop_below")
    assert of("kim2022", "ll-r", "voc2012", *whole) == ("resnet50", 448, "end-to-end", 10, 0.03)
    assert of("kim2022", "ll-ct", "openimages", *whole[:2], "epochs", *rates[2:]) == ("resnet101", 224, 20, 2e-5, 288)
    for dataset, batch, rate in (("voc2012", 8, 1e-5), ("nuswide", 16, 1e-5), ("cub", 8, 1e-4)):
        assert of("zhou2022", "em-apl", dataset, *rates, "stop_below") == (None, rate, rate, batch, None)
    phase = ("linear_epochs", "linear_lr", "linear_batch_size", "epochs")
    cases = (("an-ls", "voc2012", 8, 1e-4), ("an-ls", "nuswide", 16, 1e-4), ("role", "voc2012", 16, 1e-3))
    for method, dataset, batch, rate in (*cases, ("role", "cub", 8, 1e-3)):
        assert of("cole2021", method, dataset, *phase, protocol="linear-init") == (25, rate, batch, 10)
    names = ("momentum", "nesterov", "weight_decay", "schedule", "epochs", "transform", "size", "select")
    assert of("kobayashi2023", "two-way", "coco2014", *rates) == ("sgd", 0.01, 0.001, 512)
    assert of("kobayashi2023", "two-way", "coco2014", *names) == (0.9, True, 1e-4, "cosine", 40, "crop", 224, "last")


def decide(data: Dataset, device: str = "cpu", stored: RunConfig | None = None, **asked: Any) -> RunConfig:
    """The configuration of a run with method "an", and the small network if no backbone is given."""
    request = TrainingRequest.of({"method": "an", "backbone": "small-cnn", **asked})
    return plan_training(data, request, torch.device(device), stored).config


def test_what_the_user_says_stands_over_the_preset(digits: Dataset) -> None:
    config = decide(digits, preset="kim2022", epochs=3, size=64, lr=1e-2)
    assert (config.backbone, config.epochs, config.size, config.lr) == ("small-cnn", 3, 64, 1e-2)
    assert config.backbone_lr == 1e-3, "in the preset's proportion"
    assert config.stop_below == 0.03


def test_the_linear_phase_can_be_set_and_is_whole_in_every_preset(digits: Dataset) -> None:
    config = decide(digits, protocol="linear-init", linear_epochs=4)
    assert (config.linear_epochs, config.linear_lr, config.linear_batch_size) == (4, 1e-3, 16)
    for name in PRESETS:
        config = decide(digits, preset=name, protocol="linear-init")
        assert (config.preset, config.protocol) == (name, "linear-init") and config.linear_epochs is not None


OF_NETWORKS: list[dict[str, Any]] = [
    {"clip": 1.0},
    {"optimizer": "adamw"},
    {"precision": "bf16"},
    {"lr": 0.01, "backbone_lr": 0.5},
]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"momentum": 0.9}, "--optimizer sgd"),
        ({"nesterov": True}, "--optimizer sgd"),
        ({"optimizer": "sgd", "momentum": 0.0, "nesterov": True}, "--momentum 0.9"),
        ({"stop_below": 0.03}, "val score"),
        ({"linear_epochs": 4, "protocol": "end-to-end"}, "linear-init"),
        *(({**each, "protocol": "linear"}, "whole network") for each in OF_NETWORKS),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(setting: dict[str, Any], named: str, digits: Dataset) -> None:
    with pytest.raises(InputError, match=named):
        decide(digits, select="last", **setting)


def test_a_preset_leaves_out_what_would_do_nothing(digits: Dataset) -> None:
    """The paper's momentum where the user takes Adam, and its early end where there is no score to fall."""
    config = decide(digits, preset="kobayashi2023", optimizer="adam", select="last")
    assert (config.optimizer, config.momentum, config.nesterov) == ("adam", 0.0, False)
    assert decide(digits, preset="kim2022", select="last").stop_below is None


def test_a_gpu_trains_photos_in_two_phases_and_in_bf16(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: not including_emulation)
    photos = replace(digits, protocol="linear")
    config, on_cpu = (decide(photos, device) for device in ("cuda", "cpu"))
    assert (config.protocol, config.precision) == ("linear-init", "bf16")
    assert decide(photos, stored=config) == config, "what depends on the device stays as the run was begun"
    assert (on_cpu.protocol, on_cpu.precision) == ("linear", "float32")


def test_a_head_alone_is_trained_on_a_pretrained_backbone_unless_another_is_given(digits: Dataset) -> None:
    def chosen(**given: Any) -> RunConfig:
        return decide(digits, backbone=given.pop("backbone", None), **given)

    assert chosen().backbone == chosen(protocol="linear-init").backbone == "small-cnn", "the network is trained"
    head = chosen(protocol="linear")
    assert head.backbone == "efficientnet-lite0" and describe_random_features(head) is None
    assert describe_random_features(chosen()) is None
    assert chosen(protocol="linear", weights=__file__).backbone == "small-cnn"
    assert "small-cnn" in str(describe_random_features(chosen(protocol="linear", backbone="small-cnn")))


def test_a_run_records_the_precision_of_its_features(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = replace(digits, protocol="linear")

    def resolve(stored: RunConfig | None = None, **settings: Any) -> RunConfig:
        return decide(photos, stored=stored, backbone="efficientnet-lite2", **settings)

    monkeypatch.setattr(inference, "cpu_precision", lambda: "bfloat16")
    config, exact = resolve(), resolve(precision="float32")
    assert (config.precision, config.feature_precision) == ("bf16", "bfloat16")
    assert (exact.precision, exact.feature_precision) == ("float32", "float32")
    assert "precision" not in fit_arguments(config), "another machine decides for itself"
    assert fit_arguments(exact)["precision"] == "float32"
    network = resolve(protocol="linear-init", precision="bf16")
    assert (network.precision, network.feature_precision) == ("bf16", "float32")
    monkeypatch.setattr(inference, "cpu_precision", lambda: "float16")
    assert resolve().feature_precision == "float16" and resolve(config) == config
    with pytest.raises(InputError, match="auto"):
        TrainingRequest(method="an", training={"precision": "float16"}).check()


def network_settings(given: dict[str, Any], **network: Any) -> dict[str, Any]:
    return resolve_settings("end-to-end", True, {}, given, **network)


def test_a_network_with_batch_norm_is_trained_by_sgd_and_any_other_by_adamw() -> None:
    sgd, adamw = network_settings({}), network_settings({}, batch_norm=False)
    assert (sgd["optimizer"], sgd["lr"], sgd["backbone_lr"], sgd["momentum"]) == ("sgd", 0.1, 0.01, 0.9)
    assert (adamw["optimizer"], adamw["backbone_lr"]) == ("adamw", 2e-5) and "momentum" not in adamw
    assert NETWORK_RECIPE.items() <= sgd.items() and NETWORK_RECIPE.items() <= adamw.items()
    assert (sgd["transform"], sgd["average_flips"]) == ("augment", True)
    fixed = network_settings({}, flip=False)
    assert (fixed["transform"], fixed["average_flips"]) == ("resize", False)


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
