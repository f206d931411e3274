"""A page that learns, in a real Chromium: a re-ranking in the middle, on a key, and a worker that is killed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.review.browser import MISPLACED, SIZES, needs_browser, opened, running, wait_for, wait_until_sent
from tests.review.live.test_live_rankings import worker_of

from labelgap.review.store import FILE, DecisionStore

pytestmark = needs_browser


def names(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.name)")
    return found


def test_a_new_order_comes_on_a_key_and_nothing_moves_before(chromium: Any, folder: Path) -> None:
    with running(folder) as command:
        page = opened(chromium, f"{command.address}/class/3?size=40")
        shown = names(page)
        for _ in range(12):
            page.keyboard.press("n")
        wait_until_sent(page)
        wait_for(page, "!document.getElementById('update').hidden")
        assert re.match(
            r"Updated after 1\d decisions: (\d+ new suggestions?|another order)", page.inner_text("#update")
        )
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

        os.kill(worker_of(command.process.pid), signal.SIGKILL)
        for _ in range(12):
            page.keyboard.press("y")
        wait_until_sent(page)
        wait_for(page, "!document.getElementById('update').hidden")
        assert page.errors == []
    store = DecisionStore(folder / FILE, read_only=True)
    asked = [(event.kind, event.ranking) for event in store.events()]
    numbers = {stored.number for stored in store.rankings()}
    store.close()
    assert len(asked) == 24 and {kind for kind, _ in asked} == {"missing", "random"}
    assert {ranking for _, ranking in asked} <= numbers and len({ranking for _, ranking in asked}) >= 2
