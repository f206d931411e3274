"""The page in a real Chromium, client by the real command in a process of its own."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.review.http_client import run_server

import labelgap as lg
from labelgap.core.files import DiskError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, create_random_review, decisions, open_review_folder
from labelgap.review.apply import apply_decisions

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine (scripts/setup installs it)"),
]
PATIENCE = 300_000
"""Milliseconds after which a page that does not change is broken, however busy the machine is."""
SIZES = {"desktop": (1280, 800), "tablet": (820, 1180), "phone": (390, 844)}
MISPLACED = """(within) => {
  const all = [...document.querySelectorAll(`${within} button, ${within} a.button`)];
  const shown = all.filter((each) => each.checkVisibility());
  const name = (each) => each.getAttribute("aria-label") ?? each.textContent.trim();
  const box = (each) => each.getBoundingClientRect();
  const bottom = within === "#viewer" ? innerHeight : Infinity;
  const inside = ({ left, right, bottom: end }) => left >= 0 && right <= innerWidth && end <= bottom;
  const outside = shown.filter((each) => !inside(box(each)));
  const before = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 1;
  const apart = (a, b) => before(box(a), box(b)) || before(box(b), box(a));
  const covered = shown.filter((each, at) => shown.slice(at + 1).some((other) => !apart(each, other)));
  return [shown.length, outside.map(name), covered.map(name), document.documentElement.scrollWidth > innerWidth];
}"""
"""How many buttons there are, which lie outside the window, which overlap, and whether the page is too wide."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Command:
    """``labelgap review``, running."""

    process: subprocess.Popen[str]
    address: str
    farewell: str = ""

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2].strip("/")


@contextmanager
def running(folder: Path, port: str = "0") -> Iterator[Command]:
    words = [sys.executable, "-m", "labelgap", "review", str(folder), "--no-browser", "--reviewer", "anna"]
    process = subprocess.Popen(
        [*words, "--port", port, "--budget", "15m"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    command = Command(process, "")
    try:
        command.address = _address(process)
        yield command
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            command.farewell, _ = process.communicate(timeout=PATIENCE / 1000)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    """Read what the command prints until it prints its address; the output ends when the command does."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        found = re.search(r"(http://127\.0\.0\.1:\d+)/\n", line)
        if found:
            return found[1]
    raise AssertionError(f"the server did not start: {output}")


def opened(chromium: Any, address: str, size: str = "desktop") -> Any:
    """Open a page; whatever its console says is an error."""
    width, height = SIZES[size]
    page = chromium.new_context(viewport={"width": width, "height": height}).new_page()
    page.set_default_timeout(PATIENCE)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if "Content Security" in message.text else 0)
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    return page


def states(page: Any, count: int) -> list[str]:
    found: list[str] = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.value)")
    return found[:count]


def wait_for(page: Any, holds: str) -> None:
    """Wait until an expression holds (playwright's own wait_for_function is an eval, which the page forbids)."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(holds):
        assert time.monotonic() < deadline, f"never came true: {holds}"
        page.wait_for_timeout(30)


def wait_until_sent(page: Any) -> None:
    wait_for(page, "!Object.keys(localStorage).some((key) => key.startsWith('labelgap/'))")


KEYS = "ynyynuyynnyyyynnyuyn"
MEANS = {"y": "1", "n": "0", "u": "-1"}


def test_twenty_by_keyboard_survive_undo_reload_and_a_killed_server(chromium: Any, folder: Path) -> None:
    expected = [MEANS[key] for key in KEYS]
    with running(folder) as command:
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
    with running(folder, port) as command:
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
        anna, ben = opened(chromium, address), opened(chromium, address)
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
        assert states(page, 2) == ["1", "0"]
        page.keyboard.press("Space")
        assert page.locator("#viewer[open]").count() == 0 and states(page, 3) == ["1", "0", ""]
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
        page = chromium.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.set_default_timeout(PATIENCE)
        loaded: list[str] = []
        page.on("request", lambda request: loaded.append(request.url) if "/thumbnail/" in request.url else None)
        page.goto(f"{client.address}class/3?size=2000")
        page.wait_for_selector("html[data-ready]")
        wait_for(page, "document.querySelector('.entry img').naturalWidth > 0")
        count = page.locator(".entry").count()
        assert count > 1800 and 10 < len(loaded) < 400
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
