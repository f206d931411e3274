"""The page in a real Chromium, served by the real command in a process of its own."""

from __future__ import annotations

import csv
import os
import re
import select
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
from tests.review.http_client import serving

import labelgap as lg
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, create_random_review, decisions

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine (scripts/setup installs it)"),
]
SIZES = {"desktop": (1280, 800), "tablet": (820, 1180)}


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
            command.farewell, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said, deadline = "", time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([process.stdout], [], [], 1.0)
        line = os.read(process.stdout.fileno(), 4096).decode() if ready else ""
        said += line
        found = re.search(r"(http://127\.0\.0\.1:\d+)/\n", said)
        if found:
            return found[1]
        if process.poll() is not None:
            break
    raise AssertionError(f"the server did not start: {said}")


def opened(chromium: Any, address: str, size: str = "desktop") -> Any:
    """Open a page; whatever its console says is an error."""
    width, height = SIZES[size]
    page = chromium.new_context(viewport={"width": width, "height": height}).new_page()
    page.troubles = []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("console", lambda message: page.troubles.append(message.text) if "Content Security" in message.text else 0)
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    return page


def states(page: Any, count: int) -> list[str]:
    found: list[str] = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.value)")
    return found[:count]


def wait_for(page: Any, holds: str, seconds: float = 20) -> None:
    """Wait until an expression holds (playwright's own way of waiting is an eval, which the page forbids)."""
    deadline = time.monotonic() + seconds
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
        assert states(page, 20) == expected and "of" in page.inner_text("#figures")
        os.kill(command.process.pid, signal.SIGKILL)
        command.process.wait()

        page.keyboard.press("n")
        page.wait_for_selector("#banner:not([hidden])", timeout=20_000)
        assert "does not answer" in page.inner_text("#banner") and "1 answer waits" in page.inner_text("#banner")
        expected[19] = "0"
        port = command.port
    with running(folder, port) as command:
        page.wait_for_selector("#banner[hidden]", state="attached", timeout=30_000)
        wait_until_sent(page)
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert states(page, 20) == expected
        assert page.troubles == []
    assert len(decisions(folder)) == 20
    assert command.process.returncode == 0 and "missing labels found" in command.farewell

    done = subprocess.run(
        [sys.executable, "-m", "labelgap", "apply", str(folder), "--out", str(folder.parent / "better.csv")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "20 decisions of people stand" in done.stdout
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
    with serving(review, reviewer="anna") as served:
        address = f"{served.address}class/3"
        anna, ben = opened(chromium, address), opened(chromium, address)
        ben.fill("#reviewer", "ben")
        ben.keyboard.press("Enter")
        ben.locator(".entry").nth(5).click()
        assert states(ben, 6)[5] == "1"
        anna.wait_for_selector(".entry:nth-child(6)[data-value='1'].others", timeout=15_000)
        assert anna.locator(".entry").nth(5).get_attribute("data-who") == "ben"

        anna.keyboard.press("y")
        wait_until_sent(anna)
        ben.keyboard.press("Home")
        ben.keyboard.press("n")
        ben.wait_for_selector(".entry:nth-child(1).conflict", timeout=15_000)
        assert "anna said yes" in ben.inner_text("#toast") and states(ben, 1) == ["1"]
        assert [made.author for made in decisions(folder) if made.value == PRESENT] == ["ben", "anna"]
        ben.keyboard.press("Home")
        ben.keyboard.press("n")
        anna.wait_for_selector(".entry:nth-child(1)[data-value='0']", timeout=15_000)
        made = {(each.author, each.value) for each in decisions(folder)}
        assert made == {("ben", PRESENT), ("ben", ABSENT)}
        assert anna.troubles == ben.troubles == []


def test_clicks_the_rest_and_the_large_picture(chromium: Any, review: Review, folder: Path) -> None:
    with serving(review) as served:
        page = opened(chromium, f"{served.address}class/3", "tablet")
        total = page.locator(".entry").count()
        page.locator(".entry").nth(1).click()
        page.locator(".entry").nth(2).click()
        page.locator(".entry").nth(2).click()  # once more takes it back
        page.locator(".entry").nth(4).locator("[data-say='-1']").click()
        assert states(page, 5) == ["", "1", "", "", "-1"]

        page.locator(".entry").nth(0).locator(".enlarge").click()
        page.wait_for_selector("#large[open] #detail h2")
        page.keyboard.press("h")
        wait_for(page, "document.getElementById('heat').naturalWidth > 0")
        page.keyboard.press("y")
        assert states(page, 1) == ["1"] and page.locator("#large[open]").count() == 1
        page.click("#large [data-say='0']")
        assert states(page, 2) == ["1", "0"]
        page.keyboard.press("Space")
        assert page.locator("#large[open]").count() == 0 and states(page, 3) == ["1", "0", ""]
        page.keyboard.press("z")
        assert states(page, 3) == ["1", "1", ""]

        page.click("#rest")
        assert "" not in states(page, total) and states(page, 5) == ["1", "1", "0", "0", "-1"]
        wait_until_sent(page)
        assert len(decisions(folder)) == total
        page.click("#undo")
        wait_until_sent(page)
        assert len(decisions(folder)) == 3 and states(page, 5) == ["1", "1", "", "", "-1"]

        page.goto(f"{served.address}")
        page.click("text=One image at a time")
        page.wait_for_selector("html[data-ready]")
        first = page.url
        page.keyboard.press("n")
        page.keyboard.press("y")
        assert states(page, 2) == ["0", "1"] or len(states(page, 2)) < 2
        page.keyboard.press("ArrowRight")
        page.wait_for_url(lambda url: "/image/" in url and url != first)
        wait_until_sent(page)
        assert page.troubles == []


def test_a_page_of_thousands_loads_only_what_is_seen_and_answers_at_once(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    data = lg.load("digits", train=2100, val=0, test=0)
    review = Review(create_random_review(data, "train", 2100, 0, tmp_path / "review"))
    with serving(review) as served:
        page = chromium.new_context(viewport={"width": 1280, "height": 800}).new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if "/thumbnail/" in request.url else None)
        page.goto(f"{served.address}class/3?size=2000")
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(500)
        count = page.locator(".entry").count()
        assert count > 1800 and 10 < len(asked) < 400
        milliseconds = page.evaluate(
            """() => { const times = [];
            for (let at = 0; at < 100; at++) {
              const start = performance.now();
              document.dispatchEvent(new KeyboardEvent("keydown", { key: "n", bubbles: true }));
              times.push(performance.now() - start);
            }
            return times.sort((a, b) => a - b)[90]; }"""
        )
        assert milliseconds < 100
        page.keyboard.press("r")
        assert "" not in states(page, count)
        wait_until_sent(page)
        page.keyboard.press("End")
        wait_for(page, "document.activeElement.querySelector('img').naturalWidth > 0")
    assert len(decisions(review.path)) == count
    review.close()
