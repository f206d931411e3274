"""Limits of the connections to the review server, so that clients that never finish cannot stop the others.

Every phase of a connection has a time limit, counted from its start: waiting for a request, receiving its body, and
sending an answer that the client does not read. Bytes that trickle in do not extend it. The number of connections is
limited in all and per address. Beyond the limit, the connection that has waited longest for its client is closed in
favor of the new one: an honest client waits for milliseconds, and is let in however many others are stalled.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, replace
from typing import Any, Final

import h11
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol

_QUEUE: Final = 512
_SEND: Final = "send"


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of a server.

    Attributes:
        connections: open at the same time.
        per_address: of these, from one address; a browser opens about six, and a network may share one address.
        accepted_at_once: accepted in one turn of the event loop, before the first of them is counted.
        request_seconds: from the start of a connection, or from the last answer, to the end of the headers.
        body_seconds: from the end of the headers to the end of the body.
        send_seconds: for a client to read what was sent.
    """

    connections: int = 512
    per_address: int = 128
    accepted_at_once: int = 64
    request_seconds: float = 15.0
    body_seconds: float = 30.0
    send_seconds: float = 30.0

    def within_open_files(self) -> ConnectionLimits:
        """Return limits that leave this process enough files to open."""
        try:
            import resource
        except ImportError:  # Windows has no such limit
            return self
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self
        most = max(2, min(self.connections, files // 2))
        at_once = max(1, min(self.accepted_at_once, files // 16))  # twice as many are not counted yet
        return replace(self, connections=most, per_address=min(self.per_address, most), accepted_at_once=at_once)


class LimitedServer(Server):
    """A server that accepts few connections at once; many may wait to be accepted, so that a client need not retry."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_QUEUE)  # uvicorn takes one number for both

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, and close the connections whose clients did not read their answers in time."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # in which the event loop closes them


class LimitedProtocol(H11Protocol):
    """A connection with limits.

    Args:
        limits: of the server.
        connections: all connections of the server, in the order in which their phases began.
        **named: as uvicorn passes them.
    """

    def __init__(self, *, limits: ConnectionLimits, connections: dict[LimitedProtocol, None], **named: Any) -> None:
        super().__init__(**named)
        self._limits, self._all = limits, connections
        self._phase: object = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Where the client is, without its port."""
        return self.client[0] if self.client else ""

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to act next; otherwise its complete request is being answered."""
        return self._current_phase() in (_SEND, h11.IDLE, h11.SEND_BODY)

    def _current_phase(self) -> object:
        return _SEND if self.flow.write_paused or self.transport.is_closing() else self.conn.their_state

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, and close another one when there are too many."""
        super().connection_made(transport)
        self._all[self] = None
        self._update_phase()
        same = [other for other in self._all if other.address == self.address]
        if len(same) > self._limits.per_address:
            _close_one(same)
        elif len(self._all) > self._limits.connections:
            _close_one(list(self._all))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.drop()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Count the connection no longer."""
        self._all.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        super().data_received(data)
        self._update_phase()

    def on_response_complete(self) -> None:
        """Wait for the next request, or until the client has read the answer."""
        super().on_response_complete()
        self._update_phase()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._update_phase()

    def resume_writing(self) -> None:
        """Continue to send."""
        super().resume_writing()
        self._update_phase()

    def _update_phase(self) -> None:
        """Start the time limit of the current phase, if it has just begun."""
        phase = self._current_phase()
        if phase == self._phase or self not in self._all:
            return
        self._phase = phase
        self.drop()
        self._all[self] = None  # at the end: the others have waited longer
        limits = self._limits
        seconds = {
            h11.IDLE: limits.request_seconds,
            h11.SEND_BODY: limits.body_seconds,
            _SEND: limits.send_seconds,
        }.get(phase)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def _close_one(connections: list[LimitedProtocol]) -> None:
    """Close the connection that has waited longest for its client; the newest when all are being answered."""
    chosen = next((each for each in connections if each.waits_for_client), connections[-1])
    chosen.drop()  # at once: the loop reports the loss only in its next turn
    chosen.transport.abort()
