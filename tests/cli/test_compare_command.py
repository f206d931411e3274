"""``labelgap compare`` as a person meets it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call, undraw

import labelgap as lg
from labelgap.studies.compare.results import Comparison

QUICK = ("--epochs", "2", "--seeds", "2", "--device", "cpu")


def test_a_comparison_ends_with_a_table_a_verdict_and_a_report(
    vectors: Path, screen: Screen, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, drawn: None
) -> None:
    lines = screen("compare", "vectors.npz", "--methods", "an,em,bce,iu", *QUICK).splitlines()
    columns = next(number for number, line in enumerate(lines) if "behind best" in line)
    assert lines[: columns + 1] == snapshot(name="data and title")
    assert [line.partition(" ")[0] for line in lines[-3:]] == ["report", "table", "next"]
    folder = vectors / "runs" / "compare"
    assert (folder / "report.html").exists() and (folder / "compare.csv").exists()
    stored = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    assert {row["method"]: row["baseline"] for row in stored["methods"]} == {
        **dict.fromkeys(("an", "em", "bce", "iu"), False),
        "logistic regression": True,
    }
    assert "logistic regression" in (folder / "report.html").read_text(encoding="utf-8")
    undraw(monkeypatch)
    assert call("report", "runs/compare") == 0


def test_labels_are_hidden_and_settings_given_as_asked(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = ("--observe", "annotators,known=0.8,negatives=1", "--label-seed", "3")
    asked = ("--methods", "iu,role", "--option", "role.expected_positives=1.5", "--lr", "1e-2", "--batch-size", "8,32")
    assert call("compare", "vectors.npz", *hidden, *asked, *QUICK) == 0
    stored = json.loads((vectors / "runs" / "compare" / "compare.json").read_text(encoding="utf-8"))
    assert [seed["label_seed"] for seed in stored["methods"][0]["seeds"]] == [3, 4]
    rows = {row["method"]: row for row in stored["methods"]}
    assert {rows[name]["lr"] for name in ("iu", "role")} == {0.01} and rows["role"]["settings_tried"] >= 6
    assert {rows[name]["batch_size"] for name in ("iu", "role")} <= {8, 32}
    assert rows["role"]["options"] == {"expected_positives": 1.5}
    said = capsys.readouterr().out
    assert "--observe positives=annotators,known=0.8,negatives=1 --label-seed 3" in said
    assert "annotators, seed 3" in said and "each of the 2 seeds" in said
    assert Comparison.open("runs/compare").metadata["observe"]["positives"] == "annotators"


def test_without_val_the_command_at_the_end_trains_what_was_compared(
    vectors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load("vectors.npz") as stored:
        kept = {name: stored[name] for name in stored.files if not name.startswith(("val", "test"))}
    kept["train_truth"] = kept["train_observed"]
    np.savez("album.npz", **kept)
    assert call("compare", "album.npz", "--methods", "ll-r", "--weight-decay", "1e-3,3e-3", *QUICK) == 0
    said = capsys.readouterr()
    assert "cross-validation" in said.err and "accuracy" in said.out
    (command,) = (line.split("next", 1)[1] for line in said.out.splitlines() if line.startswith("next "))
    assert call(*shlex.split(command)[1:], "--device", "cpu") == 0
    row = json.loads(Path("runs/compare/compare.json").read_text(encoding="utf-8"))["methods"][0]
    run = lg.open_run(f"runs/{'an' if row['baseline'] else row['method']}")
    for name in ("weight_decay", "optimizer", "standardize", "lr", "batch_size"):
        assert row[name] == getattr(run.config, name)
    assert row["seeds"][0]["score"] == pytest.approx(run.metrics["cross_validation"]["compared"][0]["score"], abs=1e-3)


def test_values_of_an_option_have_rows_and_shares_of_the_images_columns(
    vectors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    varied = ("--methods", "an,ll-ct", "--vary", "ll-ct.delta-rel=1,20", "--lr", "1e-2")
    assert call("compare", "vectors.npz", *varied, *QUICK) == 0
    assert "ll-ct delta_rel=1 " in capsys.readouterr().out
    page = (vectors / "runs" / "compare" / "report.html").read_text(encoding="utf-8")
    assert "The effect of a setting" in page and "Epoch by epoch" in page
    shares = ("--methods", "an,bce", "--train-share", "1,0.5", "--lr", "1e-2", "--out", "runs/shares")
    assert call("compare", "vectors.npz", *shares, *QUICK) == 0
    said = capsys.readouterr()
    assert "50 %" in said.out and "100 %" in said.out and "seed 1: " in said.err and "Below the line: bce" in said.out
    assert "Fewer training images" in (vectors / "runs" / "shares" / "report.html").read_text(encoding="utf-8")


def test_what_cannot_run_is_listed(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", "vectors.npz", "--methods", "an", "--backbone", "small-cnn") == 2
    assert call("compare", "vectors.npz", "--methods", "an,epr", "--option", "epr.expected_positives=99", *QUICK) == 0
    assert "skipped   epr: " in capsys.readouterr().out


def test_a_mistake_is_one_message_before_data_are_read(screen: Screen, snapshot: SnapshotAssertion) -> None:
    found = screen.errors(
        "compare nowhere.npz --methods an",
        *("--methods ll-tr", "--methods ,", "--option expected_positives=2", "--lr fast"),
        *("--vary delta_rel", "--vary weight_decay=0", "--train-share 0.1,2", "--grid small2", "--option an.weight=2"),
        *("--option iu.reduction=sum", "--backbone small-cn", "--weights none.pth", "--select clear"),
        *("--batch-size 0", "--weight-decay 0,-1", "--observe positive=1", "--observe salint"),
        "--observe random,side=3",
    )
    assert found == snapshot
