"""Commands in processes that lack something, or are stopped: a result or one message, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.waiting import PATIENCE

from labelgap.cli.failures import describe_failure

COMMAND = [sys.executable, "-m", "labelgap"]
SOURCE = str(Path(__file__).resolve().parents[2] / "src")
OWN_COMMAND = """
import time
from pathlib import Path
from labelgap.cli.main import main, make_app
from labelgap.core.files import atomic_path

@make_app("").command()
def wait():
    with atomic_path("result.txt") as temporary:
        temporary.write_text("half")
        print("ready", flush=True)
        time.sleep(3600)

@make_app("").command()
def open_files():
    opened = [open("/dev/null") for _ in range(1000)]

@make_app("").command()
def fail(storage: str = "", url: str = ""):
    raise TypeError("no \\x1b[31mcolor")

main()
"""


def run(
    *command: str,
    folder: Path,
    shell: str = "",
    limit: tuple[int, int] | None = None,
    environment: Mapping[str, str | None] = {},
) -> subprocess.CompletedProcess[str]:
    """Run a command, with shell redirections and changes of the environment: None removes a variable."""
    changed: dict[str, str | None] = {**os.environ, "LABELGAP_CACHE": str(folder / "cache"), **environment}
    return subprocess.run(
        ["bash", "-c", f'"$@" {shell}; exit ${{PIPESTATUS[0]}}', "bash", *command],
        cwd=folder,
        env={name: value for name, value in changed.items() if value is not None},
        preexec_fn=None if limit is None else lambda: resource.setrlimit(limit[0], (limit[1], limit[1])),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )


@pytest.mark.parametrize(
    ("shell", "code", "message"),
    [
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 2, "labelgap: standard output cannot be written (no space left on device). "),
        (">/dev/full 2>&1", 2, ""),
    ],
)
def test_a_standard_stream_that_is_closed_or_full(shell: str, code: int, message: str, tmp_path: Path) -> None:
    ended = run(*COMMAND, "cache", "--json", folder=tmp_path, shell=shell)
    assert ended.returncode == code and ended.stderr.startswith(message)
    assert len(ended.stderr.splitlines()) == bool(message)


def test_a_reader_that_is_gone_ends_a_command_as_its_signal_would(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*COMMAND, "--help"], stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (141, b"")
    os.close(writing)


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_stream_that_is_not_utf8_gets_escapes_and_the_same_json(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{SNOWMAN}"
    folder.mkdir()
    ended = run(*COMMAND, "cache", "--json", folder=folder, environment=environment)
    assert ended.returncode == 0 and not ended.stderr
    assert os.fsencode(json.loads(ended.stdout)["folder"]) == os.fsencode(folder / "cache")


def test_no_home_and_no_current_folder_are_told(tmp_path: Path) -> None:
    nowhere = {"XDG_CACHE_HOME": None, "LABELGAP_CACHE": None, "TMPDIR": "/dev/null/none"}
    ended = run(*COMMAND, "cache", "--limit", "default", folder=tmp_path, environment={**nowhere, "HOME": "/dev/null"})
    assert ended.returncode in (0, 2) and "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())
    (tmp_path / "gone").mkdir()
    inner = f'cd "{tmp_path}/gone" && rmdir "{tmp_path}/gone" && exec "$@"'
    ended = run("bash", "-c", inner, "bash", *COMMAND, "demo", folder=tmp_path, environment={"PYTHONPATH": SOURCE})
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert ended.stderr.startswith("labelgap: the current folder") and not ended.stdout


def test_too_few_file_descriptors_and_too_little_memory_are_told(tmp_path: Path) -> None:
    script = [sys.executable, "-c", OWN_COMMAND, "open-files"]
    few = run(*script, folder=tmp_path, limit=(resource.RLIMIT_NOFILE, 100))
    assert few.returncode == 2 and few.stderr.startswith("labelgap: too many files are open")
    small = run(*COMMAND, "inspect", "digits", folder=tmp_path, limit=(resource.RLIMIT_AS, 400 << 20))
    assert small.returncode == 2 and "419.4 MB" in small.stderr
    assert few.stderr.count("\n") == small.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "there is not enough memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:113] DefaultCPUAllocator: not enough memory: you"), "not enough"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "there is not enough memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "there is not enough memory"),
        (ImportError("_multiarray.so: cannot open shared object file: Too many open files"), "too many files are open"),
        (RuntimeError("can't start new thread"), "no further process or thread"),
        (OSError(errno.ENOSPC, "No space left on device", "a.csv"), r"the disk is full \(a.csv\)"),
        (OSError(errno.EIO, "Input/output error", "a.csv"), r"input/output error \(a.csv\)"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (UnicodeEncodeError("ascii", "\u2026", 0, 1, "ordinal not in range"), "cannot be written in ascii"),
    ],
)
def test_what_ran_out_is_named_also_where_another_error_hides_it(error: Exception, message: str) -> None:
    assert re.match(f".*{message}", describe_failure(error) or "")
    hiding = KeyError("a")
    hiding.__context__ = error
    if not isinstance(error, OSError) or error.errno == errno.ENOSPC:
        assert re.match(f".*{message}", describe_failure(hiding) or "")
    assert describe_failure(KeyError("a")) is None


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "labelgap: stopped\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, "")],
)
def test_a_signal_ends_a_command_with_its_code(number: signal.Signals, code: int, message: str, tmp_path: Path) -> None:
    def usual_signals() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    command, pipe = [sys.executable, "-c", OWN_COMMAND, "wait"], subprocess.PIPE
    started = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, preexec_fn=usual_signals)
    try:
        assert started.stdout is not None and started.stdout.readline() == "ready\n"
        started.send_signal(number)
        _, errors = started.communicate(timeout=PATIENCE)
    finally:
        started.kill()
        started.communicate()
    assert (started.returncode, errors) == (code, message)
    assert not list(tmp_path.iterdir())


def test_a_bug_is_one_message_that_names_the_file_of_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    places = {"TMPDIR": str(tmp_path / "temporary")}
    options = ("--storage", "postgresql://ann:secret@db/sweeps", "--url", "postgresql://db/sweeps?password=secret")
    ended = run(sys.executable, "-c", OWN_COMMAND, "fail", *options, folder=tmp_path, environment=places)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(r"labelgap: unexpected error (TypeError: no \x1b[31mcolor)")
    (written,) = (tmp_path / "temporary").iterdir()
    assert str(written) in ended.stderr and written.stat().st_mode & 0o077 == 0
    assert written.read_text().rstrip().endswith("TypeError: no \x1b[31mcolor")
    assert "ann:***@db" in written.read_text() and "secret" not in written.read_text()
    places["LABELGAP_DEBUG"] = "1"
    debug = run(sys.executable, "-c", OWN_COMMAND, "fail", folder=tmp_path, environment=places)
    assert debug.returncode == 1 and "Traceback" in debug.stderr and "\x1b" not in debug.stderr
    usage = run(*COMMAND, "cache", "--lim\x1b[31mit", folder=tmp_path)
    assert usage.returncode == 2 and usage.stderr.startswith("labelgap: ") and "\x1b" not in usage.stderr
