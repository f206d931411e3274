"""Two and three people in a real Chromium: other candidates for each, blind second opinions, a settled disagreement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.browsers import needs_browser
from tests.review.browser import MISPLACED, SIZES, opened, states, wait_for, wait_until_sent
from tests.review.http_client import run_server

from labelgap.labels.codes import ABSENT
from labelgap.review import Review, decisions
from labelgap.review.store import SECOND

pytestmark = needs_browser


def ids(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.id)")
    return found


def enter_name(page: Any, name: str) -> None:
    page.fill("#reviewer", name)
    page.keyboard.press("Enter")


def test_two_people_are_asked_about_different_images_and_told_of_each_other(chromium: Any, review: Review) -> None:
    with run_server(review, reviewer="anna") as client:
        address = f"{client.address}class/3?size=12"
        anna, ben = opened(chromium, address), opened(chromium, address)
        enter_name(ben, "ben")
        assert len(ids(anna)) == len(ids(ben)) == 12 and not set(ids(anna)) & set(ids(ben))
        wait_for(anna, "document.getElementById('others').textContent === 'also here: ben'")
        wait_for(ben, "document.getElementById('others').textContent === 'also here: anna'")
        for page in (anna, ben):
            page.keyboard.press("y")
            page.keyboard.press("r")
            wait_until_sent(page)
            page.click("a[rel=next]")
            page.wait_for_selector("html[data-ready]")
        assert len(review.store.current()) == 24 and not set(ids(anna)) & set(ids(ben))
        left = ids(anna)
        anna.goto(client.address)
        anna.wait_for_selector("html[data-ready]")
        carl = opened(chromium, address)
        assert set(left) & set(ids(carl)), "what somebody leaves is asked of others"
        assert anna.errors == ben.errors == carl.errors == []


RELEASE = """() => fetch("/api/leases", { method: "POST", headers: { "Content-Type": "application/json",
  "X-CSRF-Token": document.body.dataset.csrfToken }, body: JSON.stringify({ store: document.body.dataset.store,
  lease: document.body.dataset.lease, reviewer: "anna", class_number: 3, ids: [] }) })"""


def change_token(page: Any) -> None:
    """Have the server refuse the CSRF token of the page, and give it another one when asked."""
    own = page.get_attribute("body", "data-csrf-token")

    def answer(route: Any) -> None:
        headers = route.request.headers
        if headers["x-csrf-token"] == own:
            route.fulfill(status=403, json={"problem": "csrf", "detail": ""})
        else:
            route.continue_(headers={**headers, "x-csrf-token": own})

    page.route("**/api/session", lambda route: route.fulfill(json={"csrf_token": "another"}))
    page.route(re.compile("/api/(leases|decisions)"), answer)


def test_a_page_whose_lease_is_lost_takes_it_again_and_marks_what_another_has(chromium: Any, review: Review) -> None:
    with run_server(review, reviewer="anna") as client:
        anna = opened(chromium, f"{client.address}class/3?size=12")
        anna.evaluate(RELEASE)
        change_token(anna)  # as after a restart of the server
        ben = client.another("ben")
        ben.enter()
        page = ben.request("/class/3?size=4").text
        anna.wait_for_selector(".entry.held")
        held = anna.eval_on_selector_all(".entry.held", "list => list.map((entry) => entry.dataset.id)")
        assert len(held) == 4 and all(identity in page for identity in held)
        anna.click("#rest")
        assert states(anna, 12) == [""] * 4 + ["0"] * 8, "the rest is what nobody else looks at"
        wait_until_sent(anna)
        assert anna.errors == []


def test_a_second_opinion_is_blind_and_a_disagreement_is_settled(chromium: Any, review: Review, folder: Path) -> None:
    with run_server(review, reviewer="anna", double=1.0) as client:
        address = f"{client.address}class/3?size=12"
        anna = opened(chromium, address)
        for _ in range(12):
            anna.keyboard.press("y")
        wait_until_sent(anna)
        anna.goto(client.address)
        ben = opened(chromium, client.address)
        enter_name(ben, "ben")
        ben.goto(address)
        ben.keyboard.press("n")  # an answer tells the server the name
        wait_until_sent(ben)
        ben.goto(address)
        ben.wait_for_selector("html[data-ready]")
        second = ben.locator(f".entry[data-asked={SECOND}]").first
        assert second.get_attribute("data-value") == second.get_attribute("data-who") == ""
        second.locator("[data-answer='0']").click()
        wait_until_sent(ben)
        ben.wait_for_selector("#panel a[href='/settle']")  # after a poll
        assert second.get_attribute("data-value") == "0" and second.get_attribute("data-who") == "ben"
        identity = second.get_attribute("data-id")
        ben.click("#panel a[href='/settle']")
        ben.wait_for_selector("body.settle")
        assert ids(ben) == [identity]
        assert [text.strip() for text in ben.locator(".opinions span").all_inner_texts()] == ["anna: yes", "ben: no"]
        ben.keyboard.press("r")
        assert states(ben, 1) == [""], "there is no rest to answer at once"
        ben.keyboard.press("y")
        wait_until_sent(ben)
        ben.keyboard.press("z")
        wait_until_sent(ben)
        for _ in range(2):
            with ben.expect_response(lambda response: "/api/changes" in response.url):
                pass  # a poll brings the answer that is in force again
        assert states(ben, 1) == [""], "what is undone is to be settled again"
        ben.keyboard.press("n")
        wait_until_sent(ben)
        ben.reload()
        assert "nothing to settle" in ben.inner_text("main") and anna.errors == ben.errors == []
    assert [made.author for made in decisions(folder) if made.value == ABSENT].count("ben") == 2


@pytest.mark.parametrize("size", SIZES)
def test_the_page_of_disagreements_fits_every_window(chromium: Any, review: Review, size: str) -> None:
    with run_server(review, reviewer="anna", double=1.0) as client:
        page = client.request("/class/3?size=3").text
        for identity in set(page.split('data-id="')[1:]):
            client.decide(identity[:16], 1)
            client.another("ben").decide(identity[:16], 0, asked=SECOND)
        shown = opened(chromium, f"{client.address}settle", size)
        assert len(ids(shown)) == 3
        assert shown.evaluate(MISPLACED, ".entry")[1:] == [[], [], False]
        assert shown.evaluate(MISPLACED, ".actions")[1:] == [[], [], False]
