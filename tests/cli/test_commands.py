"""The commands as a person meets them: what they print, and how they fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Refused, call, undraw
from tests.training.untrained_run import make_run

from labelgap.cli.main import make_app
from labelgap.losses import methods


def test_train_evaluate_and_report_on_ones_own_photos(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, drawn: None
) -> None:
    assert call("train", "tags.csv", "--images", "photos", "--out", "runs/a", "--epochs", "2", "--device", "cpu") == 0
    said = capsys.readouterr()
    assert "12 images, 2 classes" in said.out and "blank = unknown" in said.out
    assert "auto (val chooses among an, gr, iu)" in said.err and "val is fully known" in said.err
    assert "mAP" in said.out and "report" in said.out
    assert re.search(r"^(an|gr|iu) +epoch \d+ of 2 was kept, \d+ s in all$", said.out, re.M)
    assert said.out.endswith("next      labelgap audit runs/a    ranks the labels that are probably missing\n")
    assert (photos / "runs" / "a" / "report.html").exists()

    assert call("evaluate", "runs/a", "tags.csv", "--images", "photos", "--json", "--device", "cpu") == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["images"] == 4 and measured["classes_counted"] == 2

    report = photos / "runs" / "a" / "report.html"
    written = report.read_text()
    assert call("report", "runs/a") == 0
    assert "report.html" in capsys.readouterr().out and len(report.read_text()) > 0.9 * len(written)
    undraw(monkeypatch)
    (photos / "tags.csv").rename(photos / "moved.csv")
    assert call("report", "runs/a", "--no-images") == 0
    assert "without label counts and example images" in capsys.readouterr().out


def test_every_problem_of_a_csv_is_told_at_once_and_nothing_is_written(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path("tags.csv").read_text().splitlines()
    lines[3] = "2.jpg,val,dgo,0"
    lines[5] = "3.jpg,val,0,1"
    lines[6] = "missing.jpg,test,1,0"
    lines[7] = "6.jpg,tset,1,0"
    Path("tags.csv").write_text("\n".join(lines) + "\n")
    assert call("train", "tags.csv", "--images", "photos", "--out", "runs/a") == 2
    said = capsys.readouterr().err
    assert "labelgap: tags.csv cannot be used yet: 4 problems, nothing was trained" in said
    assert "line 4" in said and "'dgo' under red: a cell is 1 (present), 0 (absent) or blank (unknown)" in said
    assert "line 6" in said and "3.jpg is listed again (first in line 5)" in said
    assert "line 7" in said and "missing.jpg does not exist" in said
    assert "line 8" in said and "'tset' under split" in said and "Did you mean 'test'?" in said
    assert "Traceback" not in said and not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "ll-tr"], "Did you mean 'll-r'"),
        (["--method", "ll-r", "--option", "delta=1"], "Did you mean 'delta_rel'"),
        (["--method", "ll-r", "--option", "delta_rel"], "key=value"),
        (["--method", "ll-r", "--option", "delta_rel=often"], "a number is needed"),
        (["--backbone", "efficientnet"], "Did you mean 'efficientnet-lite0'"),
        (["--observe", "positive=1"], "Did you mean 'positives'"),
        (["--option", "delta_rel=0.2"], "name it with --method"),
        (["--backbone", "timm:resnet1"], "Did you mean 'timm:resnet"),
        (["--weights", "none.pth"], "the weights none.pth do not exist"),
        (["--protocol", "linear-int"], "Did you mean 'linear-init'"),
        (["--preset", "kim2020"], "Did you mean 'kim2022'"),
        (["--head", "bostlu"], "Did you mean 'boostlu'"),
        (["--select", "clear"], "clean"),
        (["--optimizer", "rmsprop"], "optimizer"),
        (["--linear-epochs", "0"], "epochs"),
        (["--precision", "fp16"], "precision"),
        (["--resume"], "no run to resume"),
        (["--out", "/dev/null"], "/dev/null is a file: choose another --out"),
        (["--trace", "few"], "trace"),
    ],
)
def test_a_wrong_word_names_the_right_one_before_data_are_read(
    refused: Refused, arguments: list[str], message: str
) -> None:
    assert message in refused("train", "nowhere.csv", "--out", "runs/a", *arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("nowhere.csv", "does not exist"),
        ("digit", "Did you mean 'digits'"),
        ("photo", "Did you mean 'photos'"),
        ("tagz.csv", "tagz.csv does not exist. Did you mean tags.csv?"),
        ("csv=tag.csv", "tag.csv does not exist. Did you mean tags.csv?"),
        ("tags.csv --images phots", "Did you mean photos?"),
        ("tags.csv --images photos --zeros missing", "'absent' or 'unknown'"),
        ("photos", "photos holds images without labels. DATA is the table of their tags"),
        ("photos", "tags.csv --images photos"),
    ],
)
def test_data_that_is_not_there_is_said_to_be_and_the_nearest_is_named(
    photos: Path, capsys: pytest.CaptureFixture[str], data: str, message: str
) -> None:
    assert call("train", *data.split(), "--out", "runs/a") == 2
    assert message in capsys.readouterr().err


def test_a_missing_argument_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "digits") == 2
    assert "Missing option '--out': Folder of the run, e.g. runs/first. " in capsys.readouterr().err
    assert call("inspect") == 2
    assert "Missing argument 'DATA': A CSV, a folder" in capsys.readouterr().err
    assert call() == 2
    said = capsys.readouterr()
    assert "Train a classifier" in said.out and not said.err


def test_the_lists_name_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("methods") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in methods())
    assert call("datasets") == 0
    said = capsys.readouterr().out
    assert "digits" in said and "csv" in said
    assert call("backbones") == 0
    said = capsys.readouterr().out
    assert "efficientnet-lite0" in said and "Apache-2.0" in said


@pytest.mark.parametrize("name", methods())
def test_a_method_is_described_without_markup_and_with_every_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("methods", name) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(mark in line for line in lines for mark in ("``", ":math:", ".. math::", "Args:"))
    options = [number for number, line in enumerate(lines) if line.startswith("  --option ")]
    assert options and all(lines[number + 1].startswith("        ") for number in options)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "first")
    runs = tmp_path / "runs"
    for wrong, why in (
        (runs, f"is not a run: it has no config.json. Did you mean {runs / 'first'}?"),
        (runs / "frist", f"is not a run: it does not exist. Did you mean {runs / 'first'}?"),
    ):
        assert call("evaluate", str(wrong), "digits") == 2
        assert why in capsys.readouterr().err


LIGHT_COMMANDS = """
import sys
import labelgap
from labelgap.cli.main import main
for words in ("--version", "train --help", "cache --help", "train --epochs", "trian", "--help"):
    sys.argv = ["labelgap", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == (0 if words.startswith("--") or words.endswith("--help") else 2), words
heavy = "torch numpy scipy sklearn matplotlib pandas pyarrow PIL timm torchvision jinja2 fastapi psutil"
print([name for name in heavy.split() if name in sys.modules])
"""


def test_help_and_wrong_words_import_nothing_heavy() -> None:
    found = subprocess.run([sys.executable, "-c", LIGHT_COMMANDS], capture_output=True, text=True, check=True)
    assert "Usage: labelgap train" in found.stdout and found.stderr.count("Did you mean 'train'") == 1
    assert found.stdout.splitlines()[-1] == "[]"


def test_the_options_of_train_are_grouped_and_no_help_text_is_lost_to_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert call("train", "--help") == 0
    output = capsys.readouterr().out
    panels = [line for line in output.splitlines() if line.startswith("╭")]
    names = ["Arguments", "Options", "Data", "Method and model", "Optimization", "Linear heads", "Input images"]
    assert [name in line for name, line in zip([*names, "Published data sets"], panels, strict=True)] == [True] * 8
    assert "--optimizer" in output and "[default: (depends on data and device)]" in output
    assert max(map(len, output.split("╭"))) < 25 * 161, "no group has more than about twenty options"


@pytest.mark.parametrize(
    "name",
    [command.callback.__name__.replace("_", "-") for command in make_app().registered_commands if command.callback],
)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(name, "--help") == 0
    assert f"labelgap {name} [OPTIONS]" in capsys.readouterr().out
