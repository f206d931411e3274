"""A run can be had again from its settings: by the command line, and by Python where that has no words for it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.sample_photos import write_color_photos

import labelgap as lg
import labelgap.data.readers.digits as digits_of
import labelgap.training
from labelgap.cli.main import main
from labelgap.core.cache import list_rows
from labelgap.data.dataset import Dataset
from labelgap.training.config import RunConfig
from labelgap.training.plan import TrainingRequest, plan_training
from labelgap.training.presets import PRESETS
from labelgap.training.rerun import fit_arguments, train_command, train_script, without_directories

Parse = Callable[[str], RunConfig]

NETWORK: dict[str, Any] = {"protocol": "end-to-end", "backbone": "small-cnn"}
PRETRAINED: dict[str, Any] = {"protocol": "linear-init", "backbone": "efficientnet-lite0"}
MANY: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.8, "nesterov": True, "weight_decay": 1e-4, "warmup": 0.5}
MORE: dict[str, Any] = {"schedule": "cosine", "clip": 1.5, "ema": 0.99, "accumulate": 2, "stop_below": 0.03, "size": 48}
WISHES: list[dict[str, Any]] = [
    {},
    {"method": "ll-r", "options": {"delta_rel": 0.30000000000000004}, "seed": 7, "trace": "off"},
    {"method": "em-apl", "options": {"beta": 0.9, "hard": True}, "epochs": 12, "select": "last", "trace": 100},
    {"method": "an", **NETWORK, **MANY, **MORE, "epochs": 3, "lr": 3e-3, "backbone_lr": 1e-5, "batch_size": 8},
    {"method": "two-way", "options": {"unknown": "negative"}, **NETWORK, "accumulate": 4, "allow_micro_batch": True},
    {"method": "an", **NETWORK, "protocol": "linear-init", "linear_epochs": 3, "linear_lr": 0.01, "transform": "crop"},
    {"method": "an", **NETWORK, "optimizer": "sgd", "momentum": 0.0, "head": "boostlu", "precision": "bf16"},
    {"method": "an", "protocol": "linear", "backbone": "small-cnn", "lr": 0.01},
    {"method": "an", **PRETRAINED},
    {"method": "an", **PRETRAINED, "optimizer": "adam", "transform": "resize", "average_flips": False},
    {"method": "an", **PRETRAINED, "attention_weight": 0.1, "attention_temperature": 2.0, "average_sizes": [224, 288]},
    {"method": "an", **PRETRAINED, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0, "average_flips": True},
    *({"method": "an", "preset": preset, **NETWORK} for preset in PRESETS),
    {"method": "an", "preset": "kobayashi2023", "backbone": "small-cnn", "protocol": "linear", "schedule": "constant"}
    | {"transform": "resize", "optimizer": "adam", "nesterov": False},
    {"method": "ll-r", "preset": "kim2022", **NETWORK, "protocol": "linear-init", "lr": 0.5, "select": "last"},
]


def decided(data: Dataset, **asked: Any) -> RunConfig:
    """What ``fit`` would do, without doing it."""
    return plan_training(data, TrainingRequest.of(asked), torch.device("cpu")).config


def same(one: RunConfig, other: RunConfig) -> bool:
    return one.fingerprint() == other.fingerprint()


@pytest.fixture(scope="module")
def digits() -> Iterator[Dataset]:
    """The digits as they come with the package, but for their number: the command knows no other word for them."""
    few = digits_of._generate(96, 40, 40, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits_of, "_generate", lambda *counts: few)
        yield lg.load("digits")


def call(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command as a shell would."""
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code, line


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve photos in a folder with a space in its name, and a CSV with gaps."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_color_photos("my photos", "my tags.csv", extra="width")
    return tmp_path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Parse:
    """Give a line to the command, and get what it would have trained."""
    found: list[RunConfig] = []

    def fit(data: Dataset, **arguments: Any) -> Any:
        execution = ("out", "device", "workers", "resume", "accept_changes", "log")
        found.append(decided(data, **{name: arguments[name] for name in arguments if name not in execution}))
        return SimpleNamespace(finished=False)

    def parse(line: str) -> RunConfig:
        monkeypatch.setattr(lg, "fit", fit)
        call(line, monkeypatch)
        return found[-1]

    return parse


@pytest.mark.parametrize("wishes", WISHES)
def test_the_command_of_a_run_on_digits_repeats_it(wishes: dict[str, Any], digits: Dataset, parsed: Parse) -> None:
    config = decided(digits, **wishes)
    assert same(decided(digits, **fit_arguments(config)), config)
    command = train_command(config)
    assert command is not None and command.startswith("labelgap train digits --method ")
    assert same(parsed(command), config)


@pytest.mark.parametrize(
    ("options", "draw", "written"),
    [
        ({}, {"positives": 1}, "1,negatives=all"),
        ({"zeros": "unknown", "duplicates": "off", "on_bad_image": "skip"}, {"positives": 1}, "1,negatives=all"),
        (
            {"allow_leaks": True, "delimiter": ","},
            {"positives": "labels", "share": 0.3},
            "labels,negatives=all,share=0.3",
        ),
        (
            {"classes": ["green", "red"], "encoding": "utf-8"},
            {"positives": "rare-overlooked"},
            "rare-overlooked,negatives=all,share=0.5",
        ),
        ({"rename": {"red": "dark red", "green": "a=b"}, "unlisted": "unknown"}, {"positives": 1}, "1,negatives=all"),
    ],
)
def test_the_command_of_a_run_on_a_csv_repeats_it(
    options: dict[str, Any], draw: dict[str, Any], written: str, photos: Path, parsed: Parse
) -> None:
    data = lg.load("csv", "my tags.csv", images="my photos", ignore_columns=["width"], **options)
    config = decided(data.observe(**draw, negatives="all", seed=3), method="an", epochs=2)
    command = train_command(config)
    assert command is not None and "'csv=my tags.csv' --images 'my photos'" in command
    assert f"--observe positives={written} --label-seed 3" in command
    assert same(parsed(command), config)


def test_the_command_of_a_run_gives_the_same_run(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = lg.load("csv", "my tags.csv", images="my photos", ignore_columns=["width"])
    first = lg.fit(data, out="runs/first", epochs=2, seed=3, size=64, device="cpu", quiet=True)
    command = train_command(first.config)
    assert command is not None
    call(command, monkeypatch)
    again = lg.open_run("runs/rerun")
    assert same(again.config, first.config) and again.config.why is None and first.config.why is not None
    assert (again.path / "best.safetensors").read_bytes() == (first.path / "best.safetensors").read_bytes()
    assert "search" in first.metrics
    assert [entry.count for entry in list_rows() if "backbone" in entry.metadata] == [12], "features are computed once"
    assert {**again.metrics, "seconds": 0, "search": None} == {**first.metrics, "seconds": 0, "search": None}


def test_python_says_what_the_command_cannot(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    data = lg.load("digits", train=40, val=20, test=0).observe("salient", 1)
    data = data.observe("small-overlooked", 0, seed=4, splits=["train", "val"], side=12.5)
    config = decided(data, method="an", epochs=2)
    assert train_command(config) is None
    found: list[RunConfig] = []
    monkeypatch.setattr(lg, "fit", lambda data, out, **asked: found.append(decided(data, **asked)))
    exec(train_script(config), {})
    assert same(found[0], config)


CSV = {"name": "csv", "path": "a.csv", "options": {}, "steps": []}
OPTIONS: list[dict[str, Any]] = [{"seed": 3}, {"classes": ["cat, small", "dog"]}, {"classes": []}]
OPTIONS += [{"rename": {"a=b": "c"}}]
RECIPES: list[dict[str, Any]] = [
    {},
    {"name": "digits", "path": None, "options": {"train": 96}, "steps": []},
    *({**CSV, "options": each} for each in OPTIONS),
    {**CSV, "steps": [{"reveal": {"splits": ["train"]}}]},
]
VALUES = [None, [0.5], [], [[1, 2], [3, 4]], "1e3", "true", " a", "a,b", {"a": 1}]


@pytest.mark.parametrize(
    "changed", [*({"data": recipe} for recipe in RECIPES), *({"options": {"priors": value}} for value in VALUES)]
)
def test_there_is_no_command_where_it_would_be_read_otherwise(changed: dict[str, Any], digits: Dataset) -> None:
    assert train_command(decided(digits, method="an").model_copy(update=changed)) is None


@pytest.mark.parametrize(("value", "text"), [([0.1, 1], "0.1,1"), (False, "false"), (1e-07, "1e-07"), ("all", "all")])
def test_an_option_is_written_as_it_is_read(value: Any, text: str, digits: Dataset) -> None:
    command = train_command(decided(digits, method="an").model_copy(update={"options": {"priors": value}}))
    assert command is not None and f"--option priors={text} " in command


def test_folders_are_cut_off_where_a_configuration_is_passed_on(digits: Dataset, tmp_path: Path) -> None:
    recipe = {"name": "csv", "path": str(tmp_path / "tags.csv"), "options": {"images": str(tmp_path)}, "steps": []}
    config = decided(digits, method="an").model_copy(update={"data": recipe, "weights": str(tmp_path / "w.pth")})
    command = train_command(without_directories(config))
    assert command is not None and str(tmp_path.parent) not in command
    assert f"csv=tags.csv --images {tmp_path.name} " in command and "--weights w.pth" in command
    kept = {**recipe, "path": "data/tags.csv", "options": {}}
    assert without_directories(config.model_copy(update={"data": kept})).data == kept
