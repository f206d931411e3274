from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.audit.small_runs import write
from tests.cli.conftest import Printed, Screen, call, undraw
from tests.killing import start_forked, wait_forked
from tests.sample_photos import write_small_photos
from tests.training.untrained_run import make_run

import labelgap as lg
from labelgap.cli.main import _PANELS
from labelgap.core.lock import LOCK_FILE
from labelgap.core.manifest import verify_folder
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


def test_every_problem_of_a_csv_is_told_at_once(photos: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
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


def test_of_missing_data_the_nearest_is_named(photos: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    missing = ["nowhere.csv", "digit", "photo", "tagz.csv", "csv=tag.csv", "tags.csv --images phots", "photos"]
    missing += ["Tags.CSV", "csv=phots/0.jpeg", "elsewhere/tags.csv", "tags.csv/inside", str(photos / "tagz.csv")]
    missing += ["tags.csv --images photos --zeros missing"]
    found = screen.errors("train --out runs/a", *missing)
    assert {words.replace(str(photos), "#"): said for words, said in found.items()} == snapshot(name="train")
    assert screen.errors("demo --device cpu", "--out photos") == snapshot(name="demo")


def test_arguments_are_told(screen: Screen, snapshot: SnapshotAssertion, capsys: pytest.CaptureFixture[str]) -> None:
    assert screen.errors("", "convert digits", "inspect", "trian") == snapshot
    assert call() == 2
    said = capsys.readouterr()
    assert "Usage: " in said.out and not said.err


@pytest.mark.parametrize("name", methods())
def test_a_method_is_described_without_markup_with_all_options(name: str, printed: Printed) -> None:
    lines = printed("methods", name).splitlines()
    assert not any(
        mark in line for line in lines for mark in ("``", ":math:", ".. math::", "Args:", "Example:", "; final")
    )
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


LISTS = """
import sys
from labelgap.cli.main import main
heavy = "torch scipy sklearn matplotlib pandas timm open_clip torchvision jinja2 fastapi"
for words in sys.argv[1:]:
    sys.argv = ["labelgap", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, (words, end.code)
    print("imported by", words, [name for name in heavy.split() if name in sys.modules])
"""
READING = ["methods", "datasets", "datasets voc2012", "backbones"]
READING += ["inspect wide.csv", "inspect lists.csv --per-class --json"]


def test_what_only_lists_or_reads_a_table_imports_nothing_heavy(tmp_path: Path) -> None:
    write_small_photos(tmp_path, 12)
    lines = [f"{number:02d}.jpg,{number % 2},{'' if number % 3 else 1}" for number in range(12)]
    (tmp_path / "wide.csv").write_text("\n".join(["image,cat,dog", *lines]) + "\n")
    lines = [f"{number:02d}.jpg,{'cat;dog' if number % 2 else 'owl'}" for number in range(12)]
    (tmp_path / "lists.csv").write_text("\n".join(["image,present", *lines]) + "\n")
    for _ in ("first", "next"):  # the first `inspect` computes what tells copies of photos
        command = [sys.executable, "-c", LISTS, *READING]
        found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    imported = [line for line in found.stdout.splitlines() if line.startswith("imported by ")]
    assert imported == [f"imported by {words} []" for words in READING]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_run_and_exits_with_its_number(tmp_path: Path, number: signal.Signals, code: int) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    options = ("--method", "an", "--epochs", "1000000", "--trace", "off", "--device", "cpu", "--out", str(out))
    words = ("train", str(write(tmp_path)), *options)

    def train() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        sys.exit(call(*words))

    process = start_forked(train, log)
    while not (out / "metrics.jsonl").exists():
        assert os.waitpid(process, os.WNOHANG) == (0, 0), log.read_text()
        time.sleep(0.01)
    os.kill(process, number)
    assert wait_forked(process) == code, log.read_text()
    said = log.read_text()
    assert "report" in said and f"--resume continues {out}" in said
    run = lg.open_run(out)
    assert run.finished and run.metrics["interrupted"] and run.metrics["epochs"] == len(run.history) >= 1
    assert (out / "report.html").exists() and not (out / LOCK_FILE).exists()
    assert set(verify_folder(out).values()) == {"intact"}


def test_a_dry_run_says_how_val_is_made_and_writes_no_run(photos: Path, printed: Printed) -> None:
    Path("tags.csv").write_text("image,present\n" + "".join(f"{number}.jpg,red\n" for number in range(12)))
    words = ("train", "tags.csv", "--images", "photos", "--backbone", "small-cnn", "--dry-run", "--out", "runs/a")
    said = printed(*words, "--protocol", "end-to-end", "--method", "ll-r", "--option", "delta_rel=0.3")
    assert "of the 12 train" in said and "options            delta_rel=0.3" in said
    said = printed(*words, "--protocol", "linear")
    assert "-fold cross-validation" in said and "options            none" in said
    assert not Path("runs").exists()
