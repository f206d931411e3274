"""Settings of a run, numbers, names and commands as text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.training.plain_config import PLAIN

from labelgap.reporting import formatting
from labelgap.reporting.descriptions import describe_settings
from labelgap.training.config import RunConfig


def described(everything: bool = False, **settings: Any) -> dict[str, str]:
    return dict(describe_settings(RunConfig.checked(**PLAIN | settings), everything=everything))


def test_a_plain_run_has_few_settings_and_everything_includes_the_defaults() -> None:
    assert list(described()) == [
        "method", "options", "backbone", "images", "protocol", "epochs", "batch size", "optimizer", "learning rate",
        "precision", "epoch selection", "seed",
    ]  # fmt: skip
    words = described(everything=True)
    assert words["head"] == "linear" and words["preset"] == "none" and words["schedule"] == "constant"
    assert words["gradient clipping"] == "none" and words["weight averaging"] == "none"
    assert "first phase" not in words


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ({"preset": "kim2022"}, "preset", "kim2022: the paper's settings unless stated otherwise"),
        ({"options": {"delta_rel": 0.3}}, "options", "delta_rel 0.3, base unknown"),
        ({"backbone_lr": 1e-5}, "learning rate", "head 0.003, backbone 1e-05"),
        ({"backbone_lr": 1e-5, "protocol": "linear"}, "learning rate", "0.003"),
        ({"optimizer": "sgd", "momentum": 0.9, "nesterov": True}, "optimizer", "SGD, momentum 0.9, Nesterov"),
        ({"weight_decay": 1e-4, "momentum": 0.9}, "optimizer", "Adam, weight decay 0.0001"),
        ({"ema": 0.999}, "weight averaging", "exponential, decay 0.999"),
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


@pytest.mark.parametrize(
    ("function", "given", "shown"),
    [
        ("format_number", (0.126, 2), "0.13"),
        ("format_number", (math.nan,), "–"),
        ("format_measure", (0.78432,), "78.4"),
        ("format_measure", (0.78432, 2), "78.43"),
        ("format_measure", (None,), "–"),
        ("format_spread", ([1.0, 2.0, math.nan],), "1.50 ± 0.71"),
        ("format_spread", ([3.0], 1), "3.0"),
        ("format_spread", ([],), "–"),
        ("format_elapsed", (7.25,), "7.2 s"),
        ("format_elapsed", (192,), "3 min 12 s"),
        ("format_elapsed", (8000,), "2 h 13 min"),
        ("format_elapsed", (None,), "–"),
        ("format_learning_rate", (1e-4,), "1e-4"),
        ("format_learning_rate", (0.0005,), "5e-4"),
        ("format_options", ({"expected_positives": 1.4, "unknown": "all"},), "expected positives 1.4, unknown all"),
        ("single_line", (" a\n\tb\x00 c\u2028d ",), "a b c d"),
        ("truncate_label", ("a very long name of a class that nobody can read", 20), "a very long name of…"),
        ("val_score_name", ("clean",), "val mAP"),
        ("val_score_name", ("observed",), "observed ranking of val"),
        ("chosen_by_val", ("last",), "the thresholds"),
        ("format_probability", (0.9999,), "99 %"),
        ("format_probability", (float("nan"),), "–"),
        ("wrapped_command", ("train 'my tags' --lr 0.1 --flip",), "train 'my tags' \\\n  --lr 0.1 \\\n  --flip"),
        ("wrapped_command", ("import labelgap\nlabelgap.fit()",), "import labelgap\nlabelgap.fit()"),
    ],
)
def test_a_value_reads_as_it_should(function: str, given: tuple[object, ...], shown: str) -> None:
    assert getattr(formatting, function)(*given) == shown
