"""``labelgap linear-eval`` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call
from tests.studies.compare.small_features import write


def test_features_are_measured_with_all_known_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, screen: Screen, snapshot: SnapshotAssertion, drawn: None
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("vectors.npz"))
    everything = ("--observe", "positives=all,negatives=all", "--device", "cpu")
    assert screen("linear-eval", "vectors.npz", "--device", "cpu", code=2) == snapshot(name="labels are missing")
    assert screen("linear-eval", "vectors.npz", *everything) == snapshot(name="table")
    assert call("verify", "runs/linear-eval") == call("report", "runs/linear-eval") == 0
    page = Path("runs/linear-eval/report.html").read_text(encoding="utf-8")
    classes = json.loads(Path("runs/linear-eval/linear_eval.json").read_text(encoding="utf-8"))["class_results"]
    lowest = min(classes, key=lambda each: each["val"])
    row = f'<th scope="row">{lowest["name"]}</th><td data-name="present in train">{lowest["present"]}</td>'
    assert f'{row}<td data-name="val">{100 * lowest["val"]:.1f}' in page and "penalty λ" in page
    stored = screen.json("linear-eval", "vectors.npz", *everything, "--penalties", "0.1,10")
    assert [each["penalty"] for each in stored["results"]] == [0.1, 10] and stored["metric"] == "mAP"


def test_a_mistake_is_one_message_before_data_are_read(screen: Screen, snapshot: SnapshotAssertion) -> None:
    found = screen.errors(
        "linear-eval nowhere.npz",
        *("--task single", "--penalties 0,1", "--penalties many", "--precision float16", "--tolerance 2"),
        *("--backbone small-cn", "--observe positive=1"),
    )
    assert found == snapshot
