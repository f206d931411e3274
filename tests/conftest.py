"""What every test shares: one thread a process, no window, and the real data if any."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
from _pytest.doctest import DoctestModule

# Before torch and matplotlib are imported, and in the environment, so that processes started by a test follow too.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="labelgap-")  # pytest keeps its own folders beside it
os.environ["XDG_STATE_HOME"] = os.environ["TMPDIR"] + "/state"

import matplotlib
import torch
from tests.killing import end_forked

torch.set_num_threads(1)
matplotlib.use("Agg")
hypothesis.settings.register_profile("labelgap", deadline=None, derandomize=True)
hypothesis.settings.load_profile("labelgap")

# The processes that tests start by "forkserver" are copies of one that has imported this.
multiprocessing.set_forkserver_preload(
    ["labelgap.review.routes", "labelgap.training.features", "torch._dynamo", "torch.distributed"]
)

PROJECT = Path(__file__).resolve().parents[1]
TEMPORARY = os.environ["TMPDIR"]
Path(TEMPORARY).chmod(0o711)  # a database server runs as another user


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no doctests in the tests: there are none, and every process of the tests would search all of them."""
    return [each for each in (yield) if not isinstance(each, DoctestModule)]


def pytest_collection_finish() -> None:
    """Leave what is imported to itself: the search for garbage takes a tenth of the time where it is included."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and config.pluginmanager.hasplugin("dsession"):  # where other processes run the tests
        config.pluginmanager.register(FailuresAtOnce(terminal))


class FailuresAtOnce:
    """Prints a failure where it happens: the summary comes at the end, which a test that hangs may prevent."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.write_line(f"\n{report.nodeid} ({report.when})\n{report.longreprtext[-3000:]}", red=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    end_forked()


def pytest_unconfigure() -> None:
    shutil.rmtree(TEMPORARY, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real photos and features beside the project; tests that ask for it are skipped without it."""
    folder = PROJECT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data (../shared/data from the project's root) is not on this machine")
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are written have no drawings."""
    from tests.cli.conftest import undraw

    undraw(monkeypatch)
