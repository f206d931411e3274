"""The page in a real Chromium, client by the real command in a process of its own."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browsers import needs_browser, new_page
from tests.review.browser import (
    MISPLACED,
    opened,
    running,
    states,
    wait_for,
    wait_until_sent,
)
from tests.review.http_client import run_server
from tests.waiting import wait_until

import labelgap as lg
from labelgap.core.files import DiskError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, create_random_review, decisions, open_review_folder
from labelgap.review.apply import apply_decisions
from labelgap.review.candidates import WRONG

pytestmark = needs_browser
KEYS = "ynyynuyynnyyyynnyuyn"
MEANS = {"y": "1", "n": "0", "u": "-1"}


def test_twenty_by_keyboard_survive_undo_reload_and_a_killed_server(chromium: Any, folder: Path) -> None:
    expected = [MEANS[key] for key in KEYS]
    with running(folder, "--budget", "15m", "--fixed-order") as command:
        page = opened(chromium, f"{command.address}/class/3")
        names = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.name)")[:20]
        for key in KEYS:
            page.keyboard.press(key)
        assert states(page, 20) == expected, "the page answers before the server does"
        page.keyboard.press("z")
        expected[19] = ""
        assert states(page, 20) == expected
        wait_until_sent(page)
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert states(page, 20) == [""] * 20 and "of" in page.inner_text("#counters")
        names[19] = page.get_attribute(".entry", "data-name")
        os.kill(command.process.pid, signal.SIGKILL)
        command.process.wait()

        page.keyboard.press("n")
        page.wait_for_selector("#banner:not([hidden])")
        assert "does not answer" in page.inner_text("#banner") and "1 answer waits" in page.inner_text("#banner")
        expected[19] = "0"
        port = command.port
    with running(folder, "--fixed-order", port=port) as command:
        page.wait_for_selector("#banner[hidden]", state="attached")
        wait_until_sent(page)
        page.goto(f"{command.address}/class/3?show=decided")
        page.wait_for_selector("html[data-ready]")
        shown = page.eval_on_selector_all(
            ".entry", "list => list.map((entry) => [entry.dataset.name, entry.dataset.value])"
        )
        assert dict(shown) == dict(zip(names, expected, strict=True)) and shown[0][0] == names[19]
        assert page.errors == []
    assert len(decisions(folder)) == 20
    assert command.process.returncode == 0 and "missing labels found" in command.farewell

    assert apply_decisions(open_review_folder(folder), folder.parent / "better.csv").decided == 20
    with (folder.parent / "better.csv").open(newline="") as file:
        cells = {row["image"]: row for row in csv.DictReader(file)}
    observed = lg.load("digits", train=96, val=40, test=40).train.labels
    before = dict(zip(observed.images, observed.to_dense(), strict=True))
    for name, value in zip(names, expected, strict=True):
        assert cells[name]["3"] == {"1": "1", "0": "0", "-1": ""}[value] and cells[name]["split"] == "train"
    texts = {PRESENT: "1", ABSENT: "0", UNKNOWN: ""}
    for name, codes in before.items():
        for digit, code in enumerate(codes.tolist()):
            if not (digit == 3 and name in names):
                assert cells[name][str(digit)] == texts[code]


def test_two_people_at_once_see_each_other_and_are_told_of_conflicts(
    chromium: Any, review: Review, folder: Path
) -> None:
    with run_server(review, reviewer="anna") as client:
        address = f"{client.address}class/3"
        anna, ben = opened(chromium, address), opened(chromium, f"{address}?show=held")
        ben.fill("#reviewer", "ben")
        ben.keyboard.press("Enter")
        ben.locator(".entry").nth(5).click()
        assert states(ben, 6)[5] == "1"
        anna.wait_for_selector(".entry:nth-child(6)[data-value='1'].others")
        assert anna.locator(".entry").nth(5).get_attribute("data-who") == "ben"

        anna.keyboard.press("y")
        wait_until_sent(anna)
        ben.keyboard.press("Home")
        ben.keyboard.press("n")
        ben.wait_for_selector(".entry:nth-child(1).conflict")
        assert "anna answered yes" in ben.inner_text("#toast") and states(ben, 1) == ["1"]
        assert [made.author for made in decisions(folder) if made.value == PRESENT] == ["ben", "anna"]
        ben.keyboard.press("Home")
        ben.keyboard.press("n")
        anna.wait_for_selector(".entry:nth-child(1)[data-value='0']")
        made = {(each.author, each.value) for each in decisions(folder)}
        assert made == {("ben", PRESENT), ("ben", ABSENT)}
        assert anna.errors == ben.errors == []


def test_clicks_the_rest_and_the_large_picture(chromium: Any, review: Review, folder: Path) -> None:
    with run_server(review) as client:
        page = opened(chromium, f"{client.address}class/3", "tablet")
        total = page.locator(".entry").count()
        page.locator(".entry").nth(1).click()
        page.locator(".entry").nth(2).click()
        page.locator(".entry").nth(2).click()  # once more takes it back
        page.locator(".entry").nth(4).locator("[data-answer='-1']").click()
        assert states(page, 5) == ["", "1", "", "", "-1"]

        page.locator(".entry").nth(0).locator(".enlarge").click()
        page.wait_for_selector("#viewer[open] #detail h2")
        page.keyboard.press("h")
        wait_for(page, "document.getElementById('heat').naturalWidth > 0")
        page.keyboard.press("y")
        assert states(page, 1) == ["1"] and page.locator("#viewer[open]").count() == 1
        page.click("#viewer [data-answer='0']")
        assert states(page, 3) == ["1", "1", "0"], "the one that is answered is stepped over"
        page.keyboard.press("Space")
        assert page.locator("#viewer[open]").count() == 0 and states(page, 3) == ["1", "1", "0"]
        page.keyboard.press("z")
        assert states(page, 3) == ["1", "1", ""]

        page.click("#rest")
        assert "" not in states(page, total) and states(page, 5) == ["1", "1", "0", "0", "-1"]
        wait_until_sent(page)
        assert len(decisions(folder)) == total
        page.click("#undo")
        wait_until_sent(page)
        assert len(decisions(folder)) == 3 and states(page, 5) == ["1", "1", "", "", "-1"]

        page.goto(f"{client.address}")
        page.click("text=One image at a time")
        page.wait_for_selector("html[data-ready]")
        first = page.url
        page.keyboard.press("n")
        page.keyboard.press("y")
        assert states(page, 2) == ["0", "1"]
        page.keyboard.press("ArrowRight")
        page.wait_for_url(lambda url: "/image/" in url and url != first)
        wait_until_sent(page)
        assert page.errors == []


def test_all_the_rest_of_an_image_counts_what_becomes_no_apart_from_what_stays_as_labeled(
    chromium: Any, review: Review
) -> None:
    columns = review.candidates.columns
    number = int(np.flatnonzero((columns.kind == WRONG) & (columns.observed == PRESENT))[0])
    image = int(columns.image[number])
    members = [int(each) for each in review.of_image(image)]
    labeled = sum(columns.kind[each] == WRONG for each in members)
    with run_server(review) as client:
        page = opened(chromium, f"{client.address}image/{int(columns.image_ids[image]):016x}")
        rest, wrong = page.locator("#rest"), page.locator(f"#e{int(columns.ids[number]):016x}")

        def said() -> str:
            return " ".join(rest.inner_text().split())

        assert said() == f"All the rest: no {len(members) - labeled} · {labeled} as labeled"
        rest.click()
        assert said() == "All the rest: no" and wrong.get_attribute("data-value") == "1"
        assert states(page, len(members)).count("0") >= len(members) - labeled
        wait_until_sent(page)


def test_on_a_phone_every_button_is_in_the_window_and_none_covers_another(chromium: Any, review: Review) -> None:
    with run_server(review) as client:
        page = opened(chromium, f"{client.address}class/3", "phone")
        assert page.evaluate(MISPLACED, ".actions")[1:] == [[], [], False]
        assert page.evaluate(MISPLACED, ".entry")[1:] == [[], [], False]
        page.locator(".entry").nth(0).locator(".enlarge").click()
        page.wait_for_selector("#viewer[open] #detail h2")
        assert page.evaluate(MISPLACED, "#viewer") == [5, [], [], False]
        page.click("#viewer [data-answer='-1']")
        assert states(page, 1) == ["-1"]
        image = page.locator(".entry").nth(0).get_attribute("data-image")
        for address, parts in (("", ["main"]), (f"image/{image}", [".entry", ".actions"])):
            page.goto(client.address + address)
            page.wait_for_selector("html[data-ready]")
            assert [page.evaluate(MISPLACED, part)[1:] for part in parts] == [[[], [], False]] * len(parts)


def test_a_full_disk_is_told_and_answers_wait_for_space(
    chromium: Any, review: Review, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = DiskError.of(folder / "review.sqlite", "no space left", full=True)
    with run_server(review) as client:
        page = opened(chromium, f"{client.address}class/3")
        with monkeypatch.context() as patch:
            patch.setattr(type(review.store), "append", lambda *arguments, **named: raise_error(full))
            page.keyboard.press("y")
            page.wait_for_selector("#banner:not([hidden])")
            told = page.inner_text("#banner")
            assert "cannot be saved at the moment: the disk is full" in told and "1 answer waits" in told
        page.wait_for_selector("#banner[hidden]", state="attached")
        wait_until_sent(page)
    assert len(decisions(folder)) == 1


def raise_error(error: Exception) -> None:
    raise error


def test_a_page_of_thousands_loads_only_what_is_visible_and_answers_before_the_server(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    data = lg.load("digits", train=2100, val=0, test=0)
    review = Review(create_random_review(data, "train", 2100, 0, tmp_path / "review"))
    with run_server(review) as client:
        page = new_page(chromium)
        loaded: list[str] = []
        page.on("request", lambda request: loaded.append(request.url) if "/thumbnail/" in request.url else None)
        page.goto(f"{client.address}class/3?size=2000")
        page.wait_for_selector("html[data-ready]")
        wait_for(page, "document.querySelector('.entry img').naturalWidth > 0")
        count = page.locator(".entry").count()
        wait_until(lambda: page.locator(".entry").count() == count and len(loaded) > 10)
        assert count > 1800 and len(loaded) < 400
        page.evaluate(
            """() => { for (let at = 0; at < 100; at++)
              document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "n", bubbles: true })); }"""
        )
        assert states(page, 101) == ["0"] * 100 + [""]
        page.keyboard.press("r")
        assert "" not in states(page, count)
        wait_until_sent(page)
        page.keyboard.press("End")
        wait_for(page, "document.activeElement.querySelector('img').naturalWidth > 0")
    assert len(decisions(review.path)) == count
    review.close()
