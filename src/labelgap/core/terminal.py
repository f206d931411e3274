"""Standard streams, and consoles of rich: all text is escaped, and no failure of a stream ends in a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from labelgap.core.errors import LabelGapError
from labelgap.core.text import escape_control

BROKEN_PIPE: Final = 141  # exit code of a command whose reader is gone: 128 + SIGPIPE, as a shell reports it


class OutputError(LabelGapError):
    """Standard output cannot be written: what it is redirected to is full, or is not open for writing."""


class TerminalStream:
    """A text stream that escapes control characters, unless rich did before it added its colors.

    A broken pipe ends the process with ``BROKEN_PIPE``. Any other error is an ``OutputError``, or ignored for
    ``messages``.
    """

    def __init__(self, stream: TextIO, *, messages: bool, escape: bool = True) -> None:
        self._stream, self._messages, self._escape = stream, messages, escape

    @property
    def rich_proxied_file(self) -> TerminalStream:
        """The stream that a rich console writes to instead of this one."""
        return TerminalStream(self._stream, messages=self._messages, escape=False)

    def write(self, text: str) -> int:
        """Write text, escaped."""
        with self._errors():
            self._stream.write(escape_control(text) if self._escape else text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._errors():
            self._stream.flush()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            _discard(self._stream)
            raise SystemExit(BROKEN_PIPE) from None
        except OSError as error:
            _discard(self._stream)
            if not self._messages:
                reason = os.strerror(error.errno).lower() if error.errno else str(error)
                raise OutputError(
                    f"standard output cannot be written ({reason}). Files that were written before are complete."
                ) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def protect_streams() -> Iterator[None]:
    """Replace standard output and standard error by a ``TerminalStream`` each, while the block runs.

    Closed streams are opened on the null device: otherwise the next file would get their number, and messages of
    libraries. Letters that an encoding does not have become escapes; every line is written at once.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    streams = sys.stdout, sys.stderr
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    sys.stdout = cast(TextIO, TerminalStream(streams[0], messages=False))
    sys.stderr = cast(TextIO, TerminalStream(streams[1], messages=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


@contextmanager
def unescaped_output() -> Iterator[None]:
    """Give a library that draws a progress bar of its own the plain standard error, while the block runs."""
    current = sys.stderr
    if isinstance(current, TerminalStream):
        sys.stderr = cast(TextIO, current.rich_proxied_file)
    try:
        yield
    finally:
        sys.stderr = current


def _discard(stream: TextIO) -> None:
    """Send what is still buffered, and all that follows, to the null device: Python flushes again when it exits."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class _EscapingConsole(Console):
    """A console that escapes the control characters in what it renders; its own colors and cursor movements stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_control(segment.text))


def make_console(*, stderr: bool = False, **options: Any) -> Console:
    r"""Return a console that shows text as it is: control characters escaped, no markup, no emoji, no highlighting."""
    return _EscapingConsole(stderr=stderr, **{"markup": False, "emoji": False, "highlight": False, **options})
