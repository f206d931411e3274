"""People who decide through a browser, simulated by processes with several connections each."""

from __future__ import annotations

import http.client
import json
import random
import re
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

POLL_SECONDS = 3.0
_TILE = re.compile(r'<li class="entry[^>]*data-id="(\w+)"[^>]*data-version="(\d+)"[^>]*data-asked="(\w+)"')


@dataclass(frozen=True)
class Plan:
    """What a team does.

    Attributes:
        port: of the server.
        token: of the link that it printed.
        people: who decide at the same time, each about one class after the other.
        seconds: how long.
        pause: mean seconds between the answer to a decision and the next one; 0 for none.
        size: candidates on a page.
        processes: of the simulation.
    """

    port: int
    token: str
    people: int = 20
    seconds: float = 20.0
    pause: float = 1.0
    size: int = 60
    processes: int = 4


@dataclass
class Work:
    """What one person did.

    Attributes:
        name: of the person.
        decided: request id, id of the candidate and value of each decision that the server confirmed.
        shown: ids of the candidates on each page, with the time of the page and that of the next.
        latency: seconds from each decision to its answer.
        polls: seconds from each poll to its answer.
        refused: status codes other than 200.
        problem: why the person stopped before the end.
    """

    name: str
    decided: list[tuple[str, str, int]] = field(default_factory=list)
    shown: list[tuple[float, float, list[str]]] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    problem: str = ""


class Person:
    """A browser window: a connection that is kept, a cookie, a page of candidates, and a poll every three seconds."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.random = plan, random.Random(number)
        self.work = Work(f"person-{number:02d}")
        self.connection = http.client.HTTPConnection("127.0.0.1", plan.port, timeout=300)
        self.cookie = f"labelgap-{plan.port}={plan.token}"
        self.client = uuid.uuid4().hex

    def run(self) -> None:
        """Decide until the time is over or nothing is open."""
        try:
            self._run()
        except Exception as error:
            self.work.problem = repr(error)

    def _run(self) -> None:
        """Decide one candidate after the other, page by page and class by class."""
        status, overview = self.request("GET", "/")
        assert status == 200
        self.csrf, self.store = (re.findall(rf'data-{name}="([^"]+)"', overview)[0] for name in ("csrf-token", "store"))
        classes = sorted(set(re.findall(r'href="/class/(\d+)"', overview)), key=int)
        self.random.shuffle(classes)
        end = time.monotonic() + self.plan.seconds
        while classes and time.monotonic() < end:
            if not self.work_on_page(classes[0], end):
                classes.pop(0)

    def work_on_page(self, class_number: str, end: float) -> int:
        """Decide what the page of a class shows; return how many that were."""
        _, page = self.request("GET", f"/class/{class_number}?size={self.plan.size}")
        start, tiles, lease = time.time(), _TILE.findall(page), re.findall(r'data-lease="(\w+)"', page)[0]
        last = re.findall(r'data-last-id="(\d+)"', page)[0]
        next_poll, count = time.monotonic() + POLL_SECONDS, 0
        for identity, version, asked in tiles:
            if time.monotonic() >= end:
                break
            if self.plan.pause:
                time.sleep(self.random.expovariate(1 / self.plan.pause))
            if time.monotonic() >= next_poll:
                last, next_poll = self.poll(class_number, lease, last), time.monotonic() + POLL_SECONDS
            self.decide(identity, int(version), asked)
            count += 1
        self.work.shown.append((start, time.time(), [identity for identity, *_ in tiles]))
        self.post("/api/leases", {**self.base, "lease": lease, "class_number": int(class_number), "ids": []})
        return count

    @property
    def base(self) -> dict[str, Any]:
        """Return what every message has."""
        return {"store": self.store, "reviewer": self.work.name}

    def poll(self, class_number: str, lease: str, last: str) -> str:
        """Ask what has changed since an event, and return the last one."""
        start = time.perf_counter()
        query = f"since={last}&reviewer={self.work.name}&class={class_number}&lease={lease}"
        status, text = self.request("GET", f"/api/changes?{query}")
        self.work.polls.append(time.perf_counter() - start)
        return str(json.loads(text)["last_id"]) if status == 200 else last

    def decide(self, identity: str, version: int, asked: str) -> None:
        """Answer a question at random."""
        request_id, value = uuid.uuid4().hex, self.random.randint(0, 1)
        action = {"request_id": request_id, "id": identity, "value": value, "base_version": version, "asked": asked}
        start = time.perf_counter()
        status = self.post("/api/decisions", {**self.base, "client": self.client, "actions": [action]})
        self.work.latency.append(time.perf_counter() - start)
        if status == 200:
            self.work.decided.append((request_id, identity, value))
        else:
            self.work.refused.append(status)

    def post(self, path: str, message: dict[str, Any]) -> int:
        """Send a message, and return the status of its answer."""
        status, _ = self.request("POST", path, json.dumps(message).encode())
        return status

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        """Send a request, and return status and text of its answer."""
        headers = {"Cookie": self.cookie}
        if body is not None:
            headers |= {"Content-Type": "application/json", "X-CSRF-Token": self.csrf}
        try:
            self.connection.request(method, path, body, headers)
            response = self.connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.connection.close()  # the server closes idle connections; a browser connects again
            self.connection.request(method, path, body, headers)
            response = self.connection.getresponse()
        text = response.read().decode()
        if given := response.getheader("set-cookie"):
            self.cookie += f"; {given.partition(';')[0]}"
        return response.status, text


def simulate(plan: Plan) -> list[Work]:
    """Let the people begin together, and return what each did. This file is the script: its processes import little."""
    groups = [list(range(plan.people))[part :: plan.processes] for part in range(plan.processes)]
    words = [sys.executable, __file__, json.dumps(asdict(plan))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([*words, json.dumps(group)], **pipes) for group in groups]
    try:
        for process in started:
            process.stdout.readline()  # type: ignore[union-attr]
        for process in started:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        results = [json.loads(process.communicate()[0]) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return [Work(**work) for group in results for work in group]


def _main(plan: Plan, numbers: list[int]) -> None:
    people = [Person(plan, number) for number in numbers]
    threads = [threading.Thread(target=person.run) for person in people]
    print("ready", flush=True)
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([asdict(person.work) for person in people]))


if __name__ == "__main__":
    _main(Plan(**json.loads(sys.argv[1])), json.loads(sys.argv[2]))
