"""Commands that torchrun starts on two machines: two agents on this one, each with a folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import call
from tests.killing import start_forked, wait_forked
from tests.sample_photos import write_color_photos
from tests.waiting import PATIENCE, reserved_port, wait_until
from torch.distributed.run import get_args_parser

import labelgap as lg
from labelgap.cli.main import make_app

PROJECT = Path(__file__).resolve().parents[2]
MARK = "LABELGAP_TEST_MACHINES"
TRAIN = ("train", "tags.csv", "--images", "photos", "--backbone", "small-cnn", "--protocol", "end-to-end")


class Machines:
    """Two machines: the first has the data in its current folder, the second sees them where ``shared``."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folders, self.port = [folder / "first", folder / "second"], port
        self.agents: list[subprocess.Popen[str]] = []
        for each in self.folders:
            each.mkdir()

    def start(self, *command: str) -> None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}"]
        torchrun += ["-m", "labelgap", *command]
        paths = os.pathsep.join([str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", MARK: str(self.folders[0])}
        self.agents = [
            subprocess.Popen(
                torchrun, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for folder in self.folders
        ]

    def processes(self) -> Iterator[tuple[int, int, str]]:
        """The id, the parent and the rank of every process that the agents started."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (path / "environ").read_bytes().decode(errors="replace").split("\0")
                environment = dict(word.partition("=")[::2] for word in words)
                if environment.get(MARK) == str(self.folders[0]) and "RANK" in environment:
                    parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                    yield int(path.name), int(parent), environment["RANK"]

    def end(self) -> None:
        """End what is left: workers outlive an agent that is killed, and hold its pipes."""
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for process, *_ in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for agent in self.agents:
            agent.communicate()

    def finish(self) -> list[tuple[int, str, str]]:
        """Wait for both; return the exit code, the output and the messages of labelgap, the first process first."""
        ended = [(agent, *agent.communicate(timeout=PATIENCE)) for agent in self.agents]
        first = [number for number, (_, _, said) in enumerate(ended) if "rank      : 0 " in said]
        ended = ended[::-1] if first == [1] else ended
        return [(agent.returncode, out, said) for agent, out, said in ended]


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with reserved_port() as port:
        made = Machines(tmp_path, port)
        monkeypatch.chdir(made.folders[0])
        write_color_photos()
        yield made
        made.end()


def test_torchrun_takes_no_option_of_train_for_an_abbreviation_of_its_own() -> None:
    theirs = [name for action in get_args_parser()._actions for name in action.option_strings]
    for option in typer.main.get_command(make_app()).commands["train"].params:  # type: ignore[attr-defined]
        names = [name for name in option.opts if name.startswith("--")]
        passed = [name for name in names if not any(each.startswith(name) for each in theirs)]
        assert passed or not names, names


def test_a_killed_process_ends_the_others_with_an_error(machines: Machines, tmp_path: Path) -> None:
    for name in ("photos", "tags.csv"):
        (machines.folders[1] / name).symlink_to(machines.folders[0] / name)
    out = tmp_path / "run"
    machines.start(*TRAIN, "--batch-size", "2", "--epochs", "100000", "--trace", "off", "--out", str(out))
    wait_until(lambda: (out / "last.pt").exists() or any(agent.poll() is not None for agent in machines.agents))
    agents = [agent.pid for agent in machines.agents]
    (second,) = [process for process, parent, rank in machines.processes() if parent in agents and rank == "1"]
    os.kill(second, signal.SIGKILL)
    (code, shown, said), (other_code, other_shown, other_said) = machines.finish()
    assert code != 0 and "labelgap: another process of this command ended" in said, said
    assert "tags.csv: 12 images" in shown and "is a bug" not in said
    assert other_code != 0 and "SIGKILL" in other_said and not other_shown
    assert not [line for line in other_said.splitlines() if line.startswith("labelgap:")], other_said
    assert len(lg.open_run(out).history) >= 1


def test_data_that_one_machine_does_not_see_is_an_error_on_both(machines: Machines, tmp_path: Path) -> None:
    logs = [tmp_path / "log 0", tmp_path / "log 1"]

    def train(rank: int) -> None:
        """Run the command in the environment that torchrun gives to it."""
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "GROUP_RANK": str(rank), "WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(machines.port)}
        os.chdir(machines.folders[rank])
        sys.exit(call(*TRAIN, "--epochs", "1", "--out", str(tmp_path / "run")))

    def exit_codes() -> list[int]:
        return [
            wait_forked(each) for each in [start_forked(partial(train, rank), log) for rank, log in enumerate(logs)]
        ]

    assert exit_codes() == [2, 2]
    messages = [line for log in logs for line in log.read_text().splitlines() if line.startswith("labelgap")]
    assert len(messages) == 2 and all("tags.csv does not exist" in line for line in messages), messages
    assert sum(f"on {socket.gethostname()}: " in line for line in messages) == 1
    assert not (tmp_path / "run").exists()
    for name in ("photos", "tags.csv"):
        (machines.folders[1] / name).symlink_to(machines.folders[0] / name)
    assert exit_codes() == [0, 0], [log.read_text() for log in logs]
    assert (tmp_path / "run" / "report.html").exists()
