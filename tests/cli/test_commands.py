"""The commands as a person meets them: what they print, and how they fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import Screen, call, undraw
from tests.training.untrained_run import make_run

from labelgap.cli.main import _PANELS
from labelgap.losses import methods


def test_train_evaluate_and_report_on_ones_own_photos(
    photos: Path, screen: Screen, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, drawn: None
) -> None:
    training = ("train", "tags.csv", "--images", "photos", "--epochs", "2", "--device", "cpu", "--method", "an")
    assert screen(*training, "--out", "runs/a") == snapshot(name="train")
    measured = screen.json("evaluate", "runs/a", "tags.csv", "--images", "photos", "--device", "cpu")
    assert measured["images"] == 4 and measured["classes_counted"] == 2

    report = photos / "runs" / "a" / "report.html"
    written = report.read_text()
    assert screen("report", "runs/a") == snapshot(name="report")
    assert len(report.read_text()) > 0.9 * len(written)
    undraw(monkeypatch)
    (photos / "tags.csv").rename(photos / "moved.csv")
    assert screen("report", "runs/a", "--no-images") == snapshot(name="report without data")


def test_every_problem_of_a_csv_is_told_at_once_and_nothing_is_written(
    photos: Path, screen: Screen, snapshot: SnapshotAssertion
) -> None:
    lines = Path("tags.csv").read_text().splitlines()
    lines[3] = "2.jpg,val,dgo,0"
    lines[5] = "3.jpg,val,0,1"
    lines[6] = "missing.jpg,test,1,0"
    lines[7] = "6.jpg,tset,1,0"
    Path("tags.csv").write_text("\n".join(lines) + "\n")
    assert screen("train", "tags.csv", "--images", "photos", "--out", "runs/a", code=2) == snapshot
    assert not Path("runs").exists()


def test_a_wrong_word_names_the_right_one_before_data_are_read(screen: Screen, snapshot: SnapshotAssertion) -> None:
    found = screen.errors(
        "train nowhere.csv --out runs/a",
        *("--method ll-tr", "--method ll-r --option delta=1", "--method ll-r --option delta_rel"),
        *("--method ll-r --option delta_rel=often", "--option delta_rel=0.2", "--observe positive=1"),
        *("--backbone efficientnet", "--backbone timm:resnet1", "--weights none.pth", "--protocol linear-int"),
        *("--preset kim2020", "--head bostlu", "--select clear", "--optimizer rmsprop", "--linear-epochs 0"),
        *("--precision fp16", "--resume", "--out /dev/null", "--trace few"),
    )
    assert found == snapshot


def test_data_that_is_not_there_is_said_to_be_and_the_nearest_is_named(
    photos: Path, screen: Screen, snapshot: SnapshotAssertion
) -> None:
    missing = ("nowhere.csv", "digit", "photo", "tagz.csv", "csv=tag.csv", "tags.csv --images phots")
    assert (
        screen.errors("train --out runs/a", *missing, "tags.csv --images photos --zeros missing", "photos") == snapshot
    )


def test_a_missing_argument_is_explained(
    screen: Screen, snapshot: SnapshotAssertion, capsys: pytest.CaptureFixture[str]
) -> None:
    assert screen.errors("", "train digits", "inspect", "trian") == snapshot
    assert call() == 2
    said = capsys.readouterr()
    assert "Usage: " in said.out and not said.err


@pytest.mark.parametrize("name", methods())
def test_a_method_is_described_without_markup_and_with_every_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("methods", name) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(mark in line for line in lines for mark in ("``", ":math:", ".. math::", "Args:"))
    options = [number for number, line in enumerate(lines) if line.startswith("  --option ")]
    assert options and all(lines[number + 1].startswith("        ") for number in options)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    make_run(tmp_path / "runs" / "first")
    assert screen.errors("evaluate", "runs digits", "runs/frist digits") == snapshot


NAMES = " ".join(_PANELS.values()).split()
LIGHT_COMMANDS = """
import sys
import labelgap
from labelgap.cli.main import main
for words in (*(f"{name} --help" for name in sys.argv[1:]), "--version", "train --epochs", "trian", "--help"):
    sys.argv = ["labelgap", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == (0 if words.startswith("--") or words.endswith("--help") else 2), words
heavy = "torch numpy scipy sklearn matplotlib pandas pyarrow PIL timm torchvision jinja2 fastapi psutil"
print([name for name in heavy.split() if name in sys.modules])
"""


def test_the_help_of_every_command_and_wrong_words_import_nothing_heavy() -> None:
    found = subprocess.run([sys.executable, "-c", LIGHT_COMMANDS, *NAMES], capture_output=True, text=True, check=True)
    assert all(f"Usage: labelgap {name} " in found.stdout for name in NAMES)
    assert found.stderr.count("Did you mean 'train'") == 1 and found.stdout.splitlines()[-1] == "[]"


def test_the_options_of_train_are_grouped_and_no_help_text_is_lost_to_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert call("train", "--help") == 0
    output = capsys.readouterr().out
    panels = [line for line in output.splitlines() if line.startswith("╭")]
    data = ["Arguments", "Options", "Data", "Published data sets"]
    names = [*data, "Method and model", "Optimization", "Heads", "Input images"]
    assert [name in line for name, line in zip(names, panels, strict=True)] == [True] * 8
    assert "--optimizer" in output and "[default: (depends on data and device)]" in output
    assert max(map(len, output.split("╭"))) < 25 * 161, "no group has more than about twenty options"
