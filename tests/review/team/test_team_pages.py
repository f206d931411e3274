"""Several people at one server: other candidates for each, second opinions that are blind, disagreements to settle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import numpy as np
import pytest
from tests.review.http_client import HttpResponse, ReviewClient, run_server

from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review
from labelgap.review.candidates import WRONG
from labelgap.review.store import SECOND
from labelgap.review.team import Leases

CLASS = 3


@pytest.fixture
def doubled(review: Review) -> Iterator[ReviewClient]:
    """A server that asks a second person about everything."""
    with run_server(review, double=1.0) as made:
        yield made


def tiles(page: str) -> list[dict[str, str]]:
    found = re.findall(r'<li class="entry[^>]*>', page)
    return [{name: unescape(value) for name, value in re.findall(r'data-([\w-]+)="([^"]*)"', tag)} for tag in found]


def ids(page: str) -> list[str]:
    return [tile["id"] for tile in tiles(page)]


def lease_of(page: str) -> str:
    found: list[str] = re.findall(r'data-lease="(\w*)"', page)
    return found[0]


def open_class(client: ReviewClient, size: int = 10, **options: Any) -> str:
    client.enter()
    query = "&".join(f"{name}={value}" for name, value in {"size": size, **options}.items())
    return client.request(f"/class/{CLASS}?{query}").text


def leave(client: ReviewClient, page: str) -> None:
    message = {"lease": lease_of(page), "class_number": CLASS, "ids": []}
    assert client.post("/api/leases", message).json == {"refused": []}


def poll(client: ReviewClient, lease: str) -> Any:
    query = f"since=0&reviewer={client.reviewer}&class={CLASS}&lease={lease}"
    return client.request(f"/api/changes?{query}").json


def answer_all(client: ReviewClient, value: int, size: int = 10) -> list[dict[str, str]]:
    """Decide what a page shows, and leave it."""
    page = open_class(client, size)
    for tile in tiles(page):
        assert answer(client, tile, value).status == 200
    leave(client, page)
    return tiles(page)


def second_opinions(client: ReviewClient) -> list[dict[str, str]]:
    """What somebody is asked as the second, once the server knows the name."""
    poll(client, lease_of(open_class(client)))
    return [tile for tile in tiles(open_class(client, 60)) if tile["asked"] == SECOND]


def answer(client: ReviewClient, tile: dict[str, str], value: int) -> HttpResponse:
    return client.decide(tile["id"], value, int(tile["version"]), asked=tile["asked"])


def test_what_another_answers_and_leaves_while_a_page_is_made_is_not_on_it(
    client: ReviewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ben, held = client.another("ben"), Leases.held_by_others
    answered = open_class(ben, 5)
    client.enter()
    left = [answered]

    def held_after_answers(self: Leases, browser: str) -> Any:
        for page in [left.pop() for _ in left]:
            assert all(answer(ben, tile, PRESENT).status == 200 for tile in tiles(page))
            leave(ben, page)
        return held(self, browser)

    monkeypatch.setattr(Leases, "held_by_others", held_after_answers)  # between the feed and the lease of a page
    shown = ids(client.request(f"/class/{CLASS}?size=5").text)
    assert not left and len(shown) == 5 and not set(shown) & set(ids(answered))


def test_the_cookie_of_a_browser_is_not_for_scripts_or_other_sites_and_a_forged_one_is_replaced(
    client: ReviewClient,
) -> None:
    given = client.request("/class/3").headers["set-cookie"]
    assert re.match(rf"labelgap-{client.port}-browser=[0-9a-f]{{32}};", given)
    assert "HttpOnly" in given and "SameSite=strict" in given
    client.cookie = given.partition(";")[0]
    assert "set-cookie" not in client.request("/class/3").headers
    client.cookie = f"labelgap-{client.port}-browser=<script>"
    assert "<" not in client.request("/class/3").headers["set-cookie"]


def test_second_opinions_are_asked_blind_and_of_somebody_else(doubled: ReviewClient, review: Review) -> None:
    anna, ben = doubled, doubled.another("ben")
    mine = answer_all(anna, PRESENT)
    assert SECOND not in {tile["asked"] for tile in mine}
    page = open_class(anna, 60)
    assert SECOND not in {tile["asked"] for tile in tiles(page)}, "nobody is asked twice"
    leave(anna, page)
    asked = second_opinions(ben)
    assert asked and {tile["id"] for tile in asked} <= {tile["id"] for tile in mine}
    assert {(tile["value"], tile["who"], tile["version"]) for tile in asked} == {("", "", "0")}
    assert answer(ben, asked[0], PRESENT).status == 200 and answer(ben, asked[1], ABSENT).status == 200
    seconds = [event for event in review.store.events() if event.kind == SECOND]
    assert [(event.reviewer, event.accepted) for event in seconds] == [("ben", False)] * 2
    assert {event.reviewer for event in review.store.current()} == {"anna"}
    again = {tile["id"] for tile in second_opinions(doubled.another("carl"))}
    assert not {asked[0]["id"], asked[1]["id"]} & again, "two people have answered it"


def test_a_second_opinion_on_what_is_open_again_is_a_decision(doubled: ReviewClient, review: Review) -> None:
    number = int(np.flatnonzero(review.candidates.columns.kind != WRONG)[0])
    identity = f"{int(review.candidates.columns.ids[number]):016x}"
    doubled.enter()
    assert doubled.decide(identity, PRESENT, asked=SECOND).status == 200
    (stored,) = review.store.current()
    assert stored.kind != SECOND and stored.accepted
    assert doubled.decide(identity, ABSENT, stored.id, asked=SECOND).status == 200, "nobody is his own second"
    assert not review.opinions.pairs() and len(review.store.current()) == 1
