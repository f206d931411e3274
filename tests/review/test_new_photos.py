"""New photos are added on the page: a real command, a real browser, decisions that stay."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.browsers import needs_browser
from tests.review.browser import go, misplaced, opened, wait_until_sent
from tests.review.http_client import ReviewClient, run_server, running
from tests.waiting import wait_until

import labelgap as lg
from labelgap.review import Review, decisions, open_review_folder
from labelgap.review.additions import NewPhotos


@pytest.fixture
def grown(album_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose album is the test's own, with three photos that its table does not have, and two tables of them."""
    album = tmp_path / "album"
    old: Any = lg.open_run(album_run).load_data().train.images
    shutil.copytree(old.root.parent, album, ignore=shutil.ignore_patterns("run"))
    data = lg.load("csv", album / "tags.csv", images=album / "photos", duplicates="exact")
    shutil.rmtree(album_run)
    lg.fit(data, "an", backbone="efficientnet-lite0", out=album_run, epochs=1, device="cpu", quiet=True)
    lg.find_missing(album_run, quiet=True)
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(album / "photos" / f"new{number}.png")
    (album / "more.csv").write_text("image,round,dark\nnew0.png,1,\nnew1.png,,\nnew2.png,,0\n")
    (album / "bad.csv").write_text("image,round,dark\nnew0.png,1,\nnew9.png,,\n00.png,oui,0\n")
    monkeypatch.chdir(album)
    return album_run


@needs_browser[0]
@needs_browser[1]
def test_photos_are_added_on_the_page_and_earlier_decisions_stay(chromium: Any, grown: Path) -> None:
    with running(grown) as command:
        page = opened(chromium, f"{command.address}/class/0")
        page.keyboard.press("y")
        wait_until_sent(page)
        go(page, command.address)
        assert misplaced(page, "main") == []

        page.fill("#new-photos", str(Path.cwd() / "bad.csv"))
        page.click("#add-photos")
        page.wait_for_selector("#new-photos-status.failed")
        said = page.inner_text("#new-photos-status")
        assert said.startswith("labelgap: ") and re.findall(r"line (\d)", said) == ["3", "4", "4"]
        assert len(lg.open_run(grown).load_data().train) == 43

        page.fill("#new-photos", str(Path.cwd() / "more.csv"))
        page.keyboard.press("Enter")
        wait_until(lambda: len(lg.open_run(grown).load_data().train) == 46)
        page.wait_for_event("framenavigated", timeout=120_000)
        page.wait_for_selector("html[data-ready]")
        assert "1 of" in page.inner_text("#counters")
        go(page, f"{command.address}/class/0?size=200")
        names = page.eval_on_selector_all(".entry", "list => list.map((entry) => entry.dataset.name)")
        assert any(name.startswith("new") for name in names), names
        page.keyboard.press("n")
        wait_until_sent(page)
        assert page.errors == []
    assert len(decisions(grown)) == 2 and "2 of" in command.farewell


def test_only_a_server_of_this_machine_adds_photos(grown: Path) -> None:
    photos = NewPhotos(grown)
    with closing(Review(open_review_folder(grown))) as review:
        assert NewPhotos.are_possible(review.folder)
        with run_server(review, host="0.0.0.0", photos=photos) as client:
            assert client.post("/api/photos", {"path": "/etc/passwd"}).status == 404
            assert "new-photos" not in client.request("/").text
        with run_server(review, photos=photos) as client:
            assert "new-photos" in client.request("/").text
            assert client.post("/api/photos", {"path": "a\0b"}).status == 422
            assert client.post("/api/photos", {"path": "--help"}).json["running"]
            assert client.post("/api/photos", {"path": "more.csv"}).status == 409
            wait_until(lambda: not client.request("/api/photos").json["running"])
            assert "--help does not exist" in client.request("/api/photos").json["text"]
            (Path("photos") / "none").mkdir()
            assert client.post("/api/photos", {"path": "photos/none"}).json["running"]
            wait_until(lambda: not client.request("/api/photos").json["running"])
            assert "nothing to add" in client.request("/api/photos").json["text"] and not photos.added


def test_photos_are_not_added_to_a_network(review: Review, client: ReviewClient) -> None:
    assert not NewPhotos.are_possible(review.folder)
    assert client.request("/api/photos").status == 404 and "new-photos" not in client.request("/").text
