"""The checks in front of every request, the security headers of every response, and the limits of connections.

The page shows private photos and accepts decisions. Another web site in the same browser must neither read nor write
here, nor another user of this machine; another machine connects only when its owner asked for that:
- the ``Host`` of a request is one of ours (DNS rebinding), and a token is required, new with every start;
- a change has our ``Origin``, a CSRF token that only our pages can read, and JSON of limited size as its body;
- another site may link to a page, and load nothing else (``Sec-Fetch-Site``).

Every phase of a connection has a time limit, which bytes that trickle in do not extend. Beyond the number of
connections, the one that has waited longest for its client is closed: an honest client waits for milliseconds.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote, urlencode

import h11
from starlette.datastructures import MutableHeaders
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from labelgap.review.views import render, static_files

MAX_BODY_BYTES: Final = 256 * 1024
CSRF_HEADER: Final = "x-csrf-token"
_QUEUE: Final = 512
_SEND: Final = "send"

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_HOST: Final = re.compile(r"(\[[^\[\]]*\]|[^:]*)(?::\d+)?")
_RESPONSE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class AccessPolicy:
    """Which requests are accepted."""

    hosts: frozenset[str]  # accepted names in the `Host` header
    # whether any IP address is accepted as well; unlike a name, it cannot be pointed elsewhere
    allow_ip_hosts: bool = False
    cookie: str = "labelgap"  # name of the cookie that stores the token
    # required for every request, and for every change; new with every start of the server
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    csrf_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))


def make_access_policy(host: str, port: int, token: str | None = None) -> AccessPolicy:
    """Return the policy for the address that the server listens on; with a new token where none is given."""
    name = host.strip("[]").lower()
    name = f"[{name}]" if ":" in name else name
    beyond = name not in _LOOPBACK  # this machine
    own = (name, socket.gethostname().lower(), socket.getfqdn().lower()) if beyond else ()
    policy = AccessPolicy(frozenset({*_LOOPBACK, *own}), beyond, cookie=f"labelgap-{port}")
    return policy if token is None else replace(policy, token=token)


class SecurityMiddleware:
    """An ASGI application in front of another one; see the head of this file."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self.policy = policy
        self.limited = RequestBodyLimitMiddleware(app, MAX_BODY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with an error, or pass it on."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _RESPONSE_HEADERS.items():
                    headers.setdefault(name, value)
                if message["status"] == 413:
                    headers["connection"] = "close"
            await send(message)

        request = Request(scope)
        refused = self._check_host(request) or self._check_site(request) or self._check_token(request)
        if refused is None and request.method not in ("GET", "HEAD"):
            refused = self._check_change(request)
        await (self.limited if refused is None else refused)(scope, receive, send_with_headers)

    def _check_host(self, request: Request) -> Response | None:
        match = _HOST.fullmatch(request.headers.get("host", "").lower())
        name = match[1] if match else ""
        if name in self.policy.hosts:
            return None
        with suppress(ValueError):
            if self.policy.allow_ip_hosts and ipaddress.ip_address(name.strip("[]")):
                return None
        return _refusal(400, "host", "This server has another name.")

    def _check_site(self, request: Request) -> Response | None:
        """Refuse what another site loads, for example an image: it could measure what is here, and how fast."""
        site, mode, destination = (request.headers.get(f"sec-fetch-{name}", "") for name in ("site", "mode", "dest"))
        link = request.method == "GET" and mode == "navigate" and destination == "document"
        if link or site in ("", "same-origin", "none"):
            return None
        return _refusal(403, "origin", "Only the review page itself can load this.")

    def _check_token(self, request: Request) -> Response | None:
        query, token = request.query_params, self.policy.token.encode()
        if request.method == "GET" and secrets.compare_digest(query.get("token", "").encode(), token):
            rest = urlencode([(name, value) for name, value in query.multi_items() if name != "token"])
            path = "/" + quote(request.scope["path"].lstrip("/\\"))  # a path that starts with // names another host
            # By a redirect, a browser that comes from another place would not send the strict cookie.
            headers = {"refresh": f"0; url={path}?{rest}" if rest else f"0; url={path}"}
            response = Response(headers=headers, media_type="text/html")
            response.set_cookie(self.policy.cookie, self.policy.token, httponly=True, samesite="strict")
            return response
        if secrets.compare_digest(request.cookies.get(self.policy.cookie, "").encode(), token):
            return None
        if "text/html" not in request.headers.get("accept", ""):
            return _refusal(401, "token", "Open the link that `labelgap review` printed: it ends with a token.")
        nonce = secrets.token_urlsafe(16)  # the style is in the page: without a token nothing else is loaded
        security = _RESPONSE_HEADERS["content-security-policy"].replace(
            "style-src 'self'", f"style-src 'nonce-{nonce}'"
        )
        page = render("locked.html", nonce=nonce, style=static_files()["style.css"][0].decode())
        return HTMLResponse(page, 401, {"connection": "close", "content-security-policy": security})

    def _check_change(self, request: Request) -> Response | None:
        headers = request.headers
        own = f"{request.scope['scheme']}://{headers['host']}"
        if any(origin.lower() != own.lower() for origin in headers.getlist("origin")):
            return _refusal(403, "origin", "Only the review page itself can change decisions.")
        if not secrets.compare_digest(headers.get(CSRF_HEADER, "").encode(), self.policy.csrf_token.encode()):
            return _refusal(403, "csrf", "The CSRF token is missing or out of date: reload the page.")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _refusal(415, "type", "The body of a change is application/json.")
        return None


def _refusal(status: int, problem: str, detail: str) -> JSONResponse:
    return JSONResponse({"problem": problem, "detail": detail}, status, {"connection": "close"})


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of a server."""

    connections: int = 512  # open at the same time
    per_address: int = 128  # of these, from one address; a browser opens about six, and a network may share one address
    accepted_at_once: int = 64  # accepted in one turn of the event loop, before the first of them is counted
    request_seconds: float = 15.0  # from the start of a connection, or from the last answer, to the end of the headers
    body_seconds: float = 30.0  # from the end of the headers to the end of the body
    send_seconds: float = 30.0  # for a client to read what was sent

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

    async def on_tick(self, counter: int) -> bool:
        """Close the connections whose clients had their time; called ten times a second."""
        for connection in self._connections():
            connection.close_late()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, quietly: at once where a client is waited for, and after the answers to the others."""
        for connection in self._connections():
            connection.close_late(always=True)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # a slow answer is cancelled
        await super().shutdown(sockets)
        for connection in self._connections():
            connection.transport.abort()
        await asyncio.sleep(0)  # in which the event loop closes them

    def _connections(self) -> list[LimitedProtocol]:
        return [each for each in self.server_state.connections if isinstance(each, LimitedProtocol)]


class LimitedProtocol(H11Protocol):
    """A connection with limits; ``connections`` are all of the server."""

    connections: set[LimitedProtocol]  # type: ignore[assignment]

    def __init__(self, *, limits: ConnectionLimits, **named: Any) -> None:
        super().__init__(**named)
        self._limits = limits
        self._phase: object = None
        self._since = 0.0

    def _wait(self) -> tuple[float, float]:
        """Return for how long the client has to act, and how long it may; below 0 while its request is answered."""
        limits, state = self._limits, self.conn.their_state
        times = {h11.IDLE: limits.request_seconds, h11.SEND_BODY: limits.body_seconds, _SEND: limits.send_seconds}
        waits = _SEND if self.flow.write_paused or self.transport.is_closing() else state
        if (phase := (waits, self.cycle)) != self._phase:  # every request has a cycle of its own
            self._phase, self._since = phase, self.loop.time()
        return (self.loop.time() - self._since, times[waits]) if waits in times else (-1.0, 0.0)

    def close_late(self, *, always: bool = False) -> None:
        """Close the connection where its client had its time, or ``always`` where it is waited for."""
        waited, most = self._wait()
        if waited > (-1.0 if always else most):
            self.transport.abort()

    def resume_writing(self) -> None:
        """Continue to send: the client has read something."""
        super().resume_writing()
        self._phase = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; when there are too many, close the one that has waited longest for its client."""
        super().connection_made(transport)
        self._wait()
        same = [other for other in self.connections if (other.client or "")[:1] == (self.client or "")[:1]]
        few = len(same) <= self._limits.per_address
        if few and len(self.connections) <= self._limits.connections:
            return
        chosen = max(self.connections if few else same, key=lambda each: (each._wait()[0], each is self))
        self.connections.discard(chosen)  # at once: the loop reports the loss only in its next turn
        chosen.transport.abort()
