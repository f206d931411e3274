"""A page that learns, in a real Chromium: a re-ranking in the middle, on a key, and a worker that is killed."""

from __future__ import annotations

import os
import re
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.browsers import needs_browser
from tests.review.browser import MISPLACED, SIZES, opened, wait_for, wait_until_sent
from tests.review.http_client import run_server
from tests.waiting import wait_until

from labelgap.review import Review, open_review_folder
from labelgap.review.database import FILE
from labelgap.review.store import DecisionStore

pytestmark = needs_browser


def names(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.name)")
    return found


def test_a_new_order_comes_on_a_key_and_nothing_moves_before(chromium: Any, preloaded: Path) -> None:
    with closing(Review(open_review_folder(preloaded))) as review, run_server(review) as client:
        review.start_ranking()
        page = opened(chromium, f"{client.address}class/3?size=40")
        shown = names(page)
        for _ in range(12):
            page.keyboard.press("n")
        wait_until_sent(page)
        told = re.compile(r"Updated after 1\d decisions: (\d+ new suggestions?|another order)")
        wait_until(lambda: told.match(page.inner_text("#update")))  # at first there may be an order before any answer
        assert names(page) == shown, "what is on the page stays where it is"
        for width, height in SIZES.values():
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate(MISPLACED, ".actions")[1:] == [[], [], False]
        before = page.get_attribute("body", "data-ranking")
        with page.expect_navigation():
            page.keyboard.press("g")
        page.wait_for_selector("html[data-ready]")
        assert page.get_attribute("body", "data-ranking") != before
        following = names(page)
        assert not set(following) & set(shown[:12]) and following != shown[12:]

        assert review.rankings is not None and review.rankings.worker.process.pid is not None
        os.kill(review.rankings.worker.process.pid, signal.SIGKILL)
        for _ in range(12):
            page.keyboard.press("y")
        wait_until_sent(page)
        wait_for(page, "!document.getElementById('update').hidden")
        assert page.errors == []
    store = DecisionStore(preloaded / FILE, read_only=True)
    asked = [(event.kind, event.ranking) for event in store.events()]
    numbers = {number for number, *_ in store.rankings()}
    store.close()
    assert len(asked) == 24 and {kind for kind, _ in asked} == {"missing", "random"}
    assert {ranking for _, ranking in asked} <= numbers and len({ranking for _, ranking in asked}) >= 2
