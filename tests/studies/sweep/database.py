"""A database for a test that processes share: Debian's PostgreSQL, as a user without privileges, else SQLite."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE, reserved_port, wait_until

PASSWORD = "s3cret/@word"
QUOTED = "s3cret%2F%40word"


@contextmanager
def shared_database(place: Path) -> Iterator[str]:
    """Yield the URL of a new, empty database: a file in a folder where there is no PostgreSQL, or no driver of it."""
    folders = [shutil.which("initdb"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")))]
    programs = next((Path(each).parent for each in folders if each), None)
    if programs is None or find_spec("psycopg") is None:
        yield f"sqlite:///{place / 'shared.sqlite'}"
        return
    psycopg = import_module("psycopg")
    folder = Path(tempfile.mkdtemp(prefix="labelgap-postgresql-"))
    user: dict[str, Any] = {}
    if os.getuid() == 0:  # the server refuses to run as root
        account = pwd.getpwnam("nobody")
        os.chown(folder, account.pw_uid, account.pw_gid)
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    secret = folder / "password"
    secret.write_text(PASSWORD, encoding="utf-8")
    secret.chmod(0o644)
    data = folder / "data"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    try:
        initialize: list[str | Path] = ["-D", data, "-U", "ann", "-A", "scram-sha-256", f"--pwfile={secret}", "-N"]
        subprocess.run([programs / "initdb", *initialize], check=True, **quiet, **user)
        with reserved_port() as port:
            settings = [f"port={port}", "listen_addresses=127.0.0.1", "fsync=off", f"unix_socket_directories={folder}"]
            options = [word for setting in settings for word in ("-c", setting)]
            server = subprocess.Popen([programs / "postgres", "-D", data, *options], **quiet, **user)
            try:
                wait_until(lambda: _accepts(psycopg, port, server))
                yield f"postgresql://ann:{QUOTED}@127.0.0.1:{port}/postgres"
            finally:
                server.send_signal(signal.SIGINT)  # the fast shutdown, which waits for no client
                server.wait(PATIENCE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _accepts(psycopg: Any, port: int, server: subprocess.Popen[bytes]) -> bool:
    """Whether the server accepts connections."""
    assert server.poll() is None, "the server has ended"
    with suppress(psycopg.OperationalError):
        psycopg.connect(host="127.0.0.1", port=port, user="ann", password=PASSWORD, dbname="postgres").close()
        return True
    return False
