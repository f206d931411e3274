"""A PostScript file under the name of a photo, and a program ``gs`` that leaves a trace when it is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import EpsImagePlugin, Image

POSTSCRIPT = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 40 30
%%EndComments
0 0 moveto 40 30 lineto stroke
%%EOF
"""


class GhostscriptTrace:
    """Puts the program first on PATH; ``started`` tells whether anything called it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "bin").mkdir()
        program, self.trace = folder / "bin" / "gs", folder / "trace.txt"
        program.write_text(f'#!/bin/sh\necho "$@" >> "{self.trace}"\necho 10.0\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
        self.check(folder / "check.jpg")

    @property
    def started(self) -> bool:
        return self.trace.exists()

    def check(self, path: Path) -> None:
        """Pillow by itself does start it: otherwise the tests would prove nothing."""
        path.write_bytes(POSTSCRIPT)
        with Image.open(path) as image, pytest.raises(OSError):
            image.load()
        assert self.started
        self.trace.unlink()
        path.unlink()
