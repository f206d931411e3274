"""The real worker: rankings while people decide, a kill −9 of the worker and of the server, a restart."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from labelgap.core.files import DiskError
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review, open_review_folder
from labelgap.review.candidates import MISSING
from labelgap.review.live.rankings import EVERY, MAX_CRASHES, LiveRankings
from labelgap.review.live.worker import RankingJob
from labelgap.review.panel import panel_context
from labelgap.review.queues.feeds import class_feed
from labelgap.review.store import FILE, DecisionStore
from labelgap.review.views import render

PATIENCE = 300.0
"""Seconds after which something that does not happen is broken, however busy the machine is."""


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


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


def test_rankings_follow_the_decisions_survive_a_kill_and_are_the_same_after_a_restart(folder: Path) -> None:
    with ranked(folder) as (review, rankings):
        decide(review, 3, EVERY, ABSENT)
        wait_for(lambda: learned(review, EVERY))
        first = review.ranking()
        assert first is not None and class_feed(review, 3).ranking == first.number
        open_ones = class_feed(review, 3).numbers
        ranked_ones = open_ones[review.candidates.columns.kind[open_ones] == MISSING]
        score = review.candidates.columns.score[ranked_ones].astype(np.float64)
        assert first.probability[ranked_ones].mean() < score.mean()  # ten times no to 3
        worker = rankings.worker_id
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        decide(review, 5, EVERY, PRESENT)
        wait_for(lambda: learned(review, 2 * EVERY))
        assert rankings.worker_id != worker and not rankings.problem
        newest = review.ranking()
        assert newest is not None
        wait_for(lambda: review.ranking("classifier") is not None)
    with ranked(folder) as (again, _):
        wait_for(lambda: learned(again, 2 * EVERY))
        same = again.ranking()
        assert same is not None and same.number == newest.number
        assert np.array_equal(same.position, newest.position)
        models = {stored.number: stored.model for stored in again.store.rankings()}
        assert len(models) == len(set(models)) and all(models.values())


def test_a_worker_that_cannot_work_is_told_of_and_the_audits_order_stays(folder: Path, tmp_path: Path) -> None:
    with closing(Review(open_review_folder(folder))) as review:
        before = class_feed(review, 3).numbers.tolist()
        review.start_ranking()
        assert review.rankings is not None
        review.rankings.stop()
        job = review.rankings.job
        broken = type(job)(**{**vars(job), "path": str(tmp_path / "gone")})
        review.rankings = LiveRankings(broken, review.store, review._decisions)
        wait_for(lambda: review.rankings is not None and bool(review.rankings.problem))
        assert "gone" in review.rankings.problem and "gone" in render("panel.html", panel=panel_context(review, 3))
        assert class_feed(review, 3).numbers.tolist() == before


def test_a_full_disk_ends_nothing_and_no_end_is_without_a_reason(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [DiskError.of(review.store.path, "full", full=True)] * (MAX_CRASHES + 1) + [ValueError("of a bug")]
    monkeypatch.setattr("labelgap.review.live.rankings.RETRY_SECONDS", 0.01)

    def state() -> NoReturn:
        raise errors.pop(0)

    live = LiveRankings(RankingJob.of(review.folder, review.candidates), review.store, state)
    worker = live.worker_id
    wait_for(lambda: bool(live.problem))
    live.stop()
    assert live.problem == "of a bug" and not errors and live.worker_id == worker


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the worker is found by /proc")
def test_the_worker_ends_with_a_server_that_is_killed_and_no_decision_is_lost(folder: Path) -> None:
    words = [sys.executable, "-m", "labelgap", "review", str(folder), "--no-browser", "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if re.search(r"http://127\.0\.0\.1:\d+/", line):
                break
        wait_for(lambda: bool(children(server.pid)))
        (worker,) = [pid for pid in children(server.pid) if "spawn_main" in command_line(pid)]
        with closing(Review(open_review_folder(folder))) as other:  # somebody else decides in the same folder
            decide(other, 3, EVERY, PRESENT)
            wait_for(lambda: any(each.decisions for each in other.store.rankings()))
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    wait_for(lambda: has_ended(worker))
    with closing(DecisionStore(folder / FILE, read_only=True)) as store:
        assert len(store.current()) == EVERY


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"
