"""A class that nobody labeled, in a real Chromium: added, found by similarity, ranked; and there after a kill −9."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.browsers import needs_browser
from tests.review.browser import MISPLACED, SIZES, opened, running, wait_for, wait_until_sent
from tests.review.http_client import run_server
from tests.review.new_classes.sample_album import COPY, is_bright
from tests.waiting import wait_until

from labelgap.review import Review, open_review_folder

pytestmark = needs_browser


def names(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.name)")
    return found


def follow(page: Any, key: str) -> None:
    with page.expect_navigation():
        page.keyboard.press(key)
    page.wait_for_selector("html[data-ready]")


def reloaded(page: Any) -> Any:
    page.reload()
    page.wait_for_selector("html[data-ready]")
    return page


def test_a_class_is_added_its_examples_found_by_similarity_and_a_ranking_comes(chromium: Any, album_run: Path) -> None:
    with running(album_run) as command:
        page = opened(chromium, command.address)
        page.fill("#new-class", "Round")
        page.click("#add-class")
        wait_for(page, "!document.getElementById('new-class-problem').hidden")
        assert "a class 'round' already" in page.inner_text("#new-class-problem")
        page.fill("#new-class", "bright")
        with page.expect_navigation():
            page.press("#new-class", "Enter")
        page.wait_for_selector("html[data-ready]")
        assert "Mark 5 to 20 images that show bright" in page.inner_text("h1")
        shown = names(page)
        at = next(number for number, name in enumerate(shown) if is_bright(name))
        for _ in range(at):
            page.keyboard.press("ArrowRight")
        follow(page, "s")
        wait_until(lambda: "being computed" not in reloaded(page).inner_text("main"))
        similar = names(page)
        assert similar[0] == shown[at] and sum(map(is_bright, similar[:6])) >= 5
        copied = {COPY, "00.png"}  # an answer on one of them would be two decisions
        marked = [name for name in similar if is_bright(name) and name not in copied][:6]
        for name in marked:
            page.click(f'.entry[data-name="{name}"] [data-answer="1"]')
        wait_until_sent(page)
        wait_for(page, "document.getElementById('counters').textContent.includes('6 examples')")
        wait_for(page, "document.getElementById('update').textContent.includes('after 6 decisions')")
        follow(page, "g")
        assert "near=" not in page.url and "Which of these show bright?" in page.inner_text("h1")
        order = names(page)
        left = sum(map(is_bright, order))
        assert left >= 5 and sum(map(is_bright, order[: left + 2])) >= 0.7 * left, "random order would hold a fifth"
        assert page.errors == []
        command.process.send_signal(signal.SIGKILL)
    with running(album_run) as command:
        page = opened(chromium, command.address)
        page.click("text=bright")
        page.wait_for_selector("body.grid")
        assert not {*names(page)} & {*marked} and "6 examples" in page.text_content("#counters")
        assert page.errors == []


def test_buttons_stay_inside_the_window_and_apart(chromium: Any, album_run: Path) -> None:
    with closing(Review(open_review_folder(album_run))) as review, run_server(review) as client:
        for number, size in enumerate(SIZES):
            check_buttons(opened(chromium, client.address, size), f"bright {number}")


def check_buttons(page: Any, name: str) -> None:
    assert page.evaluate(MISPLACED, ".new-class")[1:] == [[], [], False]
    page.fill("#new-class", name)
    with page.expect_navigation():
        page.click("#add-class")
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("document.querySelector('.bar').offsetHeight") <= 90, "the head stays small"
    for part in (".actions", ".entry"):
        assert page.evaluate(MISPLACED, part)[1:] == [[], [], False]
    page.click(".entry >> nth=1", position={"x": 20, "y": 20})
    with page.expect_navigation():
        page.click(".entry >> nth=1 >> .similar")
    assert page.errors == []
