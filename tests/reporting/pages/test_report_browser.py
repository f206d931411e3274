"""A report in a real browser: on a phone and on a desktop, light and dark, on paper, and the numbers of a figure."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from labelgap.data.dataset import Dataset
from labelgap.reporting import write_report
from labelgap.training import Run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 28)"
CUT = """() => [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility()
  && !each.closest(".scroll, svg") && each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => each.outerHTML.slice(0, 80))"""


def test_a_report_fits_every_screen_and_paper_and_gives_its_numbers(run_of: Callable[..., Run], data: Dataset) -> None:
    playwright: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = write_report(run_of(method="an", trace="off"), data=data)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in ((1280, "light"), (390, "dark")):
            context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
            page = context.new_page()
            problems: list[str] = []
            page.on("console", lambda message, problems=problems: problems.append(message.text))
            page.on("pageerror", lambda error, problems=problems: problems.append(str(error)))
            page.goto(path.as_uri())
            assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert page.evaluate(CUT) == []
            color = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert color == (DARK if scheme == "dark" else LIGHT)
            numbers = page.locator("details.numbers", has_text="learning-curves.csv")
            table = numbers.locator("table")
            assert not table.is_visible()
            numbers.locator("summary").click()
            assert table.is_visible() and not problems
        with page.expect_download() as download:
            numbers.locator("a").click()
        assert download.value.suggested_filename == "learning-curves.csv"
        assert download.value.path().read_text(encoding="utf-8").startswith("epoch,loss,score\n1,0.7,")
        page.emulate_media(media="print")  # of the dark phone
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == LIGHT
        for each in page.locator("details").all():
            height = each.evaluate("each => each.getBoundingClientRect().height - each.firstElementChild.offsetHeight")
            assert height > 20 or each.locator("table").count() == 0, "what is folded on a screen is on the paper"
        assert not problems
        browser.close()
