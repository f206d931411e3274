"""The review server in a thread or a process of its own, and an HTTP client that can also send invalid requests."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from html import unescape
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cli.conftest import call
from tests.waiting import PATIENCE, wait_until

from labelgap.review import Review
from labelgap.review.live import RankingJob, run_worker
from labelgap.review.server import create_server

TOKENS: dict[int, str] = {}
"""Of the servers that a test has started, by their ports."""


@dataclass
class HttpResponse:
    """The response of a server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class ReviewClient:
    """A client of the server, as one browser window, which has opened the link; it keeps the cookies."""

    address: str  # of the first page
    token: str = ""
    client: str = field(default_factory=lambda: uuid.uuid4().hex)
    reviewer: str = "anna"
    csrf_token: str = ""
    store: str = ""
    cookie: str = ""

    def __post_init__(self) -> None:
        if self.token:
            TOKENS[self.port] = self.token

    @classmethod
    def of(cls, link: str) -> ReviewClient:
        """A client with the link that the command printed."""
        address, _, token = link.partition("?token=")
        return cls(address, token)

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    @property
    def entrance(self) -> str:
        """The cookie of who has opened the link."""
        return f"labelgap-{self.port}={self.token}"

    def another(self, reviewer: str) -> ReviewClient:
        """Another person's window."""
        return ReviewClient(self.address, self.token, reviewer=reviewer)

    def request(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            own = {"Cookie": "; ".join(filter(None, [self.token and self.entrance, self.cookie]))}
            connection.request(method, path, body, {**own, **(headers or {})})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            if not self.cookie and "-browser=" in found.get("set-cookie", ""):
                self.cookie = found["set-cookie"].partition(";")[0]
            return HttpResponse(response.status, found, response.read())
        finally:
            connection.close()

    def enter(self) -> None:
        """Load the first page, as a browser does before it can change anything."""
        page = self.request("/").text
        self.csrf_token, self.store = (
            re.findall(rf'data-{name}="([^"]+)"', page)[0] for name in ("csrf-token", "store")
        )

    def post(self, path: str, message: dict[str, Any]) -> HttpResponse:
        """Send a message as the page does."""
        if not self.csrf_token:
            self.enter()
        body = {"store": self.store, "reviewer": self.reviewer, **message}
        headers = {"Content-Type": "application/json", "X-CSRF-Token": self.csrf_token}
        return self.request(path, "POST", json.dumps(body).encode(), headers)

    def send(self, actions: list[dict[str, Any]]) -> HttpResponse:
        """Send decisions as the page does."""
        return self.post("/api/decisions", {"client": self.client, "actions": actions})

    def decide(self, identity: str, value: int, base_version: int = 0, **more: Any) -> HttpResponse:
        action = {"request_id": uuid.uuid4().hex, "id": identity, "value": value, "base_version": base_version}
        return self.send([{**action, **more}])


def tiles(page: str) -> list[dict[str, str]]:
    """What each entry of a page has as data."""
    found = re.findall(r'<li class="entry[^>]*>', page)
    return [{name: unescape(value) for name, value in re.findall(r'data-([\w-]+)="([^"]*)"', tag)} for tag in found]


def ids(page: str) -> list[str]:
    return [tile["id"] for tile in tiles(page)]


@contextmanager
def run_server(review: Review, **options: Any) -> Iterator[ReviewClient]:
    """Serve a review from a thread."""
    server, listener, address = create_server(review, port=0, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        yield ReviewClient.of(address)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


@dataclass
class Command:
    """``labelgap review``, running."""

    process: BaseProcess
    client: ReviewClient
    log: Path
    farewell: str = ""

    @property
    def address(self) -> str:
        return self.client.address.rstrip("/")

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


@contextmanager
def running(folder: Path, *options: str, port: str = "0", files: int = 1024) -> Iterator[Command]:
    """The command in a process of its own, which may open so many files, until the block ends."""
    words = ("review", str(folder), "--no-browser", "--reviewer", "anna", "--port", port, *options)
    log = folder.with_name(f"{uuid.uuid4().hex}.log")
    process = FORKSERVER.Process(target=_call, args=(words, log, dict(os.environ), files))
    process.start()
    found: list[str] = []

    def is_ready() -> bool:
        found[:] = re.findall(r"(http://127\.0\.0\.1:\d+/\?token=\S+)\n", log.read_text() if log.exists() else "")
        return bool(found) or not process.is_alive()

    try:
        wait_until(is_ready)
        assert found, f"the server did not start: {log.read_text()}"
        yield (command := Command(process, ReviewClient.of(found[0]), log))
        if process.is_alive():
            os.kill(command.pid, signal.SIGINT)
        process.join(PATIENCE)
        command.farewell = log.read_text()
    finally:
        process.kill()
        process.join()


FORKSERVER = get_context("forkserver")
"""Its processes are copies of one that has imported everything: to start Python anew takes seconds."""


def _call(words: tuple[str, ...], log: Path, environment: dict[str, str], files: int) -> None:
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with log.open("w", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        code = call(*words)
    sys.exit(code)


class Worker:
    """What ranks in a process of ``FORKSERVER``, with the environment that this process has when it is started."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_run_worker, dict(os.environ))


def _run_worker(environment: dict[str, str], connection: Connection, job: RankingJob) -> None:
    os.environ.update(environment)
    run_worker(connection, job)
