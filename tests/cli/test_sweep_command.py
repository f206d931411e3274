"""``labelgap sweep`` as a person meets it: the command at its end, its page in a browser, and wrong input."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.browsers import CHROMIUM, new_page, start_browser
from tests.cli.conftest import Screen, call, undraw

import labelgap as lg
from labelgap.studies.sweep import Sweep

QUICK = ("--epochs", "2", "--device", "cpu")


def test_a_sweep_ends_with_a_page_and_a_command_that_repeats_the_score_of_the_best_trial(
    vectors: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, drawn: None
) -> None:
    searched = ("--search", "lr=1e-4..1e-1:log", "--search", "batch-size=8,16", "--option", "eps=1e-5")
    assert call("sweep", "vectors.npz", "--method", "em", "--trials", "9", *searched, *QUICK) == 0
    said, found = capsys.readouterr(), Sweep.open("runs/sweep")
    assert [each.name for each in found.space] == ["lr", "batch_size", "alpha", "weight_decay", "standardize"]
    assert [trial.number for trial in found.trials] == list(range(1, 10)) and found.auto is not None
    assert "9 of 9 trials: 9 complete" in said.out
    assert f"trial {found.ranked[0].number}: score" in said.err
    undraw(monkeypatch)
    (command,) = (line.split("again", 1)[1] for line in said.out.splitlines() if line.startswith("again "))
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


def test_wrong_input_is_one_message_without_a_password(
    vectors: Path, screen: Screen, snapshot: SnapshotAssertion
) -> None:
    secret = "ann:s3cret@"
    found = screen.errors(
        "sweep vectors.npz --method ll-r --epochs 2 --device cpu",
        *("--method ll-x", "--search delta_rell=0.1,0.2", "--search lr", "--search lr=1e-2..1e-5", "--trials 0"),
        *("--search weight_decay=-1,0", "--preset cole2021 --lr 1e-3 --option delta_rel=0.2"),
        *("--storage nonsense", f"--storage oracles://{secret}db/x", f"--storage oracle://{secret}db/x"),
        *("--storage sqlite:///missing/folder/x.sqlite", f"--storage postgresql+pg8000://{secret}db/x"),
    )
    assert "s3cret" not in str([*found.values()]) and found == snapshot


def test_without_optuna_the_command_that_installs_it_is_shown(
    vectors: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "labelgap[sweep]" in screen.errors("sweep vectors.npz", "--method ll-r")["--method ll-r"]
