"""Several people: agreement, second opinions, leases, a cache that they share, and the pages of a server."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score
from tests.review.http_client import HttpResponse, ReviewClient, ids, run_server, tiles
from tests.review.samples import event

from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review
from labelgap.review import team as module
from labelgap.review.candidates import WRONG
from labelgap.review.session import VersionedCache
from labelgap.review.store import SECOND, Decision, DecisionEvent, DecisionStore, LabelKey, Undo
from labelgap.review.team import (
    LEASE_SECONDS,
    UNCONFIRMED_SECONDS,
    Holder,
    Leases,
    OpinionPair,
    SecondOpinions,
    describe_agreement,
    is_doubled,
    measure_agreement,
    opinion_pairs,
)


def pair(first: int, second: int, people: str = "ab", class_name: str = "dog") -> OpinionPair:
    events = (
        event(1, first, people[0], class_name=class_name),
        event(2, second, people[1], SECOND, class_name=class_name),
    )
    return OpinionPair(*events, None)


@pytest.mark.parametrize("seed", range(5))
def test_kappa_is_that_of_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    first = random.integers(0, 2, 40).tolist()
    second = np.where(random.random(40) < 0.2, random.integers(0, 2, 40), first).tolist()
    total = measure_agreement(pair(a, b) for a, b in zip(first, second, strict=True)).total
    assert total.kappa is not None and total.interval is not None and total.pairs == 40
    assert total.kappa == pytest.approx(cohen_kappa_score(first, second))
    assert total.agreed == sum(a == b for a, b in zip(first, second, strict=True))
    assert total.interval[0] < total.kappa < total.interval[1]


def test_kappa_is_undefined_without_answers_and_where_all_are_the_same() -> None:
    assert measure_agreement([]).total.kappa is None
    same = measure_agreement([pair(ABSENT, ABSENT)] * 30).total
    assert same.kappa is None and same.interval is None and same.agreed == same.pairs == 30
    assert "undefined" in describe_agreement(same)
    assert measure_agreement([pair(ABSENT, PRESENT)] * 30).total.kappa == 0, "never the same answer, as by chance"


def test_a_later_decision_settles_and_leaves_the_pair_as_it_was() -> None:
    events = [event(1, PRESENT), event(2, ABSENT, "ben", SECOND), event(3, ABSENT, "carl")]
    (found,) = opinion_pairs(events)
    assert not found.agrees and not found.is_open and found.settled == events[2]
    (again,) = opinion_pairs([*events, event(4, None, "carl", undoes=3)])
    assert again.is_open, "the settling decision was undone"


@pytest.mark.parametrize(
    "events",
    [
        [event(1, PRESENT, "ben", SECOND)],
        [event(1, PRESENT), event(2, ABSENT, "anna", SECOND)],
        [event(1, PRESENT), event(2, ABSENT, "ben", SECOND), event(3, None, "ben", SECOND, undoes=2, accepted=True)],
        [event(1, PRESENT), event(2, ABSENT, "ben", SECOND), event(3, None, undoes=1)],
        [event(1, PRESENT, accepted=False), event(2, ABSENT, "ben", SECOND)],
    ],
    ids=["no first", "the same person", "the second undone", "the first undone", "the first lost a conflict"],
)
def test_without_two_valid_answers_of_two_people_there_is_no_pair(events: list[DecisionEvent]) -> None:
    assert opinion_pairs(events) == []


IDS = np.random.default_rng(1).integers(0, 2**64, 50_000, dtype=np.uint64)


def test_the_labels_are_the_same_everywhere_and_others_in_another_store() -> None:
    for share in (0.0, 0.05, 0.5, 1.0):
        deviation = 4 * np.sqrt(share * (1 - share) / len(IDS))
        assert abs(is_doubled(IDS, "store", share).mean() - share) <= deviation
    chosen = is_doubled(IDS, "store", 0.05)
    assert np.array_equal(is_doubled(IDS[::-1], "store", 0.05)[::-1], chosen)
    assert np.flatnonzero(chosen)[:3].tolist() == [16, 20, 31], "the same in every version and on every machine"
    other = is_doubled(IDS, "another", 0.05)
    assert 0.03 < (chosen & other).sum() / chosen.sum() < 0.07, "independent"
    assert not (chosen & ~is_doubled(IDS, "store", 0.1)).any(), "a larger share contains a smaller one"


def test_pairs_follow_the_store_and_are_the_same_after_a_restart(store: DecisionStore) -> None:
    opinions = SecondOpinions(store)
    assert opinions.pairs() == [] and opinions.answered() == set()
    one, two = (LabelKey("train", f"{number}.jpg", "dog") for number in (1, 2))
    answers = ((one, PRESENT, "anna", "missing"), (two, ABSENT, "anna", "missing"))
    for number, (key, value, by, kind) in enumerate(
        (*answers, (one, ABSENT, "ben", SECOND), (two, ABSENT, "carl", SECOND))
    ):
        store.append([Decision(key, value, f"request-{number}", 0, kind)], reviewer=by, client=by)
    assert [pair.people for pair in opinions.pairs()] == [("anna", "ben"), ("anna", "carl")]
    assert [pair.first.key for pair in opinions.pairs() if pair.is_open] == [one]
    assert SecondOpinions(store).pairs() == opinions.pairs() and opinions.answered() == {one, two}
    store.append([Undo("request-2", "request-4")], reviewer="ben", client="ben")
    assert opinions.answered() == {two} == SecondOpinions(store).answered()
    assert not any(pair.is_open for pair in opinions.pairs())


def test_many_threads_compute_it_once_and_nobody_waits_who_need_not() -> None:
    cache, computing, go_on = VersionedCache(), threading.Event(), threading.Event()
    cache.get("a", 1, lambda: "old")

    def slow() -> str:
        computing.set()
        assert go_on.wait(60)
        return "new"

    with ThreadPoolExecutor(5) as threads:
        found = threads.map(lambda _: cache.get("a", 2, slow), range(5))
        assert computing.wait(60)
        with cache.tolerating(1e-9):
            assert cache.get("a", 2, lambda: "never") == "old"
        computing.clear()
        go_on.set()
    assert list(found) == ["new"] * 5 and not computing.is_set()


ANNA, BEN = Holder("browser-a", "page-1"), Holder("browser-b", "page-1")
QUEUE = np.arange(100)


class Clock:
    now = 1000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> Leases:
    return Leases(lambda: clock.now)


def test_the_second_person_is_given_what_follows(leases: Leases) -> None:
    for page in (Holder(ANNA.browser, "page-2"), ANNA):
        assert leases.take(page, QUEUE, 60).tolist() == list(range(60))
    leases.release(Holder(ANNA.browser, "page-2"))
    assert leases.take(BEN, QUEUE, 60).tolist() == list(range(60, 100)), "all that is left"
    assert leases.take(Holder("browser-c", "page-1"), QUEUE, 60).tolist() == []
    assert leases.held_by_others(ANNA.browser).tolist() == list(range(60, 100))


def test_a_lease_lasts_as_long_as_its_page_polls(leases: Leases, clock: Clock) -> None:
    leases.take(ANNA, QUEUE, 10)
    for _ in range(20):
        assert leases.renew(ANNA, "anna")
        clock.now += LEASE_SECONDS - 1
    assert len(leases.held_by_others(BEN.browser)) == 10
    clock.now += 1
    assert not len(leases.held_by_others(BEN.browser)) and not leases.renew(ANNA, "anna")


def test_a_client_that_only_loads_pages_holds_them_briefly(leases: Leases, clock: Clock) -> None:
    leases.take(ANNA, QUEUE, 10)
    clock.now += UNCONFIRMED_SECONDS
    assert leases.take(BEN, QUEUE, 10).tolist() == list(range(10))


def test_a_browser_with_many_pages_loses_its_oldest(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_OF_BROWSER", 25)
    for at in range(5):
        leases.take(Holder("hostile", f"page-{at}"), QUEUE[10 * at :], 10)
    assert leases.held_by_others(ANNA.browser).tolist() == list(range(30, 50))


def test_many_browsers_cannot_fill_the_memory(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LEASES", 3)
    leases.take(ANNA, QUEUE, 10)
    for at in range(6):
        leases.renew(ANNA, "anna")
        leases.take(Holder(f"hostile-{at}", "page"), QUEUE, 10)
    assert leases.renew(ANNA, "anna"), "a page that polls outlives those that do not"
    assert len(leases.held_by_others("somebody")) == 30


CLASS = 3


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


def answer(client: ReviewClient, tile: dict[str, str], value: int) -> HttpResponse:
    return client.decide(tile["id"], value, int(tile["version"]), asked=tile["asked"])


def test_what_is_answered_while_a_page_is_made_is_not_on_it(
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


def test_the_cookie_of_a_browser_is_for_no_script_and_no_other_site(client: ReviewClient) -> None:
    given = client.request("/class/3").headers["set-cookie"]
    assert re.match(rf"labelgap-{client.port}-browser=[0-9a-f]{{32}};", given)
    assert "HttpOnly" in given and "SameSite=strict" in given
    client.cookie = given.partition(";")[0]
    assert "set-cookie" not in client.request("/class/3").headers
    client.cookie = f"labelgap-{client.port}-browser=<script>"
    assert "<" not in client.request("/class/3").headers["set-cookie"]


def test_a_second_opinion_on_what_is_open_again_is_a_decision(review: Review) -> None:
    number = int(np.flatnonzero(review.candidates.columns.kind != WRONG)[0])
    identity = f"{int(review.candidates.columns.ids[number]):016x}"
    with run_server(review, double=1.0) as client:
        assert client.decide(identity, PRESENT, asked=SECOND).status == 200
        (stored,) = review.store.current()
        assert stored.kind != SECOND and stored.accepted
        assert client.decide(identity, ABSENT, stored.id, asked=SECOND).status == 200, "nobody is his own second"
    assert not review.opinions.pairs() and len(review.store.current()) == 1
