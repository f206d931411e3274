"""The settings of a run as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labelgap.training.config.describe import describe_settings
from labelgap.training.config.schema import LinearPhase, RunConfig

PLAIN: dict[str, Any] = {
    "data": {"name": "csv"},
    "classes": ("cat", "dog"),
    "method": "ll-r",
    "why": "as asked",
    "backbone": "small-cnn",
    "protocol": "end-to-end",
    "epochs": 4,
    "lr": 0.003,
    "backbone_lr": 0.003,
    "batch_size": 64,
    "flip": False,
    "seed": 0,
    "select": "clean",
    "trace": "off",
}


def told(everything: bool = False, **settings: Any) -> dict[str, str]:
    return dict(describe_settings(RunConfig.checked(**PLAIN | settings), everything=everything))


def test_a_plain_run_has_few_words() -> None:
    assert list(told()) == [
        "method", "options", "backbone", "pictures", "protocol", "epochs", "batch size", "optimizer", "learning rate",
        "precision", "epoch chosen by", "seed",
    ]  # fmt: skip


def test_asked_for_everything_it_says_what_goes_without_saying() -> None:
    words = told(everything=True)
    assert words["head"] == "linear" and words["preset"] == "none" and words["schedule"] == "the rate stays the same"
    assert words["gradients"] == "as they come" and words["weights kept"] == "those of the epoch"
    assert "first phase" not in words


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ({"head": "boostlu"}, "head", "boostlu"),
        ({"preset": "kim2022"}, "preset", "kim2022: that paper's settings where nothing else was said"),
        ({"options": {"delta_rel": 0.3}}, "options", "delta_rel 0.3, base unknown"),
        ({"backbone_lr": 1e-5}, "learning rate", "head 0.003, backbone 1e-05"),
        ({"backbone_lr": 1e-5, "protocol": "linear"}, "learning rate", "0.003"),
        ({"schedule": "cosine", "warmup": 2}, "schedule", "rising over 2 epochs, then down to nothing along a cosine"),
        ({"warmup": 1}, "schedule", "rising over 1 epoch"),
        ({"optimizer": "sgd", "momentum": 0.9, "nesterov": True}, "optimizer", "SGD, momentum 0.9, Nesterov's"),
        ({"weight_decay": 1e-4, "momentum": 0.9}, "optimizer", "Adam, weight decay 0.0001"),
        ({"clip": 1.0}, "gradients", "cut to a norm of 1"),
        ({"ema": 0.999}, "weights kept", "a moving average, decay 0.999"),
        ({"accumulate": 4}, "batch size", "64, and the gradients of 4 batches make one step"),
        ({"stop_below": 0.03}, "epochs", "4 at most; it ends 3 points of the val score below the best"),
        ({"size": 448, "flip": True}, "pictures", "squashed to 448 × 448 pixels, mirrored at random"),
        ({"transform": "crop"}, "pictures", "random parts in random light, at the backbone's own size"),
        ({"precision": "bf16"}, "precision", "bfloat16 where that is safe, else float32"),
        ({"precision": "bf16", "protocol": "linear"}, "precision", "float32"),
        ({"weights": str(Path("/") / "a" / "b.pth")}, "backbone", "small-cnn, weights of b.pth"),
        ({"method": "somebody's", "options": {"a": 1}}, "options", "a 1"),
        (
            {"protocol": "linear-init", "linear": LinearPhase(epochs=25, lr=1e-3, batch_size=16)},
            "first phase",
            "the head alone: 25 epochs of Adam at 0.001, batches of 16",
        ),
    ],
)
def test_a_setting_that_is_not_plain_is_said(settings: dict[str, Any], name: str, words: str) -> None:
    assert told(**settings)[name] == words
