"""Progress: lines without control characters in a log, bars on a terminal, and their interval."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace

import pytest

from labelgap.training import progress
from labelgap.training.progress import Reporter

NESTED = """
from labelgap.training import progress
progress.LINE_SECONDS = progress.LINE_SHARE = progress.NOTE_SECONDS = 0.0
reporter = progress.Reporter()
with reporter.bar("trials", 4):
    reporter.advance(1, note=lambda: "trial 0")
    with reporter.bar("features", 10):
        reporter.advance(5)
    reporter.log("a message")
    reporter.advance(2, note=lambda: "trial 1")
    reporter.advance(0)
    reporter.advance(1, note=lambda: "the last one, which needs no line")
reporter.advance()
"""
IN_A_COMMAND = f"""
from labelgap.core.terminal import protect_streams
with protect_streams():
    exec({NESTED!r})
"""
DAY = 24 * 3600


def test_a_log_gets_lines_without_control_characters_where_colors_are_forced_too() -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    ended = subprocess.run([sys.executable, "-c", NESTED], env=environment, check=True, capture_output=True)
    assert not ended.stdout and all(line.isprintable() for line in ended.stderr.decode().splitlines())
    assert re.sub("about [0-9.]+ (s|min) left", "ETA", ended.stderr.decode()).splitlines() == [
        "trials: 25 %  trial 0  ETA",
        "features: 50 %  ETA",
        "a message",
        "trials: 75 %  trial 1  ETA",
        "trials: 75 %  ETA",
    ]


@pytest.mark.parametrize("script", [NESTED, IN_A_COMMAND])
def test_a_terminal_gets_a_bar_for_each_and_no_lines(script: str) -> None:
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", script], stderr=end, env=environment) as process:
        os.close(end)
        shown = b""
        with suppress(OSError):  # the end of a terminal, on Linux
            while part := os.read(terminal, 4096):
                shown += part
    os.close(terminal)
    text = shown.decode()
    assert process.returncode == 0 and "\x1b[2K" in text and " %" not in text
    assert "\\x1b" not in text, "what rich draws is not escaped"
    assert text.index("features") < text.index("a message")
    assert "the last one" in text.split("a message")[1]  # the outer bar still moves


def test_lines_come_every_half_minute_or_rarely(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, notes, printed, reporter = SimpleNamespace(now=1000.0), list[str](), list[int](), Reporter()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with reporter.bar("training", DAY):
        for second in range(1, DAY + 1):
            clock.now += 1
            reporter.advance(1, lambda: notes.append("") or "epoch 1/10")  # type: ignore[func-returns-value]
            if capsys.readouterr().err:
                printed.append(second)
    assert printed[:3] == [30, 60, 90] and len(printed) == len(notes) < 130
    assert all(after - before <= max(30, 0.05 * before + 1) for before, after in pairwise(printed))
    assert DAY - printed[-1] < 0.06 * DAY
    for quiet in (False, True):
        clock.now, reporter = 0.0, Reporter(quiet)
        with reporter.bar("training", 100, 50):  # a resumed work counts only its own time
            for clock.now, steps in ((60.0, 0), (120.0, 10)):
                reporter.advance(steps)
    assert capsys.readouterr().err == "training: 50 %\ntraining: 60 %  about 8 min left\n"


def test_a_part_that_is_done_again_moves_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
    monkeypatch.setattr(progress, "LINE_SHARE", 0.0)
    monkeypatch.setattr(progress, "format_duration", lambda seconds: "x")
    reporter = Reporter()
    with reporter.bar("shares", 4, 1):
        with reporter.muted():
            reporter.log("of one part")
            with reporter.bar("training", 10):
                reporter.advance(6)
                reporter.move_to(2)
                reporter.advance(3)
                reporter.advance(9)  # more than there is: no line
        reporter.log("of the whole")
        reporter.advance()
    lines = ["training: 60 %", "training: 20 %", "training: 50 %", "of the whole", "shares: 50 %"]
    assert [line.removesuffix("  about x left") for line in capsys.readouterr().err.splitlines()] == lines
