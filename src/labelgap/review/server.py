"""Serving the review page on this machine, until Ctrl-C."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import warnings
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from labelgap.core.errors import InputError, LabelGapError
from labelgap.review.session import Review

if TYPE_CHECKING:
    from uvicorn import Server

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "create_server", "serve"]

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8765
_TRIED: Final = 20


def serve(
    review: Review,
    *,
    host: str = DEFAULT_HOST,
    port: int | None = None,
    browser: bool = True,
    reviewer: str = "reviewer",
    budget: int | None = None,
    told: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        review: what is reviewed.
        host: the address to listen on; beyond this machine a token is made and asked for.
        port: the port; the first free one from 8765 on when not given, any free one for 0.
        browser: whether to open the page in a browser.
        reviewer: whose name decisions bear until somebody types another.
        budget: seconds that the review is to take.
        told: hears the address, once it is listened on.
    """
    server, listening, address = create_server(review, host=host, port=port, reviewer=reviewer, budget=budget)
    warnings.filterwarnings("ignore", module="PIL")  # of broken metadata; threads cannot each do it for themselves
    told(address)
    if browser and _has_screen():
        threading.Timer(0.5, webbrowser.open, [address]).start()
    with listening, suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def create_server(
    review: Review,
    *,
    host: str = DEFAULT_HOST,
    port: int | None = None,
    reviewer: str = "reviewer",
    budget: int | None = None,
) -> tuple[Server, socket.socket, str]:
    """Return the server, the socket that it is to listen on, and the address of the page; see ``serve``."""
    try:
        import uvicorn

        from labelgap.review.app import AppContext, create_app
        from labelgap.review.security import SecurityMiddleware, make_access_policy
    except ModuleNotFoundError as error:
        raise LabelGapError(
            f"the review page needs the package {error.name}: pip install 'labelgap[review]'."
        ) from None
    _ = review.standing, review.candidates.image_order  # before the first page asks
    listening = _listen(host, port)
    number = int(listening.getsockname()[1])
    door = make_access_policy(host, number)
    config = uvicorn.Config(
        SecurityMiddleware(create_app(AppContext(review, door, reviewer, budget)), door),
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http="h11",
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=32 * 1024,
    )
    return uvicorn.Server(config), listening, _address(host, number, door.token)


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens, or say why there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + _TRIED), 0]
    for number in wanted:
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            if os.name == "posix":
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host.strip("[]"), number))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRINUSE and number != wanted[-1]:
                continue
            hint = " Choose another with --port." if error.errno == errno.EADDRINUSE else ""
            raise InputError(f"{host}:{number} cannot be listened on: {error.strerror or error}.{hint}") from None
        except OverflowError:
            listening.close()
            raise InputError(f"--port {number}: a port is a number from 0 to 65535.") from None
        else:
            return listening
    raise InputError(f"no port of {host} is free.")


def _address(host: str, port: int, token: str | None) -> str:
    """Return what to type into a browser."""
    everywhere = host.strip("[]") in ("0.0.0.0", "::")
    name = socket.gethostname() if everywhere else host
    name = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _has_screen() -> bool:
    """Whether there is a screen that a browser could open on; a text browser would take the terminal."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
