"""Numbers, names and commands as text."""

from __future__ import annotations

import math

import pytest

from labelgap.reporting import formatting


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
        ("format_count", (912130,), "912,130"),
        ("format_elapsed", (7.25,), "7.2 s"),
        ("format_elapsed", (192,), "3 min 12 s"),
        ("format_elapsed", (8000,), "2 h 13 min"),
        ("format_elapsed", (None,), "–"),
        ("format_learning_rate", (1e-4,), "1e-4"),
        ("format_learning_rate", (0.0005,), "5e-4"),
        (
            "format_options",
            ({"expected_positives": 1.4576, "unknown": "negative"},),
            "expected positives 1.4576, unknown negative",
        ),
        ("truncate_label", ("a very long name of a class that nobody can read", 20), "a very long name of…"),
        ("val_score_name", ("clean",), "val mAP"),
        ("val_score_name", ("observed",), "observed ranking of val"),
        ("chosen_by_val", ("last",), "the thresholds"),
        (
            "wrapped_command",
            ("labelgap train 'my tags.csv' --lr 0.1 --nesterov",),
            "labelgap train 'my tags.csv' \\\n  --lr 0.1 \\\n  --nesterov",
        ),
        ("wrapped_command", ("import labelgap\nlabelgap.fit()",), "import labelgap\nlabelgap.fit()"),
    ],
)
def test_a_value_reads_as_it_should(function: str, given: tuple[object, ...], shown: str) -> None:
    assert getattr(formatting, function)(*given) == shown
