"""An HTTP server of a folder on this machine, which can be told to fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


class ShardServer:
    """What a server does, and what it was asked for.

    Attributes:
        url: of the folder.
        sent: name → how many bytes were sent of it.
        failures: name → how many requests of it were answered with an error.
        fails: whether to answer a request of a file with an error, by its name.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.sent: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.fails: Callable[[str], bool] = lambda name: False


@contextmanager
def serve(folder: Path) -> Iterator[ShardServer]:
    """Serve a folder while the block runs."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(folder.parent))

        def send_head(self) -> Any:
            name = Path(self.path).name
            if served.fails(name):
                served.failures[name] += 1
                self.send_error(503)
                return None
            return super().send_head()

        def copyfile(self, source: Any, outputfile: Any) -> None:
            served.sent[Path(self.path).name] += Path(source.name).stat().st_size
            super().copyfile(source, outputfile)

        def log_message(self, format: str, *values: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = ShardServer(folder, f"http://127.0.0.1:{server.server_port}/{folder.name}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
