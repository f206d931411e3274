"""Speaking to a server byte by byte, as browsers and worse clients do."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from labelgap.review import Review
from labelgap.review.server import create_server


@dataclass
class Answer:
    """What a server said."""

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
class Served:
    """A server, and one window of a browser that speaks to it."""

    address: str
    client: str = field(default_factory=lambda: uuid.uuid4().hex)
    reviewer: str = "anna"
    stamp: str = ""
    store: str = ""
    cookie: str = ""

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    def another(self, reviewer: str) -> Served:
        """Another person's window."""
        return Served(self.address, reviewer=reviewer)

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            own = {"Cookie": self.cookie} if self.cookie else {}
            connection.request(method, path, body, {**own, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def enter(self) -> None:
        """Load the first page, as a browser does before it can change anything."""
        page = self.ask("/").text
        self.stamp, self.store = (re.findall(rf'data-{name}="([^"]+)"', page)[0] for name in ("stamp", "store"))

    def send(self, actions: list[dict[str, Any]], **changed: Any) -> Answer:
        """Send decisions as the page does."""
        if not self.stamp:
            self.enter()
        message = {"store": self.store, "client": self.client, "reviewer": self.reviewer, "actions": actions}
        headers = {"Content-Type": "application/json", "X-Labelgap-Stamp": self.stamp}
        return self.ask("/api/decisions", "POST", json.dumps({**message, **changed}).encode(), headers)

    def say(self, identity: str, value: int, saw: int = 0) -> Answer:
        return self.send([{"request": uuid.uuid4().hex, "id": identity, "value": value, "saw": saw}])


@contextmanager
def serving(review: Review, **options: Any) -> Iterator[Served]:
    """Serve a review from a thread."""
    server, listening, address = create_server(review, port=0, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield Served(address)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
