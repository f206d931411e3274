"""Images that other people made, given to the commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.conftest import call
from tests.data.decoding.postscript import POSTSCRIPT, GhostscriptTrace

COMMANDS = (
    ("inspect", "tags.csv", "--images", "photos"),
    ("train", "tags.csv", "--images", "photos", "--epochs", "1", "--out", "run"),
)


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
@pytest.mark.parametrize("command", COMMANDS)
def test_postscript_under_the_name_of_a_photo_is_named_and_not_interpreted(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    ghostscript = GhostscriptTrace(photos, monkeypatch)
    (photos / "photos" / "3.jpg").write_bytes(POSTSCRIPT)
    assert call(*command) == 2
    told = capsys.readouterr().err
    assert "3.jpg" in told and "PostScript" in told
    assert not ghostscript.started
