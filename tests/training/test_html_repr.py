"""A run as it is shown in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.training.plain_config import PLAIN

import labelgap as lg
from labelgap.training.config import RunConfig, write_config
from labelgap.training.history import write_history


def text_of(folder: Path, scores: list[float], summary: dict[str, Any] | None, **settings: Any) -> str:
    """Write a run folder by hand, and return what it shows; none of it is a tag of its own."""
    folder.mkdir()
    write_config(folder, RunConfig.checked(**PLAIN | settings))
    history = [{"epoch": epoch, "loss": 1.0, "seconds": 1.0, "score": score} for epoch, score in enumerate(scores, 1)]
    thresholds = {"values": [0.5, 0.5], "marks": ["default", "default"]}
    rest = {"interrupted": False, "seconds": 1.0, "select": "clean", "score": None, "thresholds": thresholds}
    write_history(folder, history, None if summary is None else rest | summary)
    page = ElementTree.fromstring(lg.open_run(folder)._repr_html_())
    assert page.find(".//img") is None and str(folder) in "".join(page.itertext())
    return " ".join(page.itertext())


def measured(value: float | None) -> dict[str, Any]:
    measures = ("map", "map_samples", "f1_micro", "f1_micro_at_half", "f1_macro", "f1_macro_at_half")
    counts = {"images": 9, "images_counted": 9, "classes": 2, "classes_counted": 2 if value else 0}
    return {**counts, **dict.fromkeys(measures, value), "average_precision": {"cat": value, "dog": value}}


MEASURED = {"best_epoch": 2, "epochs": 3, "val": measured(0.5), "test": measured(0.456)}
UNMEASURED = {"best_epoch": 2, "epochs": 2, "val": measured(None)}


@pytest.mark.parametrize(
    ("scores", "summary", "shown", "hidden"),
    [
        ([0.2, 0.5, 0.3], MEASURED, ["mAP 45.6 over 2 of 2", "F1 micro 45.6", "epoch 2 of 3"], ["labelgap review"]),
        ([0.2, 0.5], UNMEASURED, ["labelgap review", "--random 300"], ["20.0", "50.0"]),
        ([0.5], None, ["1 of 4"], []),
        ([0.2], {"best_epoch": 1, "epochs": 1, "interrupted": True}, ["epoch 1 of 1", "before 4"], []),
    ],
)
def test_a_notebook_shows_the_epoch_kept_and_the_numbers_that_the_labels_support(
    tmp_path: Path, scores: list[float], summary: dict[str, Any] | None, shown: list[str], hidden: list[str]
) -> None:
    text = text_of(tmp_path / "run", scores, summary, select="observed" if summary is UNMEASURED else "clean")
    assert all(each in text for each in shown) and not any(each in text for each in hidden)


def test_what_people_made_up_is_escaped(tmp_path: Path) -> None:
    evil = '<img src=x onerror="alert(1)">&'
    data = {**PLAIN["data"], "path": evil}
    text = text_of(tmp_path / "a<b>&c", [0.1, 0.2], None, method=evil, why=evil, data=data, backbone=evil)
    assert text.count(evil) == 4
