"""What the tests of the commands share: how to call a command and see its screen, and a few photos."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from markupsafe import Markup
from tests.sample_photos import write_color_photos
from tests.studies.compare.small_features import write

from labelgap.cli.main import main, make_app
from labelgap.models import inference

QUICK = ("--backbone", "small-cnn", "--protocol", "linear", "--epochs", "1", "--method", "an", "--device", "cpu")
"""How a command trains where only that it has trained matters."""


def call(*arguments: str) -> int:
    """Run a command in this process and return its exit code."""
    previous, sys.argv = sys.argv, ["labelgap", *arguments]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = previous
    return 0


def undraw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the drawings out of the pages that are written from now on: those of one run take a second or two."""
    monkeypatch.setattr("labelgap.reporting.page.both_screens", lambda *given: (Markup("<svg/>"), Markup("<svg/>")))


@pytest.fixture
def drawn() -> None:
    """For tests whose pages shall have their drawings."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write pages without drawings, but for tests that ask for ``drawn``."""
    if "drawn" not in request.fixturenames:
        undraw(monkeypatch)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command runs in an empty folder, and has a cache of its own."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve photos, red or green, and a CSV with gaps, in a folder that is the current one."""
    write_color_photos()
    return tmp_path


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Features with few labels, in a folder that is the current one, and a wide terminal."""
    monkeypatch.setenv("COLUMNS", "150")
    write(tmp_path / "vectors.npz")
    return tmp_path


class Screen:
    """Calls commands in this process, and returns what they print."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def _call(self, arguments: Sequence[str], code: int) -> tuple[str, str]:
        self._capsys.readouterr()
        assert call(*arguments) == code, arguments
        return self._capsys.readouterr()

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """The output, or the error, for a snapshot: what differs from run to run is a #."""
        shown = self._call(arguments, code)[code != 0].replace(str(self._folder), "#")
        return re.sub(r" *[±+-]?\d+(?:\.\d+|\.?\d*e[+-]\d+)| *\d+(?= s\b)", " #", shown)

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The one object that a command prints."""
        return json.loads(self._call((*arguments, "--json"), code)[0])

    def errors(self, command: str, *more: str) -> dict[str, str]:
        """The messages of commands that end with one and leave no files, for a snapshot."""
        found, before = {}, self._files()
        for words in more:
            _, said = self._call(shlex.split(f"{command} {words}"), 2)
            assert said.startswith("labelgap: ") and said.count("labelgap:") == 1 and "Traceback" not in said, words
            assert self._files() == before, words
            found[words] = said.replace(str(self._folder), "#").removeprefix("labelgap: ").rstrip()
        return found

    def _files(self) -> set[Path]:
        paths = self._folder.rglob("*")
        return {path for path in paths if "cache" not in path.parts and ".sqlite-" not in path.name}


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Screen:
    """What commands print, in a folder that is the current one, whatever precision this CPU is fastest in."""
    monkeypatch.setattr(inference, "cpu_precision", lambda: "float32")
    return Screen(tmp_path, capsys)


def copied_commands(text: str) -> list[str]:
    """The commands about reviews at the end of lines, after spaces or a heading of one word."""
    return re.findall(r"^\w* *(labelgap (?:review|evaluate|apply) .*)$", text, re.M)


def parse_command(words: list[str]) -> None:
    """Let the parser of the program take a command: its name, options and the types of their values."""
    group: Any = typer.main.get_command(make_app())
    context, rest = group.make_context("labelgap", list(words)), words
    while hasattr(group, "commands") and rest and not rest[0].startswith("-"):
        name, group, rest = group.resolve_command(context, rest)
        context = group.make_context(name, list(rest), parent=context)


def check_command(command: str, begins: str) -> list[str]:
    """Check how a command begins and that the command line takes all of it; return its words."""
    assert command.startswith(f"labelgap {begins}"), command
    words = shlex.split(command)[1:]
    parse_command(words)
    return words


Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Calls a command that ends with a code, and returns all that it prints: messages, then output."""

    def call_and_read(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert call(*arguments) == code, (arguments, capsys.readouterr())
        said = capsys.readouterr()
        return said.err + said.out

    return call_and_read
