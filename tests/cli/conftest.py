"""What the tests of the commands share: how to call a command, and a few photos."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from markupsafe import Markup
from tests.sample_photos import write_color_photos
from tests.studies.compare.small_features import write

from labelgap.cli.main import main

Refused = Callable[..., str]


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
    monkeypatch.setattr("labelgap.reporting.html.both_screens", lambda *given: (Markup("<svg/>"), Markup("<svg/>")))


@pytest.fixture
def drawn() -> None:
    """For tests whose pages shall have their drawings."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write pages without drawings, but for tests that ask for ``drawn``."""
    if "drawn" not in request.fixturenames:
        undraw(monkeypatch)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve photos, red or green, and a CSV with gaps, in a folder that is the current one."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_color_photos()
    return tmp_path


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Features with few labels, in a folder that is the current one, and a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    write(tmp_path / "vectors.npz")
    return tmp_path


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Call a command that ends with one message, which is returned, and leaves no files."""

    def refuse(*arguments: str) -> str:
        assert call(*arguments) == 2
        said = capsys.readouterr().err
        assert said.count("labelgap:") == 1 and "Traceback" not in said and not list(tmp_path.iterdir())
        return said

    monkeypatch.chdir(tmp_path)
    return refuse
