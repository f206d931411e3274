"""The page by keyboard alone: what follows the last answer, and what a key must not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.browsers import needs_browser
from tests.review.browser import opened, states, wait_for, wait_until_sent
from tests.review.http_client import run_server

from labelgap.review import Review, decisions
from labelgap.review.candidates import WRONG

pytestmark = needs_browser
ON_TOP = "document.getElementById('toast').matches(':popover-open')"


def image_address(review: Review, image: int) -> str:
    return f"image/{int(review.candidates.columns.image_ids[image]):016x}"


def test_one_key_too_many_changes_no_answer_of_an_image_and_enter_opens_the_next(
    chromium: Any, review: Review, folder: Path
) -> None:
    image = int(review.image_order[0])
    count = len(review.of_image(image))
    with run_server(review) as client:
        page = opened(chromium, client.address + image_address(review, image))
        for _ in range(count):
            page.keyboard.press("n")
        page.keyboard.press("y")
        assert states(page, count) == ["0"] * count and page.locator(".entry.current").count() == 0
        assert page.inner_text("#toast") == "Nothing changed: the last one here is answered. Enter: Next image →"
        wait_until_sent(page)
        assert len(decisions(folder)) == count
        page.keyboard.press("ArrowUp")
        page.keyboard.press("y")
        assert states(page, count)[-1] == "1", "who goes back can still change it"
        page.keyboard.press("z")
        assert states(page, count)[-1] == "0"
        page.keyboard.press("n")  # the same answer again is no change
        first = page.url
        page.keyboard.press("ArrowRight")
        page.wait_for_url(lambda url: "/image/" in url and url != first)
        page.wait_for_selector("html[data-ready]")
        page.keyboard.press("r")
        assert page.evaluate("document.activeElement.rel") == "next"
        second = page.url
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: "/image/" in url and url != second)
        assert page.errors == []


def test_an_answer_leads_to_the_next_open_entry_and_never_onto_one_that_is_answered(
    chromium: Any, review: Review
) -> None:
    columns = review.candidates.columns
    image = next(
        int(image)
        for image in review.image_order
        if len(review.of_image(image)) > 3 and not (columns.kind[review.of_image(image)] == WRONG).any()
    )
    with run_server(review) as client:
        page = opened(chromium, client.address + image_address(review, image))
        page.locator(".entry").nth(1).locator("[data-answer='1']").click()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("n")
        page.keyboard.press("u")
        assert states(page, 3) == ["0", "1", "-1"]
        wait_until_sent(page)


def test_the_last_answer_beside_an_enlarged_image_closes_it_and_messages_lie_over_it(
    chromium: Any, review: Review
) -> None:
    with run_server(review) as client:
        page = opened(chromium, f"{client.address}class/3")
        count = page.locator(".entry").count()
        page.keyboard.press("End")
        page.keyboard.press("Space")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#viewer[open] #detail h2")
        page.keyboard.press("y")
        assert page.locator("#viewer[open]").count() == 0
        page.keyboard.press("n")
        assert states(page, count)[-1] == "1" and page.evaluate(ON_TOP)
        page.keyboard.press("z")
        page.keyboard.press("Space")
        page.keyboard.press("y")
        page.keyboard.press("Home")
        page.keyboard.press("Space")
        page.keyboard.press("z")
        assert page.locator("#viewer[open]").count() == 1 and page.inner_text("#toast") == "undone"
        assert page.evaluate(ON_TOP) and np.array_equal(states(page, count), [""] * count)
        wait_for(page, f"!{ON_TOP}")
        assert page.errors == []
