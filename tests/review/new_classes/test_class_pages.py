"""Adding a class over HTTP: what the page sends, and what a hostile client gets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.review.http_client import HttpResponse, ReviewClient, run_server

from labelgap.review import Review, open_review_folder

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
