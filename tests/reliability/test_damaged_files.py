"""The short form of ``benchmarks/fuzz_runs.py``, and what it must be able to find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fuzzing import cases, readers
from benchmarks.fuzzing.base import canary
from benchmarks.fuzzing.cases import Fuzzer
from benchmarks.fuzzing.targets import Target

from labelgap.core.errors import RunError
from labelgap.core.manifest import check_files, write_manifest

PROJECT = Path(__file__).resolve().parents[2]
CASES = 200


def test_no_damaged_file_ends_in_anything_but_a_message(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/fuzz_runs.py", "--light", "--workers", "0", "--cases", str(CASES)]
    command += ["--seconds", "300", "--samples", str(tmp_path / "samples")]
    found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{CASES} mutations" in found.stdout and found.stdout.endswith("failed 0\n")


def read(folder: Path) -> bytes:
    check_files(folder, ["a.json"])
    return (folder / "a.json").read_bytes()


def silent(folder: Path) -> str:
    return (folder / "a.json").read_text(errors="replace") if (folder / "a.json").is_file() else ""


def hang(folder: Path) -> None:
    while silent(folder) != SAMPLE:
        time.sleep(0.01)


def fail_at_length(folder: Path) -> None:
    if silent(folder) != SAMPLE:
        raise RunError("x" * 3000)


SAMPLE = '{"format": 1, "values": [1, 2, 3], "name": "x"}'


@pytest.mark.parametrize(
    ("reader", "problem"),
    [
        (read, None),
        (silent, "another value"),
        (lambda folder: json.loads(silent(folder))["values"][2], "Error"),
        (fail_at_length, "2,000 characters"),
        (hang, "no answer"),
        (lambda folder: subprocess.run(["true"], check=True), "subprocess.Popen"),
        (lambda folder: canary().read_bytes(), "was opened"),
        (lambda folder: (folder.parent.parent / "x").write_text("x"), "opened for writing"),
    ],
)
def test_it_finds(
    reader: Callable[[Path], Any], problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LABELGAP_CACHE", "LABELGAP_FUZZ_CANARY", "LABELGAP_FUZZ_SAMPLES"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    (tmp_path / "samples" / "run").mkdir(parents=True)
    (tmp_path / "samples" / "run" / "a.json").write_text(SAMPLE)
    write_manifest(tmp_path / "samples" / "run", ["a.json"])
    monkeypatch.setattr(cases, "TARGETS", (Target("run/a.json", {"reader": 1.0}),))
    monkeypatch.setitem(readers.READERS, "reader", reader)
    (tmp_path / "work").mkdir()
    fuzzer = Fuzzer(tmp_path / "samples", tmp_path / "work", seconds=0.1 if reader is hang else 60)
    found = [failure.problem for number in range(16) for failure in fuzzer.run(number).failures]
    assert (not found) if problem is None else any(problem in each for each in found), found
    assert silent(fuzzer.root / "run") == SAMPLE
