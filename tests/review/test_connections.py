"""Clients that never finish over real sockets: they are closed, and an honest client gets its page all the while."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException

import pytest
from tests.review.http_client import ReviewClient, run_server
from tests.waiting import PATIENCE, wait_until

from labelgap.review import Review
from labelgap.review.security import ConnectionLimits

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
