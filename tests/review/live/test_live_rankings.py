"""The real worker: rankings while people decide, a kill −9 of the worker and of the server, a restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from tests.review.http_client import running
from tests.waiting import has_ended, wait_until

from labelgap.core.files import DiskError
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review, open_review_folder
from labelgap.review.candidates import MISSING
from labelgap.review.database import FILE
from labelgap.review.live import EVERY, MAX_CRASHES, LiveRankings, RankingJob
from labelgap.review.queues import class_feed
from labelgap.review.store import DecisionStore
from labelgap.review.views import panel_context, render


@contextmanager
def ranked(folder: Path) -> Iterator[tuple[Review, LiveRankings]]:
    with closing(Review(open_review_folder(folder))) as review:
        review.start_ranking()
        assert review.rankings is not None
        yield review, review.rankings


def decide(review: Review, class_number: int, count: int, value: int) -> None:
    numbers = class_feed(review, class_number).numbers[:count].tolist()
    made = [review.decision(number, value, f"request-{class_number}-{number}", 0) for number in numbers]
    review.store.append(made, reviewer="anna", client="window-1")


def learned(review: Review, decisions: int) -> bool:
    ranking = review.ranking()
    return ranking is not None and ranking.decisions >= decisions


def test_rankings_follow_the_decisions_survive_a_kill_and_are_the_same_after_a_restart(preloaded: Path) -> None:
    with ranked(preloaded) as (review, rankings):
        decide(review, 3, EVERY, ABSENT)
        wait_until(lambda: learned(review, EVERY))
        first = review.ranking()
        assert first is not None and class_feed(review, 3).ranking == first.number
        open_ones = class_feed(review, 3).numbers
        ranked_ones = open_ones[review.candidates.columns.kind[open_ones] == MISSING]
        score = review.candidates.columns.score[ranked_ones].astype(np.float64)
        assert first.probability[ranked_ones].mean() < score.mean()  # ten times no to 3
        worker = rankings.worker.process.pid
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        decide(review, 5, EVERY, PRESENT)
        wait_until(lambda: learned(review, 2 * EVERY))
        assert rankings.worker.process.pid != worker and not rankings.problem
        newest = review.ranking()
        assert newest is not None
        wait_until(lambda: review.ranking("classifier") is not None)
    with ranked(preloaded) as (again, _):
        wait_until(lambda: learned(again, 2 * EVERY))
        same = again.ranking()
        assert same is not None and same.number == newest.number
        assert np.array_equal(same.position, newest.position)
        models = {number: model for number, _, model, _, _ in again.store.rankings()}
        assert len(models) == len(set(models)) and all(models.values())


def test_a_worker_that_cannot_work_is_told_of_and_the_audits_order_stays(preloaded: Path, tmp_path: Path) -> None:
    with closing(Review(open_review_folder(preloaded))) as review:
        before = class_feed(review, 3).numbers.tolist()
        review.start_ranking()
        assert review.rankings is not None
        review.rankings.stop()
        job = review.rankings.job
        broken = type(job)(**{**vars(job), "path": str(tmp_path / "gone")})
        review.rankings = LiveRankings(broken, review.store, review._decisions)
        wait_until(lambda: review.rankings is not None and bool(review.rankings.problem))
        assert "gone" in review.rankings.problem and "gone" in render("panel.html", panel=panel_context(review, 3))
        assert class_feed(review, 3).numbers.tolist() == before


def test_a_full_disk_ends_nothing_and_no_end_is_without_a_reason(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [DiskError.of(review.store.path, "full", full=True)] * (MAX_CRASHES + 1) + [ValueError("of a bug")]
    monkeypatch.setattr("labelgap.review.live.RETRY_SECONDS", 0.01)

    def state() -> NoReturn:
        raise errors.pop(0)

    live = LiveRankings(RankingJob.of(review.folder, review.candidates), review.store, state)
    worker = live.worker.process.pid
    wait_until(lambda: bool(live.problem))
    live.stop()
    assert live.problem == "of a bug" and not errors and live.worker.process.pid == worker


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the worker is found by /proc")
def test_the_worker_ends_with_a_server_that_is_killed_and_no_decision_is_lost(folder: Path) -> None:
    with running(folder) as server:
        worker = worker_of(server.process.pid)
        with closing(Review(open_review_folder(folder))) as other:  # somebody else decides in the same folder
            decide(other, 3, EVERY, PRESENT)
            wait_until(lambda: any(decisions for _, _, _, decisions, _ in other.store.rankings()))
        server.process.kill()
    wait_until(lambda: has_ended(worker))
    with closing(DecisionStore(folder / FILE, read_only=True)) as store:
        assert len(store.current()) == EVERY


def worker_of(server: int) -> int:
    """Wait for the process that ranks, and return its id; until it runs its own program it looks like the server."""
    found: list[int] = []

    def started() -> bool:
        children = map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())
        found[:] = [child for child in children if not has_ended(child) and "spawn_main" in command_line(child)]
        return len(found) == 1

    wait_until(started)
    return found[0]


def command_line(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text()
