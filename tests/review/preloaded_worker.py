"""The process that ranks, as a copy of one that has imported everything: to start it anew takes seconds."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection

import pytest

from labelgap.review import live as rankings
from labelgap.review.live import RankingJob, run_worker


def preload_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the workers of reviews in this process, which have its environment as always."""
    start = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: start("forkserver"))
    monkeypatch.setattr(rankings, "run_worker", partial(_run_worker, dict(os.environ)))


def _run_worker(environment: Mapping[str, str], connection: Connection, job: RankingJob) -> None:
    os.environ.update(environment)
    run_worker(connection, job)
