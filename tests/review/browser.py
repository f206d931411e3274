"""The page in a real Chromium."""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin, urlsplit

from tests.browsers import new_page
from tests.review.http_client import TOKENS
from tests.waiting import wait_until

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


IMPATIENT = (
    "const later = setTimeout; setTimeout = (f, time) => later(f, time % 1000 || time > 4000 ? time : time / 8);"
)
"""Has a page poll, and try again, eight times as often as it would; messages stay as long as ever."""


def opened(chromium: Any, address: str, size: str = "desktop") -> Any:
    """Open a page; whatever its console says is an error."""
    return go(opened_without_waiting(chromium, "about:blank", size), address)


def opened_without_waiting(chromium: Any, address: str, size: str = "desktop") -> Any:
    """Open a page that may not be one of the review."""
    page = new_page(chromium, *SIZES[size])
    page.add_init_script(IMPATIENT)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if "Content Security" in message.text else 0)
    page.goto(address)
    return page


def new_tab(page: Any) -> Any:
    """Another page in the same window."""
    return page.context.new_page()


def go(page: Any, address: str) -> Any:
    """Open a page in a window that has opened the link of its server before."""
    port = urlsplit(address).port or 0
    if port in TOKENS:
        page.context.add_cookies([{"name": f"labelgap-{port}", "value": TOKENS[port], "url": urljoin(address, "/")}])
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    return page


def all_data(page: Any, name: str) -> list[str]:
    """What every entry has as a value of ``data-name``."""
    found: list[str] = page.eval_on_selector_all(".entry", f"list => list.map((entry) => entry.dataset.{name})")
    return found


def misplaced(page: Any, *parts: str) -> list[Any]:
    """Buttons that are outside the window or cover another one, and whether the page is too wide, in every size."""
    found = []
    for width, height in SIZES.values():
        page.set_viewport_size({"width": width, "height": height})
        for _ in range(40):  # a busy browser lays a page out in its own time
            measured = [(width, part, *page.evaluate(MISPLACED, part)) for part in parts]
            if wrong := [each for each in measured if each[3:] != ([], [], False)]:
                page.wait_for_timeout(250)
            else:
                break
        found += wrong
    return found


def states(page: Any, count: int) -> list[str]:
    return all_data(page, "value")[:count]


def wait_for(page: Any, holds: str) -> None:
    """Wait until an expression holds (playwright's own wait_for_function is an eval, which the page forbids)."""
    wait_until(lambda: page.evaluate(holds))


def wait_until_sent(page: Any) -> None:
    wait_for(page, "!Object.keys(localStorage).some((key) => key.startsWith('labelgap/'))")
