"""A real Chromium for tests, with the patience of a busy machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.waiting import PATIENCE

__all__ = ["CHROMIUM", "needs_browser", "new_page", "start_browser"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine (scripts/setup installs it)"),
]


@contextmanager
def start_browser() -> Iterator[Any]:
    """A browser, until the block ends; without one the test is skipped."""
    playwright: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * PATIENCE)
        yield browser
        browser.close()


def new_page(browser: Any, width: int = 1280, height: int = 800, **options: Any) -> Any:
    """A page of a new window, as of a browser that was never used."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(1000 * PATIENCE)
    return context.new_page()
