"""The web server of the review page (uvicorn)."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
import threading
import warnings
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labelgap.core.errors import InputError, LabelGapError
from labelgap.review.additions import NewPhotos
from labelgap.review.session import Review

if TYPE_CHECKING:
    from uvicorn import Server

    from labelgap.review.security import ConnectionLimits

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8765
_PORTS_TRIED: Final = 20
_KEEP_ALIVE_SECONDS: Final = 5


def serve(
    review: Review,
    *,
    host: str = DEFAULT_HOST,
    port: int | None = None,
    browser: bool = True,
    reviewer: str = "reviewer",
    budget: int | None = None,
    double: float = 0.0,
    live: bool = True,
    on_start: Callable[[str], None] = lambda address: None,
) -> Review:
    """Serve the page until Ctrl-C; return the review, another one where photos were added to its run.

    The port is the first free one from 8765 on when not given. ``double`` is the share of the labels that are asked of
    a second person; ``live`` ranks what is open again while people decide; ``on_start`` gets the link to the page, with
    its token.
    """
    asked: dict[str, Any] = {"reviewer": reviewer, "budget": budget, "double": double}
    asked["token"] = secrets.token_urlsafe(24)
    warnings.filterwarnings("ignore", module="PIL")  # broken metadata; filters are not per thread
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        while True:
            photos = NewPhotos(review.path) if NewPhotos.are_possible(review.folder) else None
            server, listener, address = create_server(review, host=host, port=port, photos=photos, **asked)
            with listener:
                port = int(listener.getsockname()[1])
                if live:
                    review.start_ranking()
                on_start(address)
                if browser and _has_display():
                    page = stack.enter_context(_private_page(review.path, address))
                    threading.Timer(0.5, webbrowser.open, [page.as_uri()]).start()
                server.run(sockets=[listener])
            if photos is None or not photos.added:
                break
            review, browser, on_start = review.reopened(), False, lambda address: None
    return review


def create_server(
    review: Review,
    *,
    host: str = DEFAULT_HOST,
    port: int | None = None,
    reviewer: str = "reviewer",
    budget: int | None = None,
    double: float = 0.0,
    limits: ConnectionLimits | None = None,
    token: str | None = None,
    photos: NewPhotos | None = None,
) -> tuple[Server, socket.socket, str]:
    """Return the server, its listening socket, and the link to the page; see ``serve`` for the arguments."""
    try:
        import uvicorn

        from labelgap.review.context import AppContext
        from labelgap.review.routes import create_app
        from labelgap.review.security import (
            ConnectionLimits,
            LimitedProtocol,
            LimitedServer,
            SecurityMiddleware,
            make_access_policy,
        )
    except ModuleNotFoundError as error:
        raise LabelGapError(
            f"the review page needs the package {error.name}: pip install 'labelgap[review]'."
        ) from None
    _ = review.current, review.candidates.image_order  # computed before the first request
    with suppress(LabelGapError):  # without the data, the pages say what is wrong with them
        _ = review.image_order, review.audit_ranking
    listener = listen(host, port)
    number = int(listener.getsockname()[1])
    policy = make_access_policy(host, number, token)
    photos = None if policy.allow_ip_hosts else photos
    bounds = (limits or ConnectionLimits()).within_open_files()
    config = uvicorn.Config(
        SecurityMiddleware(create_app(AppContext(review, policy, reviewer, budget, double, photos)), policy),
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http=partial(LimitedProtocol, limits=bounds),  # type: ignore[arg-type]
        backlog=bounds.accepted_at_once,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=32 * 1024,
    )
    server = LimitedServer(config)
    if photos is not None:
        photos.on_added = partial(setattr, server, "should_exit", True)
    return server, listener, _address(host, number, policy.token)


@contextmanager
def _private_page(folder: Path, address: str) -> Iterator[Path]:
    """Make a file for this user alone that leads to the address: every user can list the arguments of a browser."""
    path = folder.resolve() / f".page-{secrets.token_hex(8)}.partial.html"
    path.touch(0o600, exist_ok=False)
    try:
        path.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">')
        yield path
    finally:
        path.unlink(missing_ok=True)


def listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; without a port, of the first free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED), 0]
    for number in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host.strip("[]"), number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE and number != ports[-1]:
                continue
            hint = " Choose another with --port." if error.errno == errno.EADDRINUSE else ""
            raise InputError(f"cannot listen on {host}:{number}: {error.strerror or error}.{hint}") from None
        except OverflowError:
            listener.close()
            raise InputError(f"--port {number}: a port is a number from 0 to 65535.") from None
        else:
            return listener
    raise InputError(f"no port of {host} is free.")


def _address(host: str, port: int, token: str) -> str:
    any_host = host.strip("[]") in ("0.0.0.0", "::")
    name = socket.gethostname() if any_host else host
    name = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"http://{name}:{port}/?token={token}"


def _has_display() -> bool:
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
