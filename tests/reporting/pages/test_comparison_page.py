"""What a comparison says: in the table, in words, in its figure and on its page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from tests.reporting.conftest import Reader

from labelgap.reporting import comparison_table, write_report
from labelgap.reporting.pages.comparison import (
    comparison_figure,
    comparison_notes,
    comparison_rows,
    method_command,
    missing_label_cost,
    ranking_summary,
)
from labelgap.reporting.style import NARROW
from labelgap.studies.compare.results import (
    Comparison,
    ComparisonMetric,
    GapToBest,
    MethodResult,
    SeedResult,
    SkippedMethod,
)

ABOUT = {
    "data": "tags.csv",
    "recipe": {"name": "csv", "path": "/a/private/tags.csv", "options": {"images": "/a/photos"}, "steps": []},
    "images": {"train": 90, "val": 20, "test": 30},
    "classes": ["cat", "dog"],
    **{"backbone": "efficientnet-lite0", "weights": None, "protocol": "linear", "epochs": 25, "grid": "small"},
    **{"seeds": 2, "observe": None, "label_seed": None, "device": "cpu"},
}


def method(name: str, values: Sequence[float | None], gap: GapToBest | None, **other: Any) -> MethodResult:
    seeds = tuple(
        SeedResult(number, None, value, 3, 0.5, None if value is None else {"map": value, "f1_micro": 0.6}, None, 1.0)
        for number, value in enumerate(values)
    )
    given = {"options": {}, "lr": 1e-3, "batch_size": 16, "label_view": "1 present of each", "extra_labels": False}
    return MethodResult(name, **{**given, "settings_tried": 2, "seconds": 3.0, **other}, seeds=seeds, gap=gap)


def comparison(path: Path, *rows: MethodResult, **other: Any) -> Comparison:
    metric = ComparisonMetric("test mAP", True, 2, "")
    made = Comparison(path, "Which method on tags.csv?", dict(ABOUT), "clean", metric, rows)
    return replace(made, **other)


BEST = method("em", [0.85, 0.86], GapToBest(0.0, 0.0), options={"alpha": 0.2})
NEAR = method("role", [0.84, 0.855], GapToBest(0.0075, 0.01))
FAR = method("an", [0.70, 0.71], GapToBest(0.15, 0.02))
CEILING = method("bce", [0.90, 0.90], None, extra_labels=True, label_view="every label")


ALONE = method("an", [None, None], None)
OBSERVED = ComparisonMetric("observed ranking on val", False, 1, "no accuracy can be measured")
NOTHING = ComparisonMetric("", False, 0, "there is no test split, and nothing to rank")
KINDS: dict[str, tuple[tuple[MethodResult, ...], dict[str, Any]]] = {
    "clear": ((BEST, FAR, CEILING), {}),
    "close": ((BEST, NEAR, FAR, CEILING), {"skipped": (SkippedMethod("imcl", "no label is <b>absent</b>"),)}),
    "one seed": ((method("em", [0.85], GapToBest(0.0, None)), method("an", [0.5], GapToBest(0.35, None))), {}),
    "one method": ((BEST, CEILING), {}),
    "nothing recovered": ((FAR, CEILING), {}),
    "observed": ((BEST, FAR, CEILING), {"metric": OBSERVED, "rule": "observed"}),
    "nothing to rank": ((ALONE,), {"metric": NOTHING, "rule": "last"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_winner_is_called_only_beyond_the_spread(tmp_path: Path, kind: str, snapshot: SnapshotAssertion) -> None:
    rows, other = KINDS[kind]
    made = comparison(tmp_path, *rows, **other)
    assert made.winner is (BEST if kind in ("clear", "observed") else None)
    assert (made.tied == [BEST, NEAR]) == (kind == "close")
    bold = [row.bold for row in comparison_rows(made)]
    assert [bold, ranking_summary(made), missing_label_cost(made), *comparison_notes(made)] == snapshot(name="said")
    shown = {width: io.StringIO() for width in (120, 60)}
    for width, file in shown.items():
        Console(file=file, width=width).print(comparison_table(made))
    assert shown[120].getvalue() == snapshot(name="table")
    assert "…" not in shown[60].getvalue() and re.search(rf"^{rows[-1].method} ", shown[60].getvalue(), re.M)
    made.write()
    page = Reader(write_report(tmp_path))  # from the folder
    assert page.shown == snapshot(name="page")
    assert "private" not in page.text and "http" not in page.text.replace("http-equiv", "")


def test_the_command_trains_the_method_as_it_was_compared(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    made = comparison(tmp_path, BEST)
    hidden = replace(made, metadata={**ABOUT, "observe": {"positives": 1, "negatives": 0}, "label_seed": 1200})
    assert [method_command(each, BEST) for each in (made, hidden)] == snapshot


def test_a_method_far_behind_is_marked_rather_than_drawn_to_scale(tmp_path: Path) -> None:
    lost = method("entmin", [0.2, 0.21], GapToBest(0.65, 0.01))
    figure = comparison_figure(comparison(tmp_path, BEST, NEAR, lost, CEILING))
    axis, distances = figure.axes
    assert axis.get_xlim()[0] > 60 and any("◂ 20.5" in text.get_text() for text in axis.texts)
    assert distances.get_xlabel().startswith("points from the best")
    assert len(comparison_figure(comparison(tmp_path, BEST, lost), width=NARROW).axes) == 1
    for values in ([0.5], [0.5, 0.5]):
        assert comparison_figure(comparison(tmp_path, method("an", values, None))).axes, "of one method"
