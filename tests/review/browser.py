"""The real command in a process of its own, and its page in a real Chromium."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.browsers import new_page
from tests.waiting import PATIENCE, wait_until

SIZES = {"desktop": (1280, 800), "tablet": (820, 1180), "phone": (390, 844)}
MISPLACED = """(within) => {
  const all = [...document.querySelectorAll(`${within} button, ${within} a.button`)];
  const shown = all.filter((each) => each.checkVisibility());
  const name = (each) => each.getAttribute("aria-label") ?? each.textContent.trim();
  const box = (each) => each.getBoundingClientRect();
  const bottom = within === "#viewer" ? innerHeight : Infinity;
  const inside = ({ left, right, bottom: end }) => left >= 0 && right <= innerWidth && end <= bottom;
  const outside = shown.filter((each) => !inside(box(each)));
  const before = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 1;
  const apart = (a, b) => before(box(a), box(b)) || before(box(b), box(a));
  const covered = shown.filter((each, at) => shown.slice(at + 1).some((other) => !apart(each, other)));
  return [shown.length, outside.map(name), covered.map(name), document.documentElement.scrollWidth > innerWidth];
}"""
"""How many buttons there are, which lie outside the window, which overlap, and whether the page is too wide."""


@dataclass
class Command:
    """``labelgap review``, running."""

    process: subprocess.Popen[str]
    address: str
    farewell: str = ""

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2].strip("/")


@contextmanager
def running(folder: Path, *options: str, port: str = "0") -> Iterator[Command]:
    """The command in a process of its own, until the block ends."""
    words = [sys.executable, "-m", "labelgap", "review", str(folder), "--no-browser", "--reviewer", "anna"]
    process = subprocess.Popen(
        [*words, "--port", port, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    command = Command(process, "")
    try:
        command.address = _address(process)
        yield command
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            command.farewell, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    """Read what the command prints until it prints its address; the output ends when the command does."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        found = re.search(r"(http://127\.0\.0\.1:\d+)/\n", line)
        if found:
            return found[1]
    raise AssertionError(f"the server did not start: {output}")


def opened(chromium: Any, address: str, size: str = "desktop") -> Any:
    """Open a page; whatever its console says is an error."""
    page = new_page(chromium, *SIZES[size])
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if "Content Security" in message.text else 0)
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    return page


def states(page: Any, count: int) -> list[str]:
    found: list[str] = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.value)")
    return found[:count]


def wait_for(page: Any, holds: str) -> None:
    """Wait until an expression holds (playwright's own wait_for_function is an eval, which the page forbids)."""
    wait_until(lambda: page.evaluate(holds))


def wait_until_sent(page: Any) -> None:
    wait_for(page, "!Object.keys(localStorage).some((key) => key.startsWith('labelgap/'))")
