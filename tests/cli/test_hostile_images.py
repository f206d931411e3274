"""Images that other people made, given to the commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image
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


def test_an_image_of_too_many_pixels_is_named_with_the_way_to_raise_the_limit(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("1", (400, 300)).save(photos / "photos" / "3.jpg", "PNG")
    monkeypatch.setenv("LABELGAP_MAX_PIXELS", "100000")
    assert call(*COMMANDS[0]) == 2
    told = capsys.readouterr().err
    assert "3.jpg" in told and "100,000 pixels" in told and "LABELGAP_MAX_PIXELS" in told
    monkeypatch.setenv("LABELGAP_MAX_PIXELS", "120000")
    assert call(*COMMANDS[0]) == 0
    monkeypatch.setenv("LABELGAP_MAX_PIXELS", "many")
    assert call(*COMMANDS[0]) == 2
    assert "LABELGAP_MAX_PIXELS" in capsys.readouterr().err
