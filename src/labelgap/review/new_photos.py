"""New photos for the run that is reviewed: the page starts ``labelgap train RUN --add`` in a process of its own.

The page can then name any file of this machine, and an error may quote it. So only a server that no other machine
reaches offers it. When the process has succeeded, the server starts again, with the new photos in its lists, at the
same address; decisions that are made meanwhile wait in the browser.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from labelgap.review.folder import ReviewFolder

_ERROR = "labelgap: "  # the beginning of the message of a command that fails


class NewPhotos:
    """The command that adds photos, for the run of a folder; ``on_added`` is called when it has succeeded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.added = folder.absolute(), False
        self.on_added: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @staticmethod
    def are_possible(folder: ReviewFolder) -> bool:
        """Return whether photos can be added to what a folder holds: a linear run on a table that is where it was."""
        if folder.run is None or folder.random or folder.source is not None:
            return False
        config = folder.run.config
        return (
            config.protocol == "linear" and config.data.get("name") in ("csv", "parquet") and not config.data["steps"]
        )

    def start(self, place: str) -> bool:
        """Start to add the photos of a table or folder; return False where the command is running already."""
        with self._lock:
            if self.is_running:
                return False
            words = [sys.executable, "-m", "labelgap", "train", str(self.folder), f"--add={place}"]
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - the process writes to it, and pages read it
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": self._log}
            self._process = subprocess.Popen(words, **streams)  # type: ignore[call-overload]
        threading.Thread(target=self._wait, args=(self._process,), daemon=True).start()
        return True

    @property
    def origin(self) -> str:
        """The folder from which a relative path is understood."""
        return str(Path.cwd())

    @property
    def is_running(self) -> bool:
        """Whether the command runs, or has succeeded and the server is about to start again."""
        return self._process is not None and self._process.poll() in (None, 0)

    def state(self) -> dict[str, str | bool]:
        """Return whether the command is running, and its last line; the whole error of one that has failed."""
        with self._lock:
            if self._process is None or self._log is None:
                return {"running": False, "text": ""}
            running = self.is_running
            self._log.seek(0)
            text = self._log.read().decode(errors="replace").strip()
        error = text.rfind(f"\n{_ERROR}") + 1 or (0 if text.startswith(_ERROR) else len(text) - 2000)
        return {"running": running, "text": text.rpartition("\n")[2] if running else text[max(error, 0) :]}

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait() == 0:
            self.added = True
            self.on_added()
