from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.browsers import CHROMIUM, new_page, start_browser
from tests.cli.conftest import Printed, Screen, call, undraw
from tests.studies.compare.small_features import write

import labelgap as lg
from labelgap.studies.compare.results import Comparison
from labelgap.studies.sweep import Sweep

QUICK = ("--epochs", "2", "--seeds", "2", "--device", "cpu")


def test_a_comparison_has_a_report(
    vectors: Path, screen: Screen, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, drawn: None
) -> None:
    lines = screen("compare", "vectors.npz", "--methods", "an,em,bce,iu", *QUICK).splitlines()
    columns = next(number for number, line in enumerate(lines) if "behind best" in line)
    assert lines[: columns + 1] == snapshot(name="data and title")
    assert [line.partition(" ")[0] for line in lines[-3:]] == ["report", "table", "next"]
    folder = vectors / "runs" / "compare"
    assert (folder / "report.html").exists() and (folder / "compare.csv").exists()
    rows = json.loads((folder / "compare.json").read_text(encoding="utf-8"))["methods"]
    assert [row["method"] for row in rows if row["baseline"]] == ["logistic regression"] and len(rows) == 5
    assert "logistic regression" in (folder / "report.html").read_text(encoding="utf-8")
    undraw(monkeypatch)
    assert call("report", "runs/compare") == 0


def test_labels_are_hidden_and_settings_given_as_asked(vectors: Path, printed: Printed) -> None:
    hidden = ("--observe", "annotators,known=0.8,negatives=1", "--label-seed", "3")
    asked = ("--methods", "iu,role", "--option", "role.expected_positives=1.5", "--lr", "1e-2", "--batch-size", "8,32")
    said = printed("compare", "vectors.npz", *hidden, *asked, *QUICK)
    stored = json.loads((vectors / "runs" / "compare" / "compare.json").read_text(encoding="utf-8"))
    assert [seed["label_seed"] for seed in stored["methods"][0]["seeds"]] == [3, 4]
    rows = {row["method"]: row for row in stored["methods"]}
    assert {rows[name]["lr"] for name in ("iu", "role")} == {0.01} and rows["role"]["settings_tried"] >= 6
    assert {rows[name]["batch_size"] for name in ("iu", "role")} <= {8, 32}
    assert rows["role"]["options"] == {"expected_positives": 1.5}
    assert "--observe positives=annotators,known=0.8,negatives=1 --label-seed 3" in said
    assert "annotators, seed 3" in said and "each of the 2 seeds" in said
    assert Comparison.open("runs/compare").metadata["observe"]["positives"] == "annotators"


def test_without_val_the_next_command_trains_what_was_compared(vectors: Path, printed: Printed) -> None:
    with np.load("vectors.npz") as stored:
        kept = {name: stored[name] for name in stored.files if not name.startswith(("val", "test"))}
    kept["train_truth"] = kept["train_observed"]
    np.savez("album.npz", **kept)
    said = printed("compare", "album.npz", "--methods", "ll-r", "--weight-decay", "1e-3,3e-3", *QUICK)
    assert "cross-validation" in said and "accuracy" in said
    (command,) = (line.split("next", 1)[1] for line in said.splitlines() if line.startswith("next "))
    assert call(*shlex.split(command)[1:], "--device", "cpu") == 0
    row = json.loads(Path("runs/compare/compare.json").read_text(encoding="utf-8"))["methods"][0]
    run = lg.open_run(f"runs/{'an' if row['baseline'] else row['method']}")
    for name in ("weight_decay", "optimizer", "standardize", "lr", "batch_size"):
        assert row[name] == getattr(run.config, name)
    assert row["seeds"][0]["score"] == pytest.approx(run.metrics["cross_validation"]["compared"][0]["score"], abs=1e-3)


def test_values_of_an_option_have_rows_and_shares_columns(vectors: Path, printed: Printed) -> None:
    varied = ("--methods", "an,ll-ct", "--vary", "ll-ct.delta-rel=1,20", "--lr", "1e-2")
    assert "ll-ct delta_rel=1 " in printed("compare", "vectors.npz", *varied, *QUICK)
    page = (vectors / "runs" / "compare" / "report.html").read_text(encoding="utf-8")
    assert "The effect of a setting" in page and "Epoch by epoch" in page
    shares = ("--methods", "an,bce", "--train-share", "1,0.5", "--lr", "1e-2", "--out", "runs/shares")
    said = printed("compare", "vectors.npz", *shares, *QUICK)
    assert all(each in said for each in ("50 %", "100 %", "seed 1: ", "Below the line: bce"))
    assert "Fewer training images" in (vectors / "runs" / "shares" / "report.html").read_text(encoding="utf-8")


def test_what_cannot_run_is_listed_and_optuna_is_named_by_its_extra(
    vectors: Path, printed: Printed, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("compare", "vectors.npz", "--methods", "an", "--backbone", "small-cnn") == 2
    assert "skipped   epr: " in printed(
        "compare", "vectors.npz", "--methods", "an,epr", "--option", "epr.expected_positives=99", *QUICK
    )
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "labelgap[sweep]" in screen.errors("sweep vectors.npz", "--method ll-r")["--method ll-r"]


def test_a_mistake_is_one_message_before_data_are_read(screen: Screen, snapshot: SnapshotAssertion) -> None:
    found = screen.errors(
        "compare nowhere.npz --methods an",
        *("--methods ll-tr", "--methods ,", "--option expected_positives=2", "--lr fast"),
        *("--vary delta_rel", "--vary weight_decay=0", "--grid small2", "--option an.weight=2"),
        *("--train-share 0.1,2", "--train-share 0,1", "--train-share nan", "--train-share ''"),
        *("--option iu.reduction=sum", "--backbone small-cn", "--weights none.pth", "--select clear"),
        *("--batch-size 0", "--weight-decay 0,-1", "--observe positive=1", "--observe salint"),
        "--observe random,side=3",
    )
    assert found == snapshot


def test_features_are_measured_with_all_known_labels(screen: Screen, snapshot: SnapshotAssertion, drawn: None) -> None:
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


def test_a_mistake_is_one_message(screen: Screen, snapshot: SnapshotAssertion) -> None:
    found = screen.errors(
        "linear-eval nowhere.npz",
        *("--task single", "--penalties 0,1", "--penalties many", "--precision float16", "--tolerance 2"),
        *("--backbone small-cn", "--observe positive=1"),
    )
    assert found == snapshot


TWO_EPOCHS = ("--epochs", "2", "--device", "cpu")


def test_a_sweep_ends_with_a_page_and_a_command_that_repeats_the_score_of_the_best_trial(
    vectors: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch, drawn: None
) -> None:
    searched = ("--search", "lr=1e-4..1e-1:log", "--search", "batch-size=8,16", "--option", "eps=1e-5")
    said = printed("sweep", "vectors.npz", "--method", "em", "--trials", "9", *searched, *TWO_EPOCHS)
    found = Sweep.open("runs/sweep")
    assert [each.name for each in found.space] == ["lr", "batch_size", "alpha", "weight_decay", "standardize"]
    assert [trial.number for trial in found.trials] == list(range(1, 10)) and found.auto is not None
    assert "9 of 9 trials: 9 complete" in said
    assert f"trial {found.ranked[0].number}: score" in said
    undraw(monkeypatch)
    (command,) = (line.split("again", 1)[1] for line in said.splitlines() if line.startswith("again "))
    assert call(*shlex.split(command)[1:], "--device", "cpu") == 0
    again = lg.open_run("runs/best")
    assert found.best is not None and again.metrics["score"] == found.best.score
    assert again.metrics["test"] == lg.open_run("runs/sweep/best").metrics["test"]
    page = Path("runs/sweep/report.html").read_text(encoding="utf-8")
    assert str(vectors) not in page and "--method em" in page and page.count("<svg") == 2 * 7
    assert f"auto {100 * (found.auto.score or 0):.2f}" in page
    look_at(vectors / "runs" / "sweep" / "report.html")
    assert call("report", "runs/sweep") == 0 and call("verify", "runs/sweep") == 0


def look_at(page: Path) -> None:
    """Open a page in a browser, where there is one: all figures are shown, and nothing is wider than the window."""
    if CHROMIUM is None:
        return
    with start_browser() as browser:
        opened, problems = new_page(browser, 390), list[str]()
        opened.on("console", lambda message: problems.append(message.text))
        opened.goto(page.as_uri())
        shown = "() => [...document.querySelectorAll('svg')].filter((each) => each.checkVisibility()).length"
        wide = "() => document.documentElement.scrollWidth > innerWidth"
        assert opened.evaluate(shown) == 7 and not opened.evaluate(wide) and not problems


def test_wrong_input_is_one_message_and_no_password(vectors: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    secret = "ann:s3cret@"
    found = screen.errors(
        "sweep vectors.npz --method ll-r --epochs 2 --device cpu",
        *("--method ll-x", "--search delta_rell=0.1,0.2", "--search lr", "--search lr=1e-2..1e-5", "--trials 0"),
        *(f"--search {wrong}" for wrong in ("learning_rate=0.1,0.2", "delta_rel=-1..0.5", "lr=", "lr=0..1:log")),
        *(f"--search {wrong}" for wrong in ("lr=a..b", "lr=1..2:linear", "lr=1,nan", "lr=1e-3,1e-4 --lr 0.1")),
        "--search lr=1e-3 --search weight_decay=0 --search standardize=true --option delta_rel=0.2",
        *("--search weight_decay=-1,0", "--preset cole2021 --lr 1e-3 --option delta_rel=0.2"),
        *("--storage nonsense", f"--storage oracles://{secret}db/x", f"--storage oracle://{secret}db/x"),
        *("--storage sqlite:///missing/folder/x.sqlite", f"--storage postgresql+pg8000://{secret}db/x"),
    )
    assert "s3cret" not in str([*found.values()]) and found == snapshot
