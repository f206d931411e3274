"""Messages and a progress bar on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from labelgap.core.distributed import is_main_process
from labelgap.core.terminal.console import make_console

__all__ = ["Reporter"]


class Reporter:
    """Prints messages and a progress bar to standard error; nothing when ``quiet``, and no bar without a terminal.

    Of several processes only the first prints.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet or not is_main_process()
        self.console = make_console(stderr=True, quiet=self.quiet, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._last_note = 0.0

    def log(self, text: str) -> None:
        """Print a message."""
        self.console.print(text)

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[None]:
        """Show a bar of ``total`` steps while the block runs; ``advance`` moves it."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
        )
        shown = self.console.is_terminal and not self.quiet
        with Progress(*columns, console=self.console, transient=True, disable=not shown) as progress:
            self._progress = progress
            self._task = progress.add_task(title, total=total, completed=done, note="")
            try:
                yield
            finally:
                self._progress = self._task = None

    def advance(self, steps: int = 1, note: Callable[[], str] | None = None) -> None:
        """Move the bar. ``note`` returns the text beside it; it is called five times a second at most."""
        if self._progress is None or self._task is None or self._progress.disable:
            return
        self._progress.update(self._task, advance=steps)
        now = time.monotonic()
        if note is not None and now - self._last_note > 0.2:
            self._last_note = now
            self._progress.update(self._task, note=note())
