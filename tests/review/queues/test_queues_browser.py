"""Aims and the queue of labels that look wrong in a real Chromium: keys, clicks, the memory of the browser, widths."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.browsers import needs_browser
from tests.review.browser import MISPLACED, opened, states, wait_for, wait_until_sent
from tests.review.http_client import run_server
from tests.review.queues.suggestions import suggest_wrong

from labelgap.review import Review, open_review_folder
from labelgap.review.database import FILE
from labelgap.review.store import DecisionStore

pytestmark = needs_browser


def kinds(folder: Path) -> list[tuple[str, int | None]]:
    store = DecisionStore(folder / FILE, read_only=True)
    found = [(event.kind, event.value) for event in store.current()]
    store.close()
    return found


def test_labels_are_confirmed_and_corrected_by_keys_and_clicks_until_the_queue_is_put_away(
    chromium: Any, folder: Path
) -> None:
    suggest_wrong(folder, 40)
    review = Review(open_review_folder(folder))
    with run_server(review) as client:
        page = opened(chromium, client.address)
        page.click("text=Confirm or correct 40")
        page.wait_for_selector("html[data-ready]")
        observed = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.observed)")
        assert observed == ["1"] * 40, "one present of each image is known"
        for key in "ynu":
            page.keyboard.press(key)
        assert states(page, 4) == ["1", "0", "-1", ""]
        page.locator(".entry").nth(3).click()
        assert states(page, 4)[3] == "0", "a click says that the label is wrong"
        page.locator(".entry").nth(3).click()
        assert states(page, 4)[3] == "", "another one takes it back"
        page.locator(".entry").nth(4).locator("[data-answer='wrong']").click()
        page.locator(".entry").nth(3).locator(".enlarge").click()
        page.wait_for_selector("#viewer[open] #detail h2")
        page.click("#viewer [data-answer='right']")
        page.keyboard.press("ArrowLeft")  # back to the one that was stepped over
        page.keyboard.press("n")
        page.keyboard.press("Escape")
        assert states(page, 6) == ["1", "0", "-1", "1", "0", ""]
        for _ in range(2):
            page.keyboard.press("z")
        wait_until_sent(page)
        assert states(page, 6) == ["1", "0", "-1", "", "", ""], "the second no was no new answer"
        wait_for(page, "document.getElementById('panel').textContent.includes('3 answered, 1 wrong. About')")
        assert {kind for kind, _ in kinds(folder)} == {"wrong"}
        page.keyboard.press("r")
        wait_until_sent(page)
        assert "" not in states(page, 40)
        page.keyboard.press("]")
        page.wait_for_selector("h1:has-text('Which labels are missing?')")
        assert page.locator("text=Confirm or correct").count() == 0 and page.errors == []
    assert len(kinds(folder)) == 40
    review.close()


def test_right_labels_fold_the_queue_and_it_can_be_opened_again(chromium: Any, folder: Path) -> None:
    suggest_wrong(folder, 40)
    review = Review(open_review_folder(folder))
    with run_server(review) as client:
        page = opened(chromium, f"{client.address}wrong", "phone")
        for _ in range(25):
            page.keyboard.press("y")
        wait_until_sent(page)
        page.goto(client.address)
        page.click("summary")
        page.click("text=Show them anyway")
        page.wait_for_selector("html[data-ready]")
        assert states(page, 99) == [""] * 15 and "show=away" in page.url
        assert page.evaluate(MISPLACED, ".actions")[1:] == [[], [], False]
    review.close()


def test_an_aim_is_remembered_and_its_feed_is_answered_by_the_keyboard(chromium: Any, preloaded: Path) -> None:
    with closing(Review(open_review_folder(preloaded))) as review, run_server(review) as client:
        review.start_ranking()
        page = opened(chromium, client.address)
        page.wait_for_selector("#plan ol")
        page.click("a.aim[data-aim='classifier']")
        page.wait_for_url("**/?aim=classifier")
        page.goto(client.address)
        page.wait_for_url("**/?aim=classifier")
        page.wait_for_selector("html[data-ready]")
        page.click("text=Start with what the model is least sure of")
        page.wait_for_selector("h1:has-text('Does each image show')")
        page.wait_for_selector("html[data-ready]")
        captions = page.eval_on_selector_all(".caption", "list => list.map((each) => each.textContent)")
        names = page.eval_on_selector_all(".entry", "list => list.map((each) => each.dataset.className + '?')")
        assert captions == names and len(set(captions[:10])) > 1, "each says its class"
        for key in "ynyynnyynyny":
            page.keyboard.press(key)
        wait_until_sent(page)
        wait_for(page, "!document.getElementById('update').hidden")
        with page.expect_navigation():
            page.keyboard.press("g")
        page.wait_for_selector("html[data-ready]")
        assert states(page, 1) == [""] and [kind for kind, _ in kinds(preloaded)] == ["classifier"] * 12

        page.click(".aims [data-aim='random']")
        page.wait_for_selector("p:has-text('Drawn at random')")
        page.wait_for_selector("html[data-ready]")
        for key in "nny":
            page.keyboard.press(key)
        wait_until_sent(page)
        assert [kind for kind, _ in kinds(preloaded)][12:] == ["random"] * 3
        page.goto(client.address)
        page.wait_for_url("**/?aim=random")
        page.wait_for_selector("html[data-ready]")
        brought = page.locator(".aim small").all_inner_texts()
        assert brought[1] == "12 answers for the classifier, 7 found" and brought[2].startswith("3 random answers")
        page.click("tbody th a >> nth=0")
        page.wait_for_url("**/ask/random?class=*")
        assert page.errors == []


@pytest.mark.parametrize("size", ["desktop", "tablet", "phone"])
def test_every_button_is_in_the_window_and_none_covers_another(chromium: Any, folder: Path, size: str) -> None:
    suggest_wrong(folder, 20)
    review = Review(open_review_folder(folder))
    with run_server(review) as client:
        page = opened(chromium, client.address, size)
        page.wait_for_selector("#plan ol")
        assert page.evaluate(MISPLACED, "main")[1:] == [[], [], False]
        for path in ("wrong", "ask/classifier", "ask/random?class=3", "class/3"):
            page.goto(client.address + path)
            page.wait_for_selector("html[data-ready]")
            assert [page.evaluate(MISPLACED, part)[1:] for part in (".actions", ".entry")] == [[[], [], False]] * 2
        page.goto(f"{client.address}wrong")
        page.wait_for_selector("html[data-ready]")
        page.keyboard.press("Space")
        page.wait_for_selector("#viewer[open] #detail h2")
        assert page.evaluate(MISPLACED, "#viewer") == [5, [], [], False]
    review.close()
