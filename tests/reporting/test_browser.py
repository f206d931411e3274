"""Reports in a real browser: every screen and paper, light and dark, and the sortable table of classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browsers import needs_browser, new_page, start_browser
from tests.reporting.conftest import RunMaker

from labelgap.data.dataset import Dataset
from labelgap.reporting import write_report
from labelgap.training import Run
from labelgap.training.config import RunConfig

pytestmark = needs_browser
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 28)"
CUT = """() => [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility()
  && !each.closest(".scroll, svg") && each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => each.outerHTML.slice(0, 80))"""
ROWS = "[...document.querySelectorAll('.sortable tbody tr')].filter((row) => !row.hidden)"
NAMES = f"() => {ROWS}.map((row) => row.cells[0].textContent)"
MANY = 2000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as started:
        yield started


def test_a_report_fits_every_screen_and_paper(run_of: RunMaker, data: Dataset, browser: Any, drawn: None) -> None:
    path = write_report(run_of(method="an", trace="off"), data=data)
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


def of_many_classes(run: Run, count: int) -> Run:
    run.config = RunConfig.checked(**run.config.model_dump() | {"classes": tuple(f"class {n}" for n in range(count))})
    each = {name: None if n % 10 == 0 else n / count for n, name in enumerate(run.config.classes)}
    run.metrics["test"] |= {"average_precision": each, "classes": count, "classes_counted": count}
    run.metrics["thresholds"] = {"values": [0.5] * count, "marks": ["measured"] * count}
    run.metrics["class_groups"] = [1 + n % 5 for n in range(count)]
    return run


def test_rows_are_sorted_by_mouse_and_keyboard(run_of: RunMaker, data: Dataset, browser: Any) -> None:
    run = run_of()
    each = run.metrics["test"]["average_precision"] = {"cat": 0.9, "dog": 0.09, "owl": None, "yak": 0.5}
    page, problems = new_page(browser), []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(write_report(run, data=data).as_uri())
    assert page.evaluate(NAMES) == list(each)
    heading = page.get_by_role("columnheader", name="test AP")
    heading.get_by_role("button").click()
    assert page.evaluate(NAMES) == ["dog", "yak", "cat", "owl"] and heading.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert page.evaluate(NAMES) == ["cat", "yak", "dog", "owl"] and heading.get_attribute("aria-sort") == "descending"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") is None, "one column at a time"
    page.get_by_label("Filter by name").fill("O")
    assert sorted(page.evaluate(NAMES)) == ["dog", "owl"]
    assert page.get_by_role("status").inner_text() == "2 of 4" and not problems


def test_thousands_of_classes_are_there_and_sortable(run_of: RunMaker, browser: Any) -> None:
    path = write_report(of_many_classes(run_of(), MANY))
    assert path.stat().st_size < 700_000
    page = new_page(browser, 390)
    page.goto(path.as_uri())
    page.get_by_text("All 2,000 classes", exact=True).click()
    page.get_by_role("columnheader", name="test AP").get_by_role("button").click()
    names = page.evaluate(NAMES)
    assert len(names) == MANY and names[:2] == ["class 1", "class 2"] and names[-1] == "class 1990"
    page.get_by_role("columnheader", name="class", exact=True).get_by_role("button").click()
    assert page.evaluate(NAMES)[10] == "class 10", "numbers in names count as numbers"
    page.get_by_label("Filter by name").fill("199")
    assert page.get_by_role("status").inner_text() == "12 of 2,000"
    assert not page.evaluate("() => document.documentElement.scrollWidth > innerWidth")
