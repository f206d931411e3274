"""A report in a real browser: on a phone and on a desktop, light and dark, on paper, and the numbers of a figure."""

from __future__ import annotations

from collections.abc import Callable

from tests.browsers import needs_browser, new_page, start_browser

from labelgap.data.dataset import Dataset
from labelgap.reporting import write_report
from labelgap.training import Run

pytestmark = needs_browser
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 28)"
CUT = """() => [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility()
  && !each.closest(".scroll, svg") && each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => each.outerHTML.slice(0, 80))"""


def test_a_report_fits_every_screen_and_paper_and_gives_its_numbers(run_of: Callable[..., Run], data: Dataset) -> None:
    path = write_report(run_of(method="an", trace="off"), data=data)
    with start_browser() as browser:
        for width, scheme in ((1280, "light"), (390, "dark")):
            page = new_page(browser, width, color_scheme=scheme, offline=True)
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
