"""Who may come in: the checks in front of every page, and what is said to the browser with every answer.

The page shows photos and takes decisions, so another web site that is open in the same browser must neither read nor
write here, and another machine must not reach it unless its owner asked for that:

- the ``Host`` of a request is one of ours (a name that somebody pointed at this machine is refused);
- beyond this machine a token is needed, from the printed address at first, then from a cookie;
- a change comes from our own page: its ``Origin`` is ours, and it carries a stamp that only our pages can read;
- a body is JSON and short.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["AccessPolicy", "CSRF_HEADER", "MAX_BODY_BYTES", "SecurityMiddleware", "make_access_policy"]

MAX_BODY_BYTES: Final = 256 * 1024
CSRF_HEADER: Final = "x-labelgap-stamp"

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_ALWAYS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True)
class AccessPolicy:
    """Who may come in.

    Attributes:
        hosts: names that a request may call us by.
        addresses: whether it may call us by any number as well: a number cannot be pointed elsewhere, as a name can.
        token: needed to come in; None where only this machine can.
        cookie: name of the cookie that keeps the token.
        stamp: needed for every change; made anew with every start.
    """

    hosts: frozenset[str]
    addresses: bool = False
    token: str | None = None
    cookie: str = "labelgap"
    stamp: str = field(default_factory=lambda: secrets.token_urlsafe(24))


def make_access_policy(host: str, port: int) -> AccessPolicy:
    """Return the door for the address that is listened on: open to this machine, or with a token to others."""
    named = host.strip("[]").lower()
    if named in _LOOPBACK:
        return AccessPolicy(frozenset(_LOOPBACK), cookie=f"labelgap-{port}")
    own = {socket.gethostname().lower(), socket.getfqdn().lower()}
    hosts = frozenset({*_LOOPBACK, named, *own})
    return AccessPolicy(hosts, addresses=True, token=secrets.token_urlsafe(24), cookie=f"labelgap-{port}")


class SecurityMiddleware:
    """An ASGI application in front of another; see the head of this file."""

    def __init__(self, app: ASGIApp, door: AccessPolicy) -> None:
        self.app, self.door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass a request on."""
        if scope["type"] != "http":
            return
        headers = _headers(scope)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_added(message)]
            await send(message)

        refusal = _wrong_host(headers, self.door) or self._token(scope, headers)
        if refusal is None and scope["method"] not in ("GET", "HEAD"):
            refusal = _wrong_change(headers, self.door)
        if refusal is not None:
            await refusal.send(sent)
        else:
            body = _Bounded(receive)
            with suppress(_TooLongError):
                await self.app(scope, body.receive, body.watched(sent))
            if body.too_long and not body.answered:
                await _TOO_LONG.send(sent)

    def _token(self, scope: Scope, headers: dict[str, list[str]]) -> _Answer | None:
        token = self.door.token
        if token is None:
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = asked.pop("token", [""])
        if scope["method"] == "GET" and _same(given[-1], token):
            rest = urlencode(asked, doseq=True)
            path = "/" + scope["path"].lstrip("/\\")
            cookie = f"{self.door.cookie}={token}; HttpOnly; SameSite=Lax; Path=/"
            place = path.encode("ascii", "ignore").decode() + (f"?{rest}" if rest else "")
            return _Answer(303, "come in", {"location": place, "set-cookie": cookie})
        if any(_same(value, token) for value in _cookies(headers, self.door.cookie)):
            return None
        words = "Open the address that `labelgap review` printed: it ends with a token, which this request lacks."
        return _Answer(401, words, problem="token")


@dataclass(frozen=True)
class _Answer:
    """A short answer that no page makes."""

    status: int
    words: str
    headers: dict[str, str] = field(default_factory=dict)
    problem: str = "refused"

    async def send(self, send: Send) -> None:
        body = json.dumps({"problem": self.problem, "detail": self.words}).encode()
        plain = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        headers = [(name.encode(), value.encode("latin-1")) for name, value in (plain | self.headers).items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _TooLongError(Exception):
    """A body went on past what is allowed."""


_TOO_LONG: Final = _Answer(413, f"a body has {MAX_BODY_BYTES:,} bytes at most", problem="length")


class _Bounded:
    """Counts a body as it comes in, and stops one that is too long, whatever its header said."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._length = receive, 0
        self.answered = self.too_long = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._length += len(message.get("body", b""))
        if self._length > MAX_BODY_BYTES:
            self.too_long = True
            raise _TooLongError
        return message

    def watched(self, send: Send) -> Send:
        async def sent(message: Message) -> None:
            if not self.too_long:  # then the answer to it is ours
                self.answered = True
                await send(message)

        return sent


def _wrong_host(headers: dict[str, list[str]], door: AccessPolicy) -> _Answer | None:
    hosts = headers.get("host", [])
    name = _name_of(hosts[0]) if len(hosts) == 1 else None
    if name is not None and (name in door.hosts or (door.addresses and _is_address(name))):
        return None
    return _Answer(400, f"this page answers to {', '.join(sorted(door.hosts))}.", problem="host")


def _wrong_change(headers: dict[str, list[str]], door: AccessPolicy) -> _Answer | None:
    """Say what is wrong with a request that would change something."""
    origins, site = headers.get("origin", []), headers.get("sec-fetch-site", ["same-origin"])
    foreign = [origin for origin in origins if _place_of(origin) != headers["host"][0]]
    if foreign or site != ["same-origin"]:
        return _Answer(403, "changes are made from the review page alone.", problem="origin")
    if not _same((headers.get(CSRF_HEADER) or [""])[-1], door.stamp):
        return _Answer(403, "the stamp of the page is missing or old: load it again.", problem="stamp")
    if (headers.get("content-type") or [""])[-1].partition(";")[0].strip().lower() != "application/json":
        return _Answer(415, "a change is sent as application/json.", problem="type")
    length = (headers.get("content-length") or ["0"])[-1]
    if not length.isascii() or not length.isdigit() or int(length[:12]) > MAX_BODY_BYTES:
        return _TOO_LONG
    return None


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _added(message: Any) -> list[tuple[bytes, bytes]]:
    there = {name.lower() for name, _ in message.get("headers", ())}
    wanted = _ALWAYS if b"cache-control" in there else {**_ALWAYS, "cache-control": "no-store"}
    return [(name.encode(), value.encode()) for name, value in wanted.items() if name.encode() not in there]


def _name_of(host: str) -> str | None:
    """Return the name in a ``Host`` header, without its port; None where it is none.

    Example:
        >>> _name_of("LocalHost:8765"), _name_of("[::1]:80"), _name_of("a@b"), _name_of("")
        ('localhost', '::1', None, None)
    """
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    plain = parts.netloc == host and not parts.username and "@" not in host
    return parts.hostname if plain else None


def _place_of(origin: str) -> str | None:
    """Return the host and port of an ``Origin`` header; None where it is none.

    Example:
        >>> _place_of("http://localhost:8765"), _place_of("http://[")
        ('localhost:8765', None)
    """
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookies(headers: dict[str, list[str]], name: str) -> list[str]:
    """Return the values of a cookie. Others, of whatever else is served by this machine, may look like anything.

    Example:
        >>> _cookies({"cookie": ['j{s}="[1,2]"; labelgap=abc']}, "labelgap")
        ['abc']
    """
    pairs = (part.strip().partition("=") for text in headers.get("cookie", ()) for part in text.split(";"))
    return [value for key, _, value in pairs if key == name]


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
