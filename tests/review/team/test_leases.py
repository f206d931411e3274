"""Two people are never shown the same open candidate, and nobody holds one for longer than the page is open."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.review import team as module
from labelgap.review.team import LEASE_SECONDS, UNCONFIRMED_SECONDS, Holder, Leases

ANNA, BEN = Holder("browser-a", "page-1"), Holder("browser-b", "page-1")
QUEUE = np.arange(100)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> Leases:
    return Leases(clock)


def numbers(found: NDArray[np.int64]) -> list[int]:
    return [int(each) for each in found]


def test_the_second_person_is_given_what_follows(leases: Leases) -> None:
    assert numbers(leases.take(ANNA, QUEUE, 60)) == list(range(60))
    assert numbers(leases.take(BEN, QUEUE, 60)) == list(range(60, 100)), "all that is left"
    assert numbers(leases.take(Holder("browser-c", "page-1"), QUEUE, 60)) == []
    assert numbers(leases.held_by_others(ANNA.browser)) == list(range(60, 100))


def test_pages_of_one_browser_do_not_exclude_each_other(leases: Leases) -> None:
    leases.take(ANNA, QUEUE, 10)
    assert numbers(leases.take(Holder(ANNA.browser, "page-2"), QUEUE, 10)) == list(range(10))


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
    assert numbers(leases.take(BEN, QUEUE, 10)) == list(range(10))


def test_others_at_the_same_class_are_named_once_their_page_has_polled(leases: Leases, clock: Clock) -> None:
    leases.take(ANNA, QUEUE, 10, place=3)
    leases.take(BEN, QUEUE, 10, place=3)
    assert leases.people(BEN.browser, 3) == [] and leases.reviewer(ANNA.browser) is None
    leases.renew(ANNA, "anna")
    assert leases.people(BEN.browser, 3) == ["anna"] and leases.reviewer(ANNA.browser) == "anna"
    assert leases.people(ANNA.browser, 3) == [] and leases.people(BEN.browser, 4) == []
    leases.release(ANNA)
    assert leases.people(BEN.browser, 3) == [] and leases.reviewer(ANNA.browser) == "anna", "for the next page"
    leases.take(ANNA, QUEUE, 10, place=3)
    leases.renew(ANNA, "anna")
    assert leases.people(BEN.browser, 3) == ["anna"]
    clock.now += LEASE_SECONDS
    assert leases.people(BEN.browser, 3) == []


def test_a_browser_with_many_pages_loses_its_oldest(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_OF_BROWSER", 25)
    for at in range(5):
        leases.take(Holder("hostile", f"page-{at}"), QUEUE[10 * at :], 10)
    assert numbers(leases.held_by_others(ANNA.browser)) == list(range(30, 50))


def test_many_browsers_cannot_fill_the_memory(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LEASES", 3)
    leases.take(ANNA, QUEUE, 10)
    for at in range(6):
        leases.renew(ANNA, "anna")
        leases.take(Holder(f"hostile-{at}", "page"), QUEUE, 10)
    assert leases.renew(ANNA, "anna"), "a page that polls outlives those that do not"
    assert len(leases.held_by_others("somebody")) == 30


def test_twenty_threads_that_ask_at_once_are_given_different_candidates(leases: Leases) -> None:
    queue, given = np.arange(2000), dict[int, list[int]]()
    together = threading.Barrier(20)

    def work(number: int) -> None:
        together.wait()
        for _ in range(20):
            given[number] = numbers(leases.take(Holder(f"browser-{number}", "page"), queue, 60))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(each) for each in given.values()) == [60] * 20
    assert len({number for each in given.values() for number in each}) == 20 * 60
