"""A run as it is shown in a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.training.plain_config import PLAIN

import labelgap as lg
from labelgap.training.config import RunConfig, write_config
from labelgap.training.history import write_history


def run_with_scores(
    folder: Path, scores: list[float | None], summary: dict[str, Any] | None, **settings: Any
) -> lg.Run:
    """Write a run folder by hand, and open it."""
    folder.mkdir()
    write_config(folder, RunConfig.checked(**PLAIN | settings))
    history = [{"epoch": epoch, "loss": 1.0, "seconds": 1.0, "score": score} for epoch, score in enumerate(scores, 1)]
    if summary is not None:
        thresholds = {"values": [0.5, 0.5], "marks": ["default", "default"]}
        rest = {"interrupted": False, "seconds": 1.0, "select": "clean", "score": None, "thresholds": thresholds}
        summary = rest | summary
    write_history(folder, history, summary)
    return lg.open_run(folder)


def measured(value: float | None) -> dict[str, Any]:
    measures = ("map", "map_samples", "f1_micro", "f1_micro_at_half", "f1_macro", "f1_macro_at_half")
    counts = {"images": 9, "images_counted": 9, "classes": 2, "classes_counted": 2 if value else 0}
    return {**counts, **dict.fromkeys(measures, value), "average_precision": {"cat": value, "dog": value}}


def text_of(run: lg.Run) -> tuple[ElementTree.Element, str]:
    page = ElementTree.fromstring(run._repr_html_())
    return page, " ".join(page.itertext())


def test_a_notebook_shows_the_numbers_and_the_epoch_kept(tmp_path: Path) -> None:
    summary = {"best_epoch": 2, "epochs": 3, "val": measured(0.5), "test": measured(0.456)}
    _, text = text_of(run_with_scores(tmp_path / "run", [0.2, 0.5, 0.3], summary))
    assert "mAP 45.6 over 2 of 2 classes; F1 micro 45.6, F1 macro 45.6" in text and "epoch 2 of 3 was kept" in text
    assert "labelgap review" not in text and str(tmp_path / "run") in text


def test_an_order_of_epochs_is_shown_without_a_number(tmp_path: Path) -> None:
    summary = {"best_epoch": 2, "epochs": 2, "val": measured(None)}
    _, text = text_of(run_with_scores(tmp_path / "run", [0.2, 0.5], summary, select="observed"))
    assert "the known labels support no accuracy" in text
    assert f"labelgap review {tmp_path / 'run'} --random 300" in text
    assert not re.search(r"\b(20|50)\.0\b", text)


def test_a_run_that_was_stopped_says_where(tmp_path: Path) -> None:
    assert "1 of 4 so far, not finished" in text_of(run_with_scores(tmp_path / "a", [0.5], None))[1]
    summary = {"best_epoch": 1, "epochs": 1, "interrupted": True}
    assert "epoch 1 of 1 was kept; stopped before 4" in text_of(run_with_scores(tmp_path / "b", [0.2], summary))[1]


def test_what_people_made_up_is_escaped(tmp_path: Path) -> None:
    evil = '<img src=x onerror="alert(1)">&'
    run = run_with_scores(
        tmp_path / "a<b>&c",
        [0.1, 0.2],
        None,
        method=evil,
        why=evil,
        data={**PLAIN["data"], "path": evil},
        backbone=evil,
    )
    page, text = text_of(run)
    assert page.find(".//img") is None and text.count(evil) == 4 and "a<b>&c" in text
