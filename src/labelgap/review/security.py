"""The checks in front of every request, and the security headers of every response.

The page shows private photos and accepts decisions. Another web site that is open in the same browser must neither
read nor write here, and another machine reaches the page only when its owner asked for that:

- the ``Host`` of a request is one of ours, so a foreign name that resolves to this machine is refused (DNS rebinding);
- beyond this machine a token is required: first from the printed address, then from a cookie;
- a change comes from our own page: its ``Origin`` is ours (scheme, host and port), and it carries a CSRF token that
  only our pages can read;
- the body of a change is JSON of limited size;
- another site may link to a page, and load nothing else (``Sec-Fetch-Site``).

Every user of this machine can connect to an address of this machine: the page is meant for machines whose users trust
each other.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES: Final = 256 * 1024
CSRF_HEADER: Final = "x-csrf-token"

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_IP_HOST: Final = re.compile(r"([\d.]+|\[[\da-f:.]+\])(?::\d+)?", re.IGNORECASE)
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
    """Which requests are accepted.

    Attributes:
        hosts: accepted names in the ``Host`` header.
        allow_ip_hosts: whether any IP address is accepted as well; unlike a name, it cannot be pointed elsewhere.
        token: required from every client; None when only this machine can connect.
        cookie: name of the cookie that stores the token.
        csrf_token: required for every change; new with every start of the server.
    """

    hosts: frozenset[str]
    allow_ip_hosts: bool = False
    token: str | None = None
    cookie: str = "labelgap"
    csrf_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))


def make_access_policy(host: str, port: int) -> AccessPolicy:
    """Return the policy for the address that the server listens on; a token is required beyond this machine."""
    name = host.strip("[]").lower()
    name = f"[{name}]" if ":" in name else name
    if name in _LOOPBACK:
        return AccessPolicy(frozenset(_LOOPBACK), cookie=f"labelgap-{port}")
    hosts = frozenset({*_LOOPBACK, name, socket.gethostname().lower(), socket.getfqdn().lower()})
    return AccessPolicy(hosts, allow_ip_hosts=True, token=secrets.token_urlsafe(24), cookie=f"labelgap-{port}")


class SecurityMiddleware:
    """An ASGI application in front of another one; see the head of this file."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        limited = RequestBodyLimitMiddleware(app, MAX_BODY_BYTES)
        self.app = _HostCheck(_RequestCheck(limited, policy), policy)

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

        await self.app(scope, receive, send_with_headers)


class _HostCheck(TrustedHostMiddleware):
    """Starlette's check of the ``Host`` header, which has no rule for "any IP address"."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        super().__init__(app, sorted(policy.hosts), www_redirect=False)
        self.allow_ip_hosts = policy.allow_ip_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.allow_ip_hosts and _is_ip_address(Headers(scope=scope).get("host", "")):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class _RequestCheck:
    """The checks of the token, and of what a change needs."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self.app, self.policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        response = self._check_site(request) or self._check_token(request)
        if response is None and request.method not in ("GET", "HEAD"):
            response = self._check_change(request)
        await (self.app if response is None else response)(scope, receive, send)

    def _check_site(self, request: Request) -> Response | None:
        """Refuse what another site loads, for example an image: it could measure what is here, and how fast."""
        site, mode, destination = (request.headers.get(f"sec-fetch-{name}", "") for name in ("site", "mode", "dest"))
        link = request.method == "GET" and mode == "navigate" and destination == "document"
        if link or site in ("", "same-origin", "none"):
            return None
        return _refusal(403, "origin", "Only the review page itself can load this.")

    def _check_token(self, request: Request) -> Response | None:
        """Move a token from the address into a cookie; refuse a request that has neither."""
        token = self.policy.token
        if token is None:
            return None
        query = request.query_params
        if request.method == "GET" and secrets.compare_digest(query.get("token", "").encode(), token.encode()):
            rest = urlencode([(name, value) for name, value in query.multi_items() if name != "token"])
            path = "/" + request.scope["path"].lstrip("/\\")  # a path that starts with // names another host
            response = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
            response.set_cookie(self.policy.cookie, token, httponly=True, samesite="lax")
            return response
        cookie = request.cookies.get(self.policy.cookie, "")
        if secrets.compare_digest(cookie.encode(), token.encode()):
            return None
        return _refusal(401, "token", "Open the address that `labelgap review` printed: it ends with a token.")

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


def _is_ip_address(host: str) -> bool:
    """Whether a ``Host`` header names an IP address.

    Example:
        >>> [_is_ip_address(host) for host in ("192.168.7.7:80", "[::1]", "999.1.1.1", "1.2.3.4.example", "")]
        [True, True, False, False, False]
    """
    match = _IP_HOST.fullmatch(host)
    try:
        return match is not None and bool(ipaddress.ip_address(match[1].strip("[]")))
    except ValueError:
        return False
