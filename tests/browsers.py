"""A real Chromium for tests, with the patience of a busy machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.waiting import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine (scripts/setup installs it)"),
]
ADDRESS_BAR = ("WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup", "WebUIOmniboxPopup")
"""Pages that Chromium keeps ready beneath the address bar of each window: they take half of the time of a test."""
SWITCHED_OFF = (*ADDRESS_BAR, "HttpsUpgrades", "LensOverlay", "MediaRouter", "OptimizationHints", "PaintHolding")
"""Chromium reads the last list of these alone, so that those of Playwright's own which concern a page are repeated."""
ARGUMENTS = ["--no-sandbox", f"--disable-features={','.join(SWITCHED_OFF)}"]


@contextmanager
def start_browser() -> Iterator[Any]:
    """A browser, until the block ends; without one the test is skipped."""
    playwright: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=1000 * PATIENCE)
        yield browser
        browser.close()


def new_page(browser: Any, width: int = 1280, height: int = 800, **options: Any) -> Any:
    """A page of a new window, as of a browser that was never used."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(1000 * PATIENCE)
    return context.new_page()


def close_windows(browser: Any) -> None:
    """Close every window, so that none keeps asking a server that is gone."""
    for context in browser.contexts:
        context.close()
