"""``MODEL_CARD.md``: a stranger understands the run from it, and finds no number that the labels do not support."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.reporting.conftest import EveryRun, RunMaker, renamed

import labelgap as lg
from labelgap.data.dataset import Dataset
from labelgap.reporting.model_card import render_model_card
from labelgap.training import Run

QUALITY = {"revised": 3, "precision": 2 / 3, "correct": 2, "known_truth": 3}
QUALITY |= {"found": 2, "recall": 0.4, "hidden_present": 5}
MORE_METRICS: dict[str, dict[str, Any]] = {
    "a run": {"weights": {"source": "a friend", "license": "MIT"}},
    "unfinished": {},
    "no test": {"interrupted": True, "epochs": 1},
    "revisions": {"revisions": QUALITY},
}


def card_of(run: Run, data: Dataset | None) -> str:
    return re.sub(r"labelgap \S+, torch \S+ and Python \S+;", "#", render_model_card(run, data))


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the tables in a text, by their first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines}


def test_the_card_of_every_kind_of_run(every_run: EveryRun, data: Dataset, snapshot: SnapshotAssertion) -> None:
    """The whole card of a run; of the others the lines that are not in the first."""
    first = ""
    for name, (run, beside) in every_run.items():
        if name != "unfinished":
            run.metrics |= MORE_METRICS.get(name, {})
            card = card_of(run, beside)
            assert "\n".join(line for line in card.splitlines() if line not in first) == snapshot(name=name)
            first = first or card
            assert card.endswith(".\n") and "\n\n\n" not in card
    licensed = render_model_card(every_run["a run"][0], replace(data, recipe={**data.recipe, "license": "cc-by-4.0"}))
    assert "(pets): cc-by-4.0." in licensed and 'license: "cc-by-4.0"\n' in licensed


def test_names_cannot_break_the_card_and_the_hub_reads_it(run_of: RunMaker, data: Dataset) -> None:
    strange = renamed(data, ('<script>alert("x")</script>', "a|b", "# *c* `d`", "yak"))
    run = run_of(strange, 'my "run"')
    text = render_model_card(run, strange)
    assert "<script>" not in text and r"\<script\>" in text and "private" not in text
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if re.match(r"\| a\\\|b", line)]
    assert bars == [6]
    assert "labelgap predict 'my \"run\"' photos/" in text and 'lg.open_run("my \\"run\\"")' in text
    front = pytest.importorskip("yaml").safe_load(text.split("---\n")[1])
    assert (front["library_name"], front["pipeline_tag"]) == ("labelgap", "image-classification")
    assert front["license"] == "unknown" and {"labelgap", "multi-label-classification", "ll-r"} <= set(front["tags"])
    (index,) = front["model-index"]
    (result,) = index["results"]
    assert index["name"] == 'my "run"' and result["dataset"]["split"] == "test"
    assert result["task"]["type"] == "image-classification"
    assert result["metrics"][0]["value"] == pytest.approx(run.metrics["test"]["map"], abs=1e-4)


def test_thresholds_of_a_run_without_val_come_from_the_folds(tmp_path: Path) -> None:
    digits = lg.load("digits", train=96, val=0, test=0)
    assert digits.train.truth is not None
    known = Dataset("known", replace(digits.train, labels=digits.train.truth, truth=None))
    run = lg.fit(known, "bce", backbone="small-cnn", protocol="linear", out=tmp_path / "run", epochs=1, quiet=True)
    page, card = lg.write_report(run, data=known).read_text(encoding="utf-8"), render_model_card(run, known)
    for text in (card, page):
        assert "10 measured out of fold" in text and "on val" not in text
    table = card[card.index("|  | average precision |") : card.index("## Use")]
    cells = [line.count("|") for line in table.splitlines() if line.startswith("|")]
    assert cells == [5] * (2 + len(known.classes))


def test_many_classes_show_their_ends_and_rare_ones_are_named(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    parts: dict[str, Any] = {"classes": np.array([f"class {number}" for number in range(14)])}
    for split, count in (("train", 60), ("val", 30), ("test", 30)):
        labels = (random.random((count, 14)) < 0.4).astype(np.int8)
        if split == "train":
            labels[:, 0] = 0
            labels[3:, 1] = 0
            labels[:3, 1] = 1
        parts |= {f"{split}_features": random.normal(size=(count, 6)).astype(np.float32), f"{split}_labels": labels}
    np.savez(tmp_path / "features.npz", **parts)
    data = lg.load("features", tmp_path / "features.npz")
    card = render_model_card(lg.fit(data, out=tmp_path / "run", epochs=1, quiet=True), data)
    assert len([name for name in rows(card) if re.fullmatch(r"class \d+( \\\*)?", name)]) == 10
    rare = re.findall(r"^- (?:Never|Known to be) present .+: (class \d+)\.$", card, re.MULTILINE)
    assert rare == ["class 0", "class 1"]
    assert "pipeline_tag" not in card and "run.predict(vectors)" in card
