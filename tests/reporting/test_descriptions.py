"""Settings of a run, numbers, names and commands as text."""

from __future__ import annotations

import math
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.training.plain_config import PLAIN

from labelgap.reporting import formatting
from labelgap.reporting.descriptions import describe_settings
from labelgap.training.config import RunConfig


def described(everything: bool = False, **settings: Any) -> dict[str, str]:
    return dict(describe_settings(RunConfig.checked(**PLAIN | settings), everything=everything))


SETTINGS: list[dict[str, Any]] = [
    {"preset": "kim2022"},
    {"options": {"delta_rel": 0.3}},
    {"backbone_lr": 1e-5},
    {"backbone_lr": 1e-5, "protocol": "linear"},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    {"weight_decay": 1e-4, "momentum": 0.9},
    {"ema": 0.999},
    {"stop_below": 0.03},
    {"size": 448, "flip": True},
    {"transform": "augment", "size": 448},
    {"transform": "crop"},
    {"precision": "bf16"},
    {"precision": "bf16", "protocol": "linear"},
    {"weights": "/a/b.pth"},
    {"method": "somebody's", "options": {"a": 1}},
    {"protocol": "linear-init", "linear_epochs": 25, "linear_lr": 1e-3, "linear_batch_size": 16},
]


def test_settings_are_described_and_those_that_are_not_the_default_always(snapshot: SnapshotAssertion) -> None:
    plain = described()
    assert plain == snapshot(name="plain") and described(everything=True) == snapshot(name="everything")
    for settings in SETTINGS:
        told = {name: words for name, words in described(**settings).items() if plain.get(name) != words}
        assert told == snapshot(name=str(settings))


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
