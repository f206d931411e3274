"""Run commands under hostile conditions of the process, and count those that end in a traceback or in a crash.

Each command is run under each condition: few file descriptors, little memory, closed or broken standard streams, a
stream that is not UTF-8, no home, no temporary folder, a deleted current folder, a full disk. A command passes if it
works, or ends with one message and the exit code that belongs to it (2, or 141 for a broken pipe).

Run: ``python benchmarks/process_limits.py [CONDITION …]``; every outcome is a line, and the last lines are counts.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Condition:
    """How a command is started: limits of its process, its environment, and shell redirections."""

    name: str
    limit: tuple[int, int] | None = None
    environment: dict[str, str | None] = field(default_factory=dict)
    redirect: str = ""
    deleted_folder: bool = False
    codes: tuple[int, ...] = (0, 2)


CONDITIONS = (
    Condition("20 file descriptors", (resource.RLIMIT_NOFILE, 20)),
    Condition("10 file descriptors", (resource.RLIMIT_NOFILE, 10)),
    *(
        Condition(f"{size} MB of memory", (resource.RLIMIT_AS, size * MEGABYTE))
        for size in (400, 800, 1200, 1600, 2400)
    ),
    Condition("no file may grow", (resource.RLIMIT_FSIZE, 0)),
    Condition("stdout closed", redirect=">&-"),
    Condition("stderr closed", redirect="2>&-"),
    Condition("all streams closed", redirect="<&- >&- 2>&-"),
    Condition("stdout full", redirect=">/dev/full"),
    Condition("both streams full", redirect=">/dev/full 2>&1"),
    Condition("stdout broken", redirect="| true", codes=(0, 2, 141)),
    Condition("both streams broken", redirect="2>&1 | true", codes=(0, 2, 141)),
    Condition("ASCII streams", environment={"PYTHONIOENCODING": "ascii"}),
    Condition("Latin-1 streams", environment={"PYTHONIOENCODING": "latin-1"}),
    Condition("C locale", environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    Condition("no HOME", environment={"HOME": None, "LABELGAP_CACHE": None, "XDG_CACHE_HOME": None}),
    Condition("HOME is a file", environment={"HOME": "/dev/null", "LABELGAP_CACHE": None, "XDG_CACHE_HOME": None}),
    Condition("no TMPDIR", environment={"TMPDIR": "/dev/null/none"}),
    Condition("deleted folder", deleted_folder=True),
)


def write_data(folder: Path) -> None:
    """Write photos whose names and classes are not ASCII, their table, and a finished run."""
    (folder / "photos").mkdir()
    rows = ["image,split,rot\N{LATIN SMALL LETTER E WITH ACUTE},gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n \N{SNOWMAN}"]
    random = np.random.default_rng(0)
    for number in range(60):
        pixels = np.kron(random.integers(0, 120, (4, 5, 3)), np.ones((10, 10, 1))).astype(np.uint8)
        pixels[..., number % 2] += 120
        Image.fromarray(pixels).save(folder / "photos" / f"{number}\N{LATIN SMALL LETTER O WITH STROKE}.png")
        split = ("train", "train", "val", "val", "test", "test")[number % 6]
        green = number % 2 if split != "train" else ""
        rows.append(f"{number}\N{LATIN SMALL LETTER O WITH STROKE}.png,{split},{1 - number % 2},{green}")
    (folder / "tags.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    train = [sys.executable, "-m", "labelgap", *commands(folder)["train"]]
    subprocess.run(train, check=True, capture_output=True)
    (folder / "new").rename(folder / "run")


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands that are tried, with absolute paths."""
    data, run = [str(folder / "tags.csv"), "--images", str(folder / "photos")], str(folder / "run")
    return {
        "methods": ["methods"],
        "backbones": ["backbones"],
        "inspect": ["inspect", *data],
        "inspect-json": ["inspect", *data, "--json"],
        "convert": ["convert", *data, "--to", "csv", "--out", str(folder / "converted.csv"), "--force"],
        "train": ["train", *data, "--out", str(folder / "new"), "--epochs", "1", "--device", "cpu"],
        "evaluate": ["evaluate", run, *data, "--device", "cpu"],
        "predict": ["predict", run, str(folder / "photos"), "--out", str(folder / "predicted.csv"), "--force"],
        "audit": ["audit", run],
        "report": ["report", run],
        "cache": ["cache"],
    }


def run_command(arguments: list[str], condition: Condition, folder: Path) -> tuple[int, str]:
    """Run a command under a condition; return its exit code and what it wrote to standard error."""
    environment = {**os.environ, "LABELGAP_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    for name, value in condition.environment.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    script = f'"$@" {condition.redirect}; exit ${{PIPESTATUS[0]}}'
    started = folder
    if condition.deleted_folder:
        started = folder / "deleted"
        started.mkdir()
        script = f'rmdir "{started}"; {script}'

    def limit() -> None:
        if condition.limit is not None:
            kind, value = condition.limit
            resource.setrlimit(kind, (value, value))

    command = ["bash", "-c", script, "bash", sys.executable, "-m", "labelgap", *arguments]
    result = subprocess.run(command, cwd=started, env=environment, preexec_fn=limit, capture_output=True)
    return result.returncode, result.stderr.decode(errors="replace")


def find_problem(code: int, errors: str, condition: Condition) -> str:
    """Return what is wrong with the end of a command; "" for a command that works or ends with one message."""
    lines = [line for line in errors.splitlines() if line.strip()]
    if "Traceback" in errors or "Exception ignored" in errors:
        return f"a traceback: {lines[-1]}"
    if code not in condition.codes:
        return f"exit code {code}: {lines[-1] if lines else 'no message'}"
    if code == 2 and "labelgap:" not in errors and "2>" not in condition.redirect:
        return "exit code 2 without a message"
    return ""


def main() -> None:
    chosen = [condition for condition in CONDITIONS if not sys.argv[1:] or condition.name in sys.argv[1:]]
    tried, problems = 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        for condition in chosen:
            for command, arguments in commands(folder).items():
                code, errors = run_command(arguments, condition, folder)
                problem = find_problem(code, errors, condition)
                last = (errors.strip().splitlines() or [""])[-1]
                print(
                    f"{condition.name:<22}{command:<14}{code:>4}  {'FAILED: ' + problem if problem else last[:150]}",
                    flush=True,
                )
                tried, problems = tried + 1, problems + bool(problem)
                shutil.rmtree(folder / "new", ignore_errors=True)
    print(f"{tried:,} commands, {problems:,} failures")


if __name__ == "__main__":
    main()
