"""What the tests of the commands share: how a command is called, and a few photos to call it on."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelgap.cli.main import main

__all__ = ["call", "photos"]


def call(*arguments: str) -> int:
    """Run a command in this process and return its exit code."""
    before, sys.argv = sys.argv, ["labelgap", *arguments]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    return 0


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve photos, red or green, and a CSV with gaps, in a folder that is the current one."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    rows = ["image,split,red,green"]
    for number in range(12):
        pixels = np.full((40, 50, 3), 20, dtype=np.uint8)
        pixels[..., number % 2] = 200 + number
        Image.fromarray(pixels).save(f"photos/{number}.jpg")
        split = ("train", "train", "val", "val", "test", "test")[number % 6]
        rows.append(f"{number}.jpg,{split},{1 - number % 2},{number % 2 if split != 'train' else ''}")
    Path("tags.csv").write_text("\n".join(rows) + "\n")
    return tmp_path
