"""Real servers and workers: several people, kills, and clients that never finish over real sockets."""

from __future__ import annotations

import csv
import gc
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import combinations
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from benchmarks.simulated_people import Plan, Work, simulate
from tests.review.http_client import ReviewClient, run_server, running
from tests.review.samples import decide, likely_rows, write_candidates
from tests.waiting import PATIENCE, has_ended, wait_until

import labelgap as lg
from labelgap.core.files import DiskError
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review, ReviewFolder, create_random_review, decisions, open_review_folder
from labelgap.review.apply import apply_decisions
from labelgap.review.candidates import MISSING, WRONG, Candidates
from labelgap.review.database import FILE
from labelgap.review.live import EVERY, MAX_CRASHES, LiveRankings, RankingJob
from labelgap.review.queues import class_feed
from labelgap.review.security import ConnectionLimits
from labelgap.review.store import DecisionStore
from labelgap.review.views import panel_context, render

STALLED = 120
ANSWERED = 45
"""Of the connections that get an answer, which takes longer; more than the limits below as well."""
NEVER = 3600.0
HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SEND = b"POST /api/decisions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 900\r\n"


def entered(client: ReviewClient, head: bytes = HEAD) -> bytes:
    """A head of somebody who has opened the link."""
    return head + f"Cookie: {client.entrance}\r\n".encode()


Attack = Callable[[ReviewClient], bytes]
ATTACKS: dict[str, Attack] = {
    "nothing is sent": lambda client: b"",
    "half a header": lambda client: entered(client) + b"X-Slow: ",
    "half a body": lambda client: entered(client, SEND) + f"X-CSRF-Token: {client.csrf_token}\r\n\r\n{{".encode(),
    "kept alive after an answer": lambda client: entered(client) + b"\r\n",
    "an answer that is not read": lambda client: entered(client, HEAD.replace(b"/ ", b"/class/1?size=2000 ")) + b"\r\n",
    "a last answer that is not read": lambda client: entered(client) + b"Connection: close\r\n\r\n",
}


def connect(client: ReviewClient, sent: bytes) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    connection.settimeout(PATIENCE)
    connection.connect(("127.0.0.1", client.port))
    with suppress(ConnectionError):  # closed already
        connection.sendall(sent)
        if sent.endswith(b"\r\n\r\n"):
            connection.recv(1)  # the answer begins
    return connection


@contextmanager
def stalled(client: ReviewClient, attack: Attack, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        sent = attack(client)
        count = min(count, ANSWERED) if sent.endswith(b"\r\n\r\n") else count
        yield [stack.enter_context(connect(client, sent)) for _ in range(count)]


def wait_until_closed(connection: socket.socket) -> None:
    """Return when the server closes a connection; its time limit fails the test."""
    with suppress(ConnectionError):
        while connection.recv(65536):
            pass


def test_an_honest_client_is_let_in_however_many_are_stalled(review: Review) -> None:
    limits = ConnectionLimits(40, 30, 8, NEVER, NEVER, NEVER)
    with run_server(review, limits=limits) as client, ExitStack() as stack:
        client.enter()
        for attack in ATTACKS.values():
            stack.enter_context(stalled(client, attack, STALLED))
            assert client.request("/").status == 200
            identity = f"{int(review.candidates.columns.ids[0]):016x}"
            assert client.decide(identity, 1).status == 200


def test_another_address_is_not_closed_for_the_many_of_one(review: Review) -> None:
    limits = ConnectionLimits(40, 30, 8, NEVER, NEVER, NEVER)
    with run_server(review, host="0.0.0.0", limits=limits) as client, ExitStack() as stack:
        patient = socket.create_connection(("127.0.0.1", client.port), PATIENCE, ("127.0.0.9", 0))
        stack.enter_context(patient).sendall(HEAD)
        stack.enter_context(stalled(client, ATTACKS["half a header"], STALLED))
        patient.sendall(b"\r\n")
        assert patient.recv(12) == b"HTTP/1.1 401"


def let_in(client: ReviewClient) -> bool:
    """Whether a client gets its page: a busy machine may take longer than the server waits."""
    with suppress(ConnectionError, HTTPException):
        client.enter()
    return bool(client.csrf_token)


def test_every_phase_has_its_time(review: Review, capfd: pytest.CaptureFixture[str]) -> None:
    with run_server(review, limits=ConnectionLimits(40, 30, 8, 0.3, 0.3, 0.3)) as client:
        wait_until(lambda: let_in(client))
        with ExitStack() as stack:
            for connections in [stack.enter_context(stalled(client, attack, 2)) for attack in ATTACKS.values()]:
                for connection in connections:
                    wait_until_closed(connection)
        client.csrf_token = ""
        wait_until(lambda: let_in(client))
    assert capfd.readouterr().err == ""


def test_bytes_that_trickle_in_do_not_extend_it(review: Review) -> None:
    with run_server(review, limits=ConnectionLimits(40, 30, 8, 0.5, 0.5, 0.5)) as client:
        wait_until(lambda: let_in(client))
        for name in ("half a header", "half a body"):
            with connect(client, ATTACKS[name](client)) as connection:
                connection.settimeout(0.02)

                def is_closed(connection: socket.socket = connection) -> bool:
                    try:
                        connection.sendall(b"x")  # fewer than the 900 bytes of the body, at this pace
                        return connection.recv(1) == b""
                    except TimeoutError:
                        return False
                    except ConnectionError:
                        return True

                assert any(is_closed() for _ in range(500))


def test_a_server_that_stops_closes_the_connections_that_just_came_in(review: Review) -> None:
    stopped, opened = threading.Event(), list[socket.socket]()

    def keep_connecting(port: int, request: bytes) -> None:
        while not stopped.is_set():
            with suppress(OSError):
                opened.append(connection := socket.create_connection(("127.0.0.1", port), PATIENCE))
                connection.sendall(request)

    with run_server(review, limits=ConnectionLimits(400, 300, 8, NEVER, NEVER, NEVER)) as client:
        threads = [
            threading.Thread(target=keep_connecting, args=(client.port, entered(client) + b"\r\n")) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(opened) > 20)
    stopped.set()
    for thread in threads:
        thread.join()
    for connection in opened:
        connection.close()
    gc.collect()  # a transport that was not closed warns here, and fails the test


def test_the_limits_leave_files_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))
    assert ConnectionLimits().within_open_files() == ConnectionLimits(50, 50, 6)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, 1))
    assert ConnectionLimits().within_open_files() == ConnectionLimits()


CLASSES = tuple("0123456789")
IMAGES = 16
FEW_FILES = 256
"""Files that a process may open on some systems; fewer than there are stalled connections."""


@pytest.fixture
def review_folder(tmp_path: Path) -> ReviewFolder:
    """A review of images, each with nine unknown labels."""
    return create_random_review(lg.load("digits", train=IMAGES, val=0, test=0), "train", IMAGES, 0, tmp_path / "review")


@dataclass
class Reviewer:
    """Somebody who decides without pause, until the server is gone or all is decided."""

    client: ReviewClient
    ids: list[str]
    confirmed: list[str] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._work)
        self.started = threading.Event()

    def _work(self) -> None:
        for identity in self.ids:
            try:
                answer = self.client.decide(identity, PRESENT)
            except (OSError, HTTPException):
                self.started.set()
                return
            if answer.status == 200:
                self.confirmed.append(identity)
            else:
                self.refused.append(answer.status)
            self.started.set()


def check_one_moment(folder: ReviewFolder, out: Path) -> int:
    """Apply while people decide; the table and the list of changes must be of the same moment."""
    result = apply_decisions(folder, out, force=True)
    with result.provenance.open(newline="") as file:
        listed = {(row["image"], row["class"]) for row in csv.DictReader(file)}
    with out.open(newline="") as file:
        table = {(row["image"], name) for row in csv.DictReader(file) for name in CLASSES if row[name] == "1"}
    labels = folder.data.train.labels
    places = zip(*np.nonzero(labels.to_dense() == PRESENT), strict=True)
    assert table == {(labels.images[row], CLASSES[column]) for row, column in places} | listed
    assert result.decided == len(listed) == result.changed.get("review", 0)
    return result.decided


def test_a_kill_stalled_clients_and_apply_lose_no_decision(review_folder: ReviewFolder, tmp_path: Path) -> None:
    candidates = Candidates(review_folder.path / "candidates.parquet", CLASSES)
    ids = [f"{int(each):016x}" for each in candidates.columns.ids]
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(running(review_folder.path, "--fixed-order", files=FEW_FILES)) for _ in range(2)
        )
        for server in (first, second):
            server.client.enter()
        for name in ("nothing is sent", "half a header", "half a body"):
            stack.enter_context(stalled(second.client, ATTACKS[name], STALLED))
        people = [
            Reviewer(server.client.another(f"person {number}"), ids[number::4])
            for number, server in enumerate((first, second, first, second))
        ]
        for person in people:
            person.thread.start()
        for person in people:
            assert person.started.wait(120)
        counts = [check_one_moment(review_folder, tmp_path / "better.csv") for _ in range(5)]
        assert counts == sorted(counts)
        first.process.kill()
        for person in people:
            person.thread.join(300)
            assert not person.refused
        assert len(people[1].confirmed) == len(people[1].ids), "the other server goes on"
        confirmed = {identity for person in people for identity in person.confirmed}
        stored = {revision.image + revision.class_name for revision in decisions(review_folder.path)}
        for identity in confirmed:
            number = candidates.index(identity)
            assert number is not None
            key = candidates.key(number)
            assert key.image + key.class_name in stored
        assert second.client.request("/").status == 200
    assert check_one_moment(open_review_folder(review_folder.path), tmp_path / "after.csv") >= len(confirmed)


def test_sigterm_ends_a_server_with_stalled_clients_quietly(review_folder: ReviewFolder) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(running(review_folder.path, "--fixed-order"))
        server.client.enter()
        for attack in ATTACKS.values():
            stack.enter_context(stalled(server.client, attack, 12))
        os.kill(server.pid, signal.SIGTERM)
        server.process.join(PATIENCE)
        assert server.process.exitcode == 128 + signal.SIGTERM
        assert "Traceback" not in server.log.read_text() and "ERROR" not in server.log.read_text()


@contextmanager
def ranked(folder: Path) -> Iterator[tuple[Review, LiveRankings]]:
    with closing(Review(open_review_folder(folder))) as review:
        review.start_ranking()
        assert review.rankings is not None
        yield review, review.rankings


def learned(review: Review, decisions: int) -> bool:
    ranking = review.ranking()
    return ranking is not None and ranking.decisions >= decisions


def test_rankings_follow_the_decisions_survive_a_kill_and_are_the_same_after_a_restart(folder: Path) -> None:
    with ranked(folder) as (review, rankings):
        decide(review, class_feed(review, 3).numbers[:EVERY], ABSENT)
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
        decide(review, class_feed(review, 5).numbers[:EVERY])
        wait_until(lambda: learned(review, 2 * EVERY))
        assert rankings.worker.process.pid != worker and not rankings.problem
        newest = review.ranking()
        assert newest is not None
        wait_until(lambda: review.ranking("classifier") is not None)
    with ranked(folder) as (again, _):
        wait_until(lambda: learned(again, 2 * EVERY))
        same = again.ranking()
        assert same is not None and same.number == newest.number
        assert np.array_equal(same.position, newest.position)
        models = {number: model for number, _, model, _, _ in again.store.rankings()}
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
        wait_until(lambda: review.rankings is not None and bool(review.rankings.problem))
        assert "gone" in review.rankings.problem and "gone" in render("panel.html", panel=panel_context(review, 3))
        assert class_feed(review, 3).numbers.tolist() == before


def test_no_worker_ends_without_a_reason(review: Review, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [DiskError.of(review.store.path, "full", full=True)] * (MAX_CRASHES + 1) + [ValueError("of a bug")]
    monkeypatch.setattr("labelgap.review.live.RETRY_SECONDS", 0.01)

    def state() -> NoReturn:
        raise errors.pop(0)

    live = LiveRankings(RankingJob.of(review.folder, review.candidates), review.store, state)
    worker = live.worker.process.pid
    wait_until(lambda: bool(live.problem))
    live.stop()
    assert live.problem == "of a bug" and not errors and live.worker.process.pid == worker


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


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the worker is found by /proc")
def test_five_people_decide_everything_once_and_a_kill_loses_nothing_and_ends_the_worker(folder: Path) -> None:
    data = lg.load("digits", train=96, val=40, test=40)
    rows = likely_rows(data, share=0.2)
    few = {row[0] for row in rows if row[4] == "missing"}.intersection(data.train.labels.images[:25])
    write_candidates(folder / "candidates.parquet", [row for row in rows if row[0] in few], data)
    with running(folder) as server:
        worker = worker_of(server.pid)
        wait_until(lambda: has_ranking(folder, 0))
        people = simulate(
            Plan(server.client.port, server.client.token, people=5, seconds=PATIENCE, pause=0.01, size=4, processes=1)
        )
        assert [person.problem for person in people if person.problem] == []
        wait_until(lambda: has_ranking(folder, EVERY))  # it is ranked again in the meantime
        server.process.kill()
    wait_until(lambda: has_ended(worker))
    with closing(DecisionStore(folder / FILE, read_only=True)) as store:
        events = store.events()
    confirmed = [each for person in people for each in person.decided]
    assert Counter(event.request_id for event in events if event.is_answer) == Counter(each[0] for each in confirmed)
    assert all(event.accepted for event in events) and not [person.refused for person in people if person.refused]
    assert max(Counter(identity for _, identity, _ in confirmed).values()) == 1, "nobody decides what another has"
    assert shown_at_once(people) == []
    assert sum(bool(person.decided) for person in people) >= 4, "everybody has something to do"
    with closing(Review(open_review_folder(folder), read_only=True)) as review:
        open_ones = ~review.current.decided & (review.candidates.columns.kind != WRONG) & review.copies.shown
        assert len(confirmed) >= 40 and not open_ones.any(), "all was decided"
        values = {f"{int(review.candidates.columns.ids[n]):016x}": int(v) for n, v in enumerate(review.current.value)}
        assert {identity: values[identity] for _, identity, _ in confirmed} == {i: v for _, i, v in confirmed}
