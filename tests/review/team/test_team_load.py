"""Twenty people at once, from several processes, at a real server beside the process that ranks again."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import combinations
from pathlib import Path

from benchmarks.simulated_people import Plan, Work, simulate
from tests.review.http_client import running
from tests.review.sample_run import likely_rows, write_candidates
from tests.waiting import PATIENCE, wait_until

import labelgap as lg
from labelgap.review import Review, open_review_folder
from labelgap.review.candidates import WRONG
from labelgap.review.database import FILE
from labelgap.review.live import EVERY
from labelgap.review.store import DecisionStore


def has_ranking(folder: Path, decisions: int) -> bool:
    """Whether the worker has ranked after some decisions; the ranking of the audit is stored with the first page."""
    with closing(DecisionStore(folder / FILE, read_only=True)) as store:
        return any(made >= decisions for _, _, _, made, _ in store.rankings())


def shown_at_once(people: list[Work]) -> list[str]:
    """The candidates that two people had on their pages at the same time."""
    pages = [(person.name, *page) for person in people for page in person.shown]
    return [
        identity
        for (a, start_a, end_a, ids_a), (b, start_b, end_b, ids_b) in combinations(pages, 2)
        if a != b and start_a < end_b and start_b < end_a
        for identity in set(ids_a) & set(ids_b)
    ]


def test_twenty_people_decide_everything_once_and_nothing_is_lost(folder: Path) -> None:
    data = lg.load("digits", train=96, val=40, test=40)
    write_candidates(folder / "candidates.parquet", likely_rows(data, share=0.2), data)
    with running(folder) as server:
        wait_until(lambda: has_ranking(folder, 0))
        people = simulate(Plan(server.client.port, people=20, seconds=PATIENCE, pause=0.01, size=5))
        assert [person.problem for person in people if person.problem] == []
        wait_until(lambda: has_ranking(folder, EVERY))  # it is ranked again in the meantime
        with closing(DecisionStore(folder / FILE, read_only=True)) as store:
            events = store.events()
    confirmed = [each for person in people for each in person.decided]
    assert Counter(event.request_id for event in events if event.is_answer) == Counter(each[0] for each in confirmed)
    assert all(event.accepted for event in events) and not [person.refused for person in people if person.refused]
    assert max(Counter(identity for _, identity, _ in confirmed).values()) == 1, "nobody decides what another has"
    assert shown_at_once(people) == []
    assert sum(bool(person.decided) for person in people) >= 15, "everybody has something to do"
    with closing(Review(open_review_folder(folder), read_only=True)) as review:
        open_ones = ~review.current.decided & (review.candidates.columns.kind != WRONG) & review.copies.shown
        assert not open_ones.any(), "all was decided"
        values = {f"{int(review.candidates.columns.ids[n]):016x}": int(v) for n, v in enumerate(review.current.value)}
        assert {identity: values[identity] for _, identity, _ in confirmed} == {i: v for _, i, v in confirmed}
