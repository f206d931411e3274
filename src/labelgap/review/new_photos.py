"""New photos for the run that is reviewed: the page starts ``labelgap train RUN --add`` in a process of its own.

The page can name any file of this machine, so only a server that no other machine reaches offers it. Then the server
starts again at the same address, with the new photos.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from labelgap.audit.adding import NOTHING, check_run
from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.audit.candidates import read_metadata
from labelgap.core.errors import RunError
from labelgap.review.folder import ReviewFolder

_ERROR: Final = "labelgap: "  # the beginning of the message of a command that fails


class NewPhotos:
    """The command that adds photos, for the run of a folder; ``on_added`` is called when it has succeeded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.added = folder.absolute(), False
        self.is_running = False  # also while the server is about to start again
        self.on_added: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._text = ""

    @staticmethod
    def are_possible(folder: ReviewFolder) -> bool:
        """Return whether photos can be added to what a folder holds: a linear run on a table, audited by itself."""
        if folder.run is None or folder.source is not None:
            return False
        try:
            check_run(folder.run)
            # an audit with zero-shot scores is not made again by the command
            return read_metadata(folder.path / CANDIDATES)["zero_shot"] is None
        except RunError:
            return False

    def start(self, place: str) -> bool:
        """Start to add the photos of a table or folder; return False where the command is running already."""
        with self._lock:
            if self.is_running:
                return False
            words = [sys.executable, "-m", "labelgap", "train", str(self.folder), f"--add={place}"]
            self._text, silent = "", subprocess.DEVNULL
            process = subprocess.Popen(
                words, stdin=silent, stdout=silent, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
            )
            self.is_running = True
        threading.Thread(target=self._follow, args=(process,), daemon=True).start()
        return True

    @property
    def origin(self) -> str:
        """The folder from which a relative path is understood."""
        return str(Path.cwd())

    def state(self) -> dict[str, str | bool]:
        """Return whether the command is running, and its last line; the whole error of one that has failed."""
        running, text = self.is_running, self._text.strip()
        error = text.rfind(f"\n{_ERROR}") + 1 or (0 if text.startswith(_ERROR) else max(len(text) - 2000, 0))
        return {"running": running, "text": text.rpartition("\n")[2] if running else text[error:]}

    def _follow(self, process: subprocess.Popen[str]) -> None:
        with process:
            for line in process.stderr or ():
                self._text += line
        self.added = process.returncode == 0 and NOTHING not in self._text
        if self.added:
            self.on_added()
        self.is_running = self.added
