"""Adding a class over HTTP: what the page sends, and what a hostile client gets."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.review.http_client import HttpResponse, ReviewClient, run_server
from tests.review.new_classes.sample_album import is_bright

from labelgap.review import Review, open_review_folder
from labelgap.review.new_classes import INTERVAL

TILE = re.compile(r'data-id="(\w+)" data-image="(\w+)" data-name="([^"]+)"')


@pytest.fixture
def review(album_run: Path) -> Iterator[Review]:
    with closing(Review(open_review_folder(album_run))) as opened:
        yield opened


@pytest.fixture
def client(review: Review) -> Iterator[ReviewClient]:
    with run_server(review) as made:
        made.enter()
        yield made


def add(client: ReviewClient, name: Any = "bright", token: str | None = None, **changed: Any) -> HttpResponse:
    message = {"store": client.store, "reviewer": "anna", "name": name, **changed}
    headers = {"Content-Type": "application/json", "X-CSRF-Token": client.csrf_token if token is None else token}
    return client.request("/api/classes", "POST", json.dumps(message).encode(), headers)


def test_a_class_is_added_shown_and_sorted_by_similarity(client: ReviewClient, review: Review) -> None:
    assert 'id="new-class"' in client.request("/").text
    assert add(client, " bright ").json == {"number": 2, "name": "bright"}
    page = client.request("/class/2").text
    assert "Mark 5 to 20 images that show" in page and "0</b> of 5 examples" in page
    assert ">bright</a>" in client.request("/").text
    image = next(image for _, image, name in TILE.findall(page) if is_bright(name))
    review.similar.positions(0, 300)
    near = client.request(f"/class/2?near={image}").text
    assert "most like this one come first" in near and f"near={image}" in near
    tiles = TILE.findall(near)
    assert tiles[0][1] == image and sum(is_bright(name) for _, _, name in tiles[:6]) >= 5
    for identity, _, _ in tiles[:5]:
        assert client.decide(identity, 1).status == 200
    page = client.request("/class/2").text
    assert "Which of these show" in page and "5</b> examples" in page
    assert [(each.name, each.reviewer) for each in review.store.classes()] == [("bright", "anna")]
    assert client.request(f"/heat/{tiles[6][0]}").status == 404


@pytest.mark.parametrize(
    "name", ["", "x" * 81, "x" * 5000, "a\x00b", "a;b", "split", "Round", 7, None, ["a"], {"a": 1}]
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_is_stored(
    client: ReviewClient, review: Review, name: Any
) -> None:
    answer = add(client, name)
    assert answer.status == 422 and answer.json["problem"] in ("name", "invalid") and answer.json["detail"]
    assert review.store.classes() == [] and review.candidates.classes == ("round", "dark")


def test_a_foreign_page_adds_nothing(client: ReviewClient, review: Review) -> None:
    assert add(client, token="").status == add(client, token="x" * 32).status == 403
    body = json.dumps({"store": client.store, "reviewer": "anna", "name": "bright"}).encode()
    own = {"Content-Type": "application/json", "X-CSRF-Token": client.csrf_token}
    assert client.request("/api/classes", "POST", body, own | {"Origin": "http://evil.example"}).status == 403
    assert client.request("/api/classes", "POST", body, own | {"Content-Type": "text/plain"}).status == 415
    assert client.request("/api/classes").status == 405
    assert add(client, store="0" * 32).status == 409
    assert add(client, more=1).status == add(client, reviewer="").status == 422
    assert review.store.classes() == []


def test_a_class_of_another_server_is_there_with_the_next_request(client: ReviewClient, album_run: Path) -> None:
    with closing(Review(open_review_folder(album_run))) as other, run_server(other) as second:
        second.enter()
        assert second.request("/class/2").status == 404
        add(client)
        time.sleep(INTERVAL)
        tiles = TILE.findall(client.request("/class/2").text)
        assert second.decide(tiles[0][0], 1).status == 200
        assert second.request("/class/2").status == 200
        assert "1</b> of 5 examples" in client.request("/class/2").text
