"""An HTTP server of a folder on this machine, with range requests, which can be told to fail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class ShardServer:
    """What a server does, and what it was asked for.

    Attributes:
        url: of the folder.
        requests: name → how many bytes were sent of it.
        fails: whether to answer a request of a file with an error, by its name.
        ranges: whether range requests are honored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.url, self.ranges = folder, "", True
        self.sent: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.fails: Callable[[str], bool] = lambda name: False

    def respond(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        """Answer a request."""
        name = handler.path.rpartition("/")[2]
        path = self.folder / name
        if self.fails(name):
            self.failures[name] += 1
            handler.send_error(503)
            return
        if not path.is_file():
            handler.send_error(404)
            return
        content = path.read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", "")) if self.ranges else None
        handler.send_response(206 if match else 200)
        if match:
            start, stop = int(match[1]), min(int(match[2] or len(content)) + 1, len(content))
            handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
            content = content[start:stop]
        if self.ranges:
            handler.send_header("Accept-Ranges", "bytes")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if body:
            self.sent[name] += len(content)
            handler.wfile.write(content)


@contextmanager
def serve(folder: Path) -> Iterator[ShardServer]:
    """Serve a folder while the block runs."""
    served = ShardServer(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.respond(self, body=True)

        def do_HEAD(self) -> None:
            served.respond(self, body=False)

        def log_message(self, format: str, *values: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}/shards"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
