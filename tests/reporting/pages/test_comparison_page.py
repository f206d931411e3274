"""What a comparison says: in the table, in words, in its figure and on its page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

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


def test_a_winner_is_called_only_beyond_the_spread_and_with_several_seeds(tmp_path: Path) -> None:
    clear = comparison(tmp_path, BEST, FAR, CEILING)
    assert clear.winner is BEST and "15.0 ± 2.0" in ranking_summary(clear)
    close = comparison(tmp_path, BEST, NEAR, FAR, CEILING)
    assert close.winner is None and close.tied == [BEST, NEAR] and "`role` may be as good" in ranking_summary(close)
    assert [row.bold for row in comparison_rows(close)] == [True, True, False, False]
    em, an = method("em", [0.85], GapToBest(0.0, None)), method("an", [0.5], GapToBest(0.35, None))
    assert "one seed" in ranking_summary(comparison(tmp_path, em, an))
    assert "nothing to compare" in ranking_summary(comparison(tmp_path, BEST, CEILING))


def test_the_cost_of_missing_labels_is_told_where_it_is_measured(tmp_path: Path) -> None:
    cost = missing_label_cost(comparison(tmp_path, BEST, FAR, CEILING))
    assert "costs 19.5 points, of which `em` recovers 15.0" in cost
    assert missing_label_cost(comparison(tmp_path, BEST, CEILING)) == ""
    assert "no method recovers any" in missing_label_cost(comparison(tmp_path, FAR, CEILING))


def test_the_terminal_has_every_method_what_it_saw_and_its_setting(tmp_path: Path) -> None:
    made, shown = comparison(tmp_path, BEST, NEAR, FAR, CEILING), {width: io.StringIO() for width in (120, 60)}
    for width, file in shown.items():
        Console(file=file, width=width).print(comparison_table(made))
    text = " ".join(shown[120].getvalue().split())
    for words in ("85.50 ± 0.71", "15.00 ± 2.00", "alpha 0.2", "1e-3", "bce saw every label."):
        assert words in text
    narrow = shown[60].getvalue()
    assert "…" not in narrow and re.search(r"^bce ", narrow, re.M), "a name is never cut"


def test_an_observed_ranking_is_never_called_an_accuracy(tmp_path: Path) -> None:
    metric = ComparisonMetric("observed ranking on val", False, 1, "no accuracy can be measured")
    made = comparison(tmp_path, BEST, FAR, metric=metric, rule="observed")
    assert missing_label_cost(made) == "" and any("1 of 2 classes" in note for note in comparison_notes(made))
    made.write()
    page = write_report(made).read_text(encoding="utf-8")
    assert "No accuracy can be measured" in page and "test mAP" not in page
    metric = ComparisonMetric("", False, 0, "there is no test split, and nothing to rank")
    made = comparison(tmp_path / "none", method("an", [None, None], None), metric=metric, rule="last")
    made.path.mkdir()
    made.write()
    assert ranking_summary(made) == "" and "<svg" not in write_report(made).read_text(encoding="utf-8")


def test_the_page_is_written_from_the_folder_too_and_tells_no_path(tmp_path: Path, drawn: None) -> None:
    made = comparison(tmp_path, BEST, NEAR, FAR, CEILING, skipped=(SkippedMethod("imcl", "no label is <b>absent</b>"),))
    made.write()
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("<svg") == 2 and "private" not in page and "csv=tags.csv" in page
    assert "imcl" in page and "&lt;b&gt;absent" in page and "http" not in page.replace("http-equiv", "")


def test_the_command_trains_the_method_as_it_was_compared(tmp_path: Path) -> None:
    made = comparison(tmp_path, BEST)
    assert method_command(made, BEST) == (
        "labelgap train csv=/a/private/tags.csv --images /a/photos --method em --option alpha=0.2 --lr 1e-3 "
        "--batch-size 16 --weight-decay 0 --no-standardize --protocol linear --backbone efficientnet-lite0 "
        "--out runs/em"
    )
    hidden = replace(made, metadata={**ABOUT, "observe": {"positives": 1, "negatives": 0}, "label_seed": 1200})
    assert "--observe positives=1,negatives=0 --label-seed 1200" in method_command(hidden, BEST)


def test_a_method_far_behind_is_marked_rather_than_drawn_to_scale(tmp_path: Path) -> None:
    lost = method("entmin", [0.2, 0.21], GapToBest(0.65, 0.01))
    figure = comparison_figure(comparison(tmp_path, BEST, NEAR, lost, CEILING))
    axis, distances = figure.axes
    assert axis.get_xlim()[0] > 60 and any("◂ 20.5" in text.get_text() for text in axis.texts)
    assert distances.get_xlabel().startswith("points from the best")
    assert len(comparison_figure(comparison(tmp_path, BEST, lost), width=NARROW).axes) == 1
    for values in ([0.5], [0.5, 0.5]):
        assert comparison_figure(comparison(tmp_path, method("an", values, None))).axes, "of one method"
