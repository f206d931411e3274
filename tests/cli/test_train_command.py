"""``labelgap train``: what a signal does to it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.audit.small_runs import write
from tests.cli.conftest import call
from tests.killing import start_forked, wait_forked

import labelgap as lg
from labelgap.core.lock import LOCK_FILE
from labelgap.core.manifest import verify_folder


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_run_writes_its_report_and_exits_with_its_number(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
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
    assert "stopped after" in said and "report" in said and f"--resume continues {out}" in said
    run = lg.open_run(out)
    assert run.finished and run.metrics["interrupted"] and run.metrics["epochs"] == len(run.history) >= 1
    assert (out / "report.html").exists() and not (out / LOCK_FILE).exists()
    assert set(verify_folder(out).values()) == {"intact"}


def test_a_dry_run_says_how_val_is_made_and_writes_no_run(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tags.csv").write_text("image,present\n" + "".join(f"{number}.jpg,red\n" for number in range(12)))
    words = ("train", "tags.csv", "--images", "photos", "--backbone", "small-cnn", "--dry-run", "--out", "runs/a")
    assert call(*words, "--protocol", "end-to-end", "--method", "ll-r", "--option", "delta_rel=0.3") == 0
    said = capsys.readouterr().out
    assert "of the 12 train" in said and "options            delta_rel=0.3" in said
    assert call(*words, "--protocol", "linear") == 0
    said = capsys.readouterr().out
    assert "-fold cross-validation" in said and "options            none" in said
    assert not Path("runs").exists()
