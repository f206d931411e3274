"""A Ray cluster of two nodes on this machine: ``ray start --head`` and a second node, on loopback addresses."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

HEAD, SECOND = "127.0.0.2", "127.0.0.3"  # Ray replaces 127.0.0.1 by the address of the machine
_ATTEMPTS = 5
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # before Ray is imported


class Cluster(NamedTuple):
    """A cluster that runs."""

    address: str
    second: subprocess.Popen[bytes]

    def processes(self) -> list[int]:
        """Return the ids of the processes of the second node; its workers have groups of their own."""
        found = list[int]()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                found += [int(path.name)] if os.getsid(int(path.name)) == self.second.pid else []
        return found

    def kill_second(self) -> None:
        """End the second node as a power cut does."""
        for number in self.processes():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.second.wait()


@contextmanager
def ray_cluster(cpus: int = 2) -> Iterator[Cluster]:
    """Yield a cluster that runs while the block does, whose address is in the environment RAY_ADDRESS too."""
    folder = Path(tempfile.mkdtemp(prefix="lg"))  # a short path: Ray's sockets are below it
    address = f"{HEAD}:{_free_port(HEAD)}"
    before = dict(os.environ)
    os.environ |= {
        "RAY_ADDRESS": address,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        head = ("--head", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false", f"--temp-dir={folder}/r")
        nodes.append(_start_node(HEAD, cpus, folder / "head.log", *head))
        nodes.append(_start_node(SECOND, cpus, folder / "second.log", f"--address={address}"))
        yield Cluster(address, nodes[1])
    finally:
        for node in reversed(nodes):
            _end(node)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def _start_node(host: str, cpus: int, log: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a node, and wait until it is up; its agents may take more than the 15 s that Ray gives them."""
    kinds = ("dashboard-agent-grpc", "dashboard-agent-listen", "metrics-export", "runtime-env-agent")
    for _ in range(_ATTEMPTS):
        ports = [f"--{kind}-port={_free_port(host)}" for kind in kinds]
        how = ("--block", f"--node-ip-address={host}", f"--num-cpus={cpus}", "--object-store-memory=150000000", *ports)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *how, *options]
        with log.open("wb") as output:
            node = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        while node.poll() is None:
            if "Ray runtime started" in log.read_text(errors="replace"):
                return node
            time.sleep(0.2)
        _end(node)
    raise RuntimeError(f"no Ray node: {log.read_text(errors='replace')[-2000:]}")


def _end(node: subprocess.Popen[bytes]) -> None:
    """End a node with all of its processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(node.pid, number)
        with suppress(subprocess.TimeoutExpired):
            node.wait(10)


def _free_port(host: str) -> int:
    """Return a free port below those that the system and Ray's workers take."""
    for _ in range(100):
        port = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.socket() as tried:
            tried.bind((host, port))
            return port
    raise RuntimeError("no free port")
