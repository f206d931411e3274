"""The settings of a run as text: all that differ from the defaults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training.plain_config import PLAIN

from labelgap.reporting import write_report
from labelgap.reporting.descriptions import describe_settings
from labelgap.training import Run
from labelgap.training.config import RunConfig


def described(everything: bool = False, **settings: Any) -> dict[str, str]:
    return dict(describe_settings(RunConfig.checked(**PLAIN | settings), everything=everything))


def test_a_plain_run_has_few_settings() -> None:
    assert list(described()) == [
        "method", "options", "backbone", "images", "protocol", "epochs", "batch size", "optimizer", "learning rate",
        "precision", "epoch selection", "seed",
    ]  # fmt: skip


def test_everything_includes_the_defaults() -> None:
    words = described(everything=True)
    assert words["head"] == "linear" and words["preset"] == "none" and words["schedule"] == "constant"
    assert words["gradient clipping"] == "none" and words["weight averaging"] == "none"
    assert "first phase" not in words


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ({"head": "boostlu"}, "head", "boostlu"),
        ({"preset": "kim2022"}, "preset", "kim2022: the paper's settings unless stated otherwise"),
        ({"options": {"delta_rel": 0.3}}, "options", "delta_rel 0.3, base unknown"),
        ({"backbone_lr": 1e-5}, "learning rate", "head 0.003, backbone 1e-05"),
        ({"backbone_lr": 1e-5, "protocol": "linear"}, "learning rate", "0.003"),
        ({"schedule": "cosine"}, "schedule", "cosine"),
        ({"warmup": 2}, "warmup", "2 epochs"),
        ({"optimizer": "sgd", "momentum": 0.9, "nesterov": True}, "optimizer", "SGD, momentum 0.9, Nesterov"),
        ({"weight_decay": 1e-4, "momentum": 0.9}, "optimizer", "Adam, weight decay 0.0001"),
        ({"optimizer": "adamw", "weight_decay": 0.05}, "optimizer", "AdamW, weight decay 0.05"),
        ({"optimizer": "newton"}, "optimizer", "Newton's method, all images in a step"),
        ({"average_flips": True}, "logits", "averaged over an image and its mirror image"),
        ({"clip": 1.0}, "gradient clipping", "to a norm of 1"),
        ({"ema": 0.999}, "weight averaging", "exponential, decay 0.999"),
        ({"accumulate": 4}, "gradient accumulation", "over 4 batches"),
        ({"stop_below": 0.03}, "epochs", "at most 4; stops 3 points below the best val score"),
        ({"size": 448, "flip": True}, "images", "resized to 448 × 448 pixels, flipped at random"),
        (
            {"transform": "augment", "size": 448},
            "images",
            "resized to 448 × 448 pixels, then cropped, turned, sheared, shifted and changed in color at random",
        ),
        ({"transform": "crop"}, "images", "random crops with color jitter, resized to the backbone's size"),
        ({"precision": "bf16"}, "precision", "bfloat16 autocast"),
        ({"precision": "bf16", "protocol": "linear"}, "precision", "features in bfloat16, the head in float32"),
        ({"weights": str(Path("/") / "a" / "b.pth")}, "backbone", "small-cnn, weights of b.pth"),
        ({"method": "somebody's", "options": {"a": 1}}, "options", "a 1"),
        (
            {"protocol": "linear-init", "linear_epochs": 25, "linear_lr": 1e-3, "linear_batch_size": 16},
            "first phase",
            "the head alone: 25 epochs of Adam at 0.001, batches of 16",
        ),
    ],
)
def test_a_setting_that_is_not_the_default_is_described(settings: dict[str, Any], name: str, words: str) -> None:
    assert described(**settings)[name] == words


def test_settings_that_differ_from_the_defaults_are_on_the_page(run_of: Callable[..., Run], undrawn: None) -> None:
    run = run_of()
    phase = {"linear_epochs": 25, "linear_lr": 1e-3, "linear_batch_size": 16}
    settings = {"head": "boostlu", "preset": "kim2022", "protocol": "linear-init", **phase}
    run.config = run.config.model_copy(update=settings)
    page = write_report(run, images=False).read_text(encoding="utf-8")
    assert "kim2022: the paper" in page and "<dd>boostlu</dd>" in page
    assert "first a linear head on fixed features, then the whole network, 25 + 6 epochs" in page
