"""The papers' settings: what ``--preset`` fills in, and that what the user says stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import labelgap as lg
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.models import inference
from labelgap.training.config import RunConfig
from labelgap.training.plan import TrainingRequest, describe_random_features, plan_training
from labelgap.training.presets import PRESETS, describe_missing_settings, preset
from labelgap.training.rerun import fit_arguments


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return lg.load("digits", train=40, val=20, test=20)


@pytest.mark.parametrize(
    ("dataset", "optimizer", "rate"),
    [("voc2012", "sgd", 5e-3), ("coco2014", "adam", 1e-5), ("nuswide", "adam", 1e-5), ("cub", "adam", 7.5e-5)],
)
def test_large_loss_trains_the_head_ten_times_as_fast_with_the_rate_of_its_set(
    dataset: str, optimizer: str, rate: float
) -> None:
    settings = preset("kim2022", method="ll-r", dataset=dataset, protocol=None)
    assert settings.get("optimizer", "adam") == optimizer
    assert settings["backbone_lr"] == rate
    assert settings["lr"] == pytest.approx(10 * rate)
    assert (settings["epochs"], settings["batch_size"], settings["stop_below"]) == (10, 16, 0.03)
    assert (settings["backbone"], settings["size"], settings["protocol"]) == ("resnet50", 448, "end-to-end")


@pytest.mark.parametrize(
    ("dataset", "batch", "rate"),
    [("voc2012", 8, 1e-5), ("coco2014", 16, 1e-5), ("nuswide", 16, 1e-5), ("cub", 8, 1e-4)],
)
def test_acknowledging_the_unknown_has_one_rate_and_never_ends_early(dataset: str, batch: int, rate: float) -> None:
    settings = preset("zhou2022", method="em-apl", dataset=dataset, protocol=None)
    assert (settings["batch_size"], settings["lr"], settings["backbone_lr"]) == (batch, rate, rate)
    assert "stop_below" not in settings


@pytest.mark.parametrize(
    ("method", "dataset", "batch", "rate"),
    [
        ("an-ls", "voc2012", 8, 1e-4),
        ("an-ls", "nuswide", 16, 1e-4),
        ("role", "voc2012", 16, 1e-3),
        ("role", "cub", 8, 1e-3),
    ],
)
def test_single_positives_have_their_own_linear_phase(method: str, dataset: str, batch: int, rate: float) -> None:
    settings = preset("cole2021", method=method, dataset=dataset, protocol="linear-init")
    phase = [settings[f"linear_{name}"] for name in ("epochs", "lr", "batch_size")]
    assert phase == [25, rate, batch]
    assert (settings["epochs"], settings["lr"]) == (10, settings["backbone_lr"])


def test_two_way_takes_large_batches_a_cosine_and_the_last_epoch() -> None:
    settings = preset("kobayashi2023", method="two-way", dataset="coco2014", protocol=None)
    expected = {
        "optimizer": "sgd",
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 1e-4,
        "schedule": "cosine",
        "lr": 0.01,
        "backbone_lr": 0.001,
        "epochs": 40,
        "batch_size": 512,
        "transform": "crop",
        "size": 224,
        "select": "last",
    }
    assert expected.items() <= settings.items()


def test_a_preset_for_open_images_is_the_papers() -> None:
    settings = preset("kim2022", method="ll-ct", dataset="openimages", protocol=None)
    assert (settings["backbone"], settings["size"], settings["batch_size"]) == ("resnet101", 224, 288)
    assert (settings["epochs"], settings["backbone_lr"]) == (20, 2e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_whole_configuration(name: str, digits: Dataset) -> None:
    wishes = TrainingRequest(method="an", preset=name, backbone="small-cnn", protocol="linear-init")
    config = plan_training(digits, wishes).config
    assert config.preset == name and config.protocol == "linear-init"
    assert config.linear_epochs is not None


def test_what_the_user_says_stands_over_the_preset(digits: Dataset) -> None:
    wishes = TrainingRequest(
        method="an", preset="kim2022", backbone="small-cnn", training={"epochs": 3, "size": 64, "lr": 1e-2}
    )
    config = plan_training(digits, wishes).config
    assert (config.backbone, config.epochs, config.size, config.lr) == ("small-cnn", 3, 64, 1e-2)
    assert config.backbone_lr == 1e-3, "in the preset's proportion"
    assert config.stop_below == 0.03


def test_an_unknown_preset_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="kim2022"):
        preset("kim2021", method="an", dataset=None, protocol=None)


def test_the_linear_phase_can_be_set_and_means_nothing_elsewhere(digits: Dataset) -> None:
    config = plan_training(
        digits, TrainingRequest(method="an", protocol="linear-init", training={"linear_epochs": 4})
    ).config
    assert (config.linear_epochs, config.linear_lr, config.linear_batch_size) == (4, 1e-3, 16)
    with pytest.raises(InputError, match="linear-init"):
        plan_training(digits, TrainingRequest(method="an", protocol="end-to-end", training={"linear_epochs": 4}))


@pytest.mark.parametrize("name", PRESETS)
def test_a_head_alone_is_trained_as_in_the_first_phase_of_linear_init(name: str, digits: Dataset) -> None:
    asked: dict[str, Any] = {"method": "role", "options": {"expected_positives": 2.0}, "preset": name}
    alone = plan_training(digits, TrainingRequest(**asked, backbone="small-cnn", protocol="linear")).config
    phase = preset(name, method="role", dataset="digits", protocol="linear-init")
    for setting in ("epochs", "lr", "batch_size"):
        assert getattr(alone, setting) == phase[f"linear_{setting}"]
    assert (alone.optimizer, alone.momentum, alone.backbone_lr) == ("adam", 0.0, alone.lr)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"momentum": 0.9}, "--optimizer sgd"),
        ({"nesterov": True}, "--optimizer sgd"),
        ({"optimizer": "sgd", "momentum": 0.0, "nesterov": True}, "--momentum 0.9"),
        ({"stop_below": 0.03}, "val score"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(setting: dict[str, Any], said: str, digits: Dataset) -> None:
    with pytest.raises(InputError, match=said):
        plan_training(digits, TrainingRequest(method="an", select="last", training=setting))  # type: ignore[arg-type]


def test_a_preset_leaves_out_what_would_do_nothing(digits: Dataset) -> None:
    """The paper's momentum where the user takes Adam, and its early end where there is no score to fall."""
    asked: dict[str, Any] = {"method": "an", "backbone": "small-cnn", "select": "last"}
    config = plan_training(
        digits, TrainingRequest(**asked, preset="kobayashi2023", training={"optimizer": "adam"})
    ).config
    assert (config.optimizer, config.momentum, config.nesterov) == ("adam", 0.0, False)
    config = plan_training(digits, TrainingRequest(**asked, preset="kim2022")).config
    assert config.stop_below is None


@pytest.mark.parametrize(
    "setting",
    [
        {"clip": 1.0},
        {"ema": 0.9},
        {"schedule": "cosine"},
        {"accumulate": 2},
        {"precision": "bf16"},
        {"lr": 0.01, "backbone_lr": 0.5},
    ],
)
def test_settings_of_a_whole_network_are_refused_where_only_a_head_learns(
    setting: dict[str, object], digits: Dataset
) -> None:
    with pytest.raises(InputError, match="whole network"):
        plan_training(digits, TrainingRequest(method="an", protocol="linear", training=setting))  # type: ignore[arg-type]


def test_a_misspelt_setting_is_named_with_the_nearest(digits: Dataset) -> None:
    with pytest.raises(UnknownNameError, match="batch_size"):
        plan_training(digits, TrainingRequest(method="an", training={"batchsize": 4}))  # type: ignore[typeddict-unknown-key]


def test_a_gpu_trains_photos_in_two_phases_and_in_bf16_unless_told_otherwise(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: not including_emulation)
    photos, cuda = replace(digits, protocol="linear"), torch.device("cuda")
    request = TrainingRequest(method="an", backbone="small-cnn")
    config = plan_training(photos, request, cuda).config
    assert (config.protocol, config.precision) == ("linear-init", "bf16")
    resumed = plan_training(photos, request, torch.device("cpu"), stored=config).config
    assert resumed == config, "what depends on the device stays as the run was begun"
    config = plan_training(photos, request, torch.device("cpu")).config
    assert (config.protocol, config.precision) == ("linear", "float32")


def test_a_head_alone_is_trained_on_a_pretrained_backbone_unless_another_is_given(digits: Dataset) -> None:
    def resolve(**given: Any) -> RunConfig:
        return plan_training(digits, TrainingRequest(method="an", **given)).config

    assert resolve().backbone == resolve(protocol="linear-init").backbone == "small-cnn", "the network is trained"
    chosen = resolve(protocol="linear")
    assert chosen.backbone == "efficientnet-lite0" and describe_random_features(chosen) is None
    assert describe_random_features(resolve()) is None
    assert resolve(protocol="linear", weights=__file__).backbone == "small-cnn"
    random = describe_random_features(resolve(protocol="linear", backbone="small-cnn"))
    assert random is not None and random.startswith("the weights of small-cnn are random")


def test_a_run_records_the_precision_of_its_features(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, photos = torch.device("cpu"), replace(digits, protocol="linear", backbone="efficientnet-lite2")

    def resolve(stored: RunConfig | None = None, **settings: Any) -> RunConfig:
        request = TrainingRequest(method="an", protocol=settings.pop("protocol", None), training=settings)  # type: ignore[arg-type]
        return plan_training(photos, request, cpu, stored).config

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
    with pytest.raises(InputError, match="use auto"):
        TrainingRequest(method="an", training={"precision": "float16"}).check()


def test_a_preset_without_settings_for_a_data_set_says_so() -> None:
    for name, own in (("kim2022", "openimages"), ("cole2021", "voc2007"), ("kobayashi2023", "csv")):
        assert describe_missing_settings(name, own) is None
    for name, other in (("kim2022", "csv"), ("cole2021", "openimages"), ("zhou2022", None)):
        assert (
            describe_missing_settings(name, other)
            == f"{name} has no settings for this data set: those of COCO are used"
        )
