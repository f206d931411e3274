"""Messages and progress on standard error: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from labelgap.core.terminal import make_console
from labelgap.core.text import format_duration

LINE_SECONDS: Final = 30.0
LINE_SHARE: Final = 0.05
"""Seconds between two lines at least, and their share of the time so far: work of a day takes about 120 lines."""
NOTE_SECONDS: Final = 0.2
Note = Callable[[], str]  # returns the text beside the progress; called only when it is shown
_Move = Callable[[int, Note | None], None]


class Reporter:
    """Prints messages and progress to standard error, of the first process; nothing when ``quiet``.

    Where standard error is no terminal, progress is a line now and then. ``done`` are the steps of the innermost bar.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet or not _is_main_process()
        self.console = make_console(stderr=True, quiet=self.quiet, soft_wrap=True)
        self._move: _Move | None = None
        self.done = 0
        self._muted = False
        self._progress: Progress | None = None

    @property
    def draws_bars(self) -> bool:
        """Whether standard error is a terminal; colors that are forced (FORCE_COLOR) do not make it one."""
        return self.console.is_interactive and self.console.file.isatty()

    @property
    def silent(self) -> bool:
        """Whether messages are not shown."""
        return self.quiet or self._muted

    def log(self, text: str) -> None:
        """Print a message."""
        if not self._muted:
            self.console.print(text)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Show progress and no messages while the block runs: those of one of many parts of the work."""
        outer, self._muted = self._muted, True
        try:
            yield
        finally:
            self._muted = outer

    @contextmanager
    def resumable(self, stored: Callable[[], bool] = lambda: True, part: str = "head") -> Iterator[None]:
        """Say after a Ctrl-C in the block what the same command does: resume, where a ``part`` of it is stored."""
        try:
            yield
        except KeyboardInterrupt:
            if stored():
                self.log("stopped: what was finished is stored, and the same command resumes from there")
            else:
                self.log(f"stopped before the first {part} was finished: the same command trains all of them")
            raise

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[None]:
        """Show the progress of ``total`` steps while the block runs; ``advance`` moves that of the innermost block."""
        if self.quiet:
            yield
            return
        outer, show = (self._move, self.done), self._draw_bar if self.draws_bars else self._print_lines
        with show(title, total, done) as self._move:
            self.done = done
            try:
                yield
            finally:
                self._move, self.done = outer

    def advance(self, steps: int = 1, note: Note | None = None) -> None:
        """Move the progress; 0 steps say that the work continues."""
        self.move_to(self.done + steps, note)

    def move_to(self, done: int, note: Note | None = None) -> None:
        """Show that so many steps are done; fewer than before where a part of the work is done again."""
        if self._move is not None:
            self.done = done
            self._move(done, note)

    @contextmanager
    def _draw_bar(self, title: str, total: int, done: int) -> Iterator[_Move]:
        """Draw a bar, below those of outer blocks; rich does not redirect streams, which would escape the bar."""
        outer, noted = self._progress, 0.0
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
        )
        options: dict[str, Any] = {"transient": True, "redirect_stdout": False, "redirect_stderr": False}
        with nullcontext(outer) if outer else Progress(*columns, console=self.console, **options) as progress:
            task, self._progress = progress.add_task(title, total=total, completed=done, note=""), progress

            def move(done: int, note: Note | None) -> None:
                nonlocal noted
                progress.update(task, completed=done)
                now = time.monotonic()
                if note is not None and now - noted > NOTE_SECONDS:
                    noted = now
                    progress.update(task, note=note())

            try:
                yield move
            finally:
                self._progress = outer
                if outer:
                    outer.remove_task(task)

    @contextmanager
    def _print_lines(self, title: str, total: int, done: int) -> Iterator[_Move]:
        """Print a line now and then: the share that is done, the note, and the time that is left."""
        started, first = time.monotonic(), done
        due = started + LINE_SECONDS

        def move(done: int, note: Note | None) -> None:
            nonlocal due
            now = time.monotonic()
            if now < due or done >= total:
                return
            elapsed = now - started
            due = now + max(LINE_SECONDS, LINE_SHARE * elapsed)
            parts = [f"{title}: {100 * done // total} %", *([] if note is None else [note()])]
            if done > first:
                parts.append(f"about {format_duration(elapsed * (total - done) / (done - first))} left")
            self.console.print("  ".join(parts))

        yield move


def _is_main_process() -> bool:
    """Return whether this process is the one that prints; without PyTorch there is no other."""
    if "torch" not in sys.modules:
        return True
    from labelgap.core.distributed import is_main_process

    return is_main_process()
