"""Fuzz everything that reads a stored file: a damaged one is refused in words, or read as it was written.

    python benchmarks/fuzz_runs.py [--cases N] [--seed SEED] [--workers N] [--replay NUMBER]

labelgap writes a small file of every kind first: a finished, an audited and an unfinished run, a review with decisions,
a comparison, a study, an unfinished prediction, weights, a cache, features; and tables and data sets in all formats
that it reads, of which no row may be lost. Every case damages one file
(its bytes, its place in the file system, or its content by format) and reads it with everything that reads it. In half
of the cases the manifest of the folder is adapted, as the author of a hostile folder would do.

A case fails where a reader raises something else than an error of labelgap, or one of more than 2,000 characters or
with control characters; gives no answer in time; takes more than a gigabyte; returns another value of a file that a
digest covers; starts a process, opens a connection, or a file that the folder names; or writes to a damaged database.
Failures are printed by file, error and place, with the number of the smallest case: ``--replay NUMBER`` repeats it.
``--seconds`` are those that a reader may take, ``--light`` leaves out the readers that take long, ``--only TEXT``
damages the files whose path contains it, ``--workers 0`` runs in this process, without a limit of memory, and
``--samples`` is the folder of the samples, which are made where it does not exist.
"""

from __future__ import annotations

import faulthandler
import hashlib
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fuzzing.cases import Case, Failure, Fuzzer
from benchmarks.fuzzing.samples import make_samples
from benchmarks.harness import parse_arguments

PROJECT: Final = Path(__file__).resolve().parents[1]
ADDRESS_SPACE: Final = 6 << 30
"""Bytes that a worker may reserve beyond what it has when it starts."""
STALLED: Final = 15
"""How many times the seconds of a reader a case may take, where it cannot be interrupted, before its process ends."""


@dataclass
class Totals:
    """What came of all cases."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, case: Case) -> None:
        """Count a case, and print a failure of a new kind."""
        known = {failure.key for failure in self.failures}
        for failure in case.failures:
            if failure.key not in known:
                print(f"case {failure.number}: {failure.file}: {failure.problem} at {failure.place}", flush=True)
        self.cases += 1
        self.outcomes.update(case.outcomes)
        self.targets[case.target] += 1
        self.failures += case.failures


def scratch() -> Path:
    """Return an empty folder, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="labelgap-fuzz-", dir=memory if memory.is_dir() else None))


def sample_folder(given: Path | None) -> Path:
    """Return the samples, made once for every state of the source: their bytes differ from one time to the next."""
    sources = sorted([*(PROJECT / "src").rglob("*.py"), *(PROJECT / "benchmarks" / "fuzzing").glob("samples.py")])
    found = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = given or Path(tempfile.gettempdir()) / f"labelgap-fuzz-samples-{found}"
    if not (folder / "complete").exists():
        print("making the samples …", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "samples").mkdir(parents=True)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        os.environ["LABELGAP_CACHE"] = str(folder / "cache")
        make_samples(folder / "samples")
        (folder / "complete").touch()
    return folder


def prepare(folder: Path, arguments: Namespace) -> Fuzzer:
    """Return a fuzzer with its own copy of the samples."""
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    os.environ["MPLCONFIGDIR"] = str(folder / "matplotlib")
    os.environ["MPLBACKEND"] = "Agg"
    words = {"seconds": arguments.seconds, "heavy": not arguments.light, "only": arguments.only}
    return Fuzzer(folder / "samples", scratch(), arguments.seed, **words)


def work(numbers: range, folder: Path, arguments: Namespace, current: Any, results: Connection) -> None:
    """Run cases in a process of its own, and send what came of each."""
    import torch

    torch.set_num_threads(1)
    fuzzer = prepare(folder, arguments)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        most = pages * resource.getpagesize() + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = crash_log(os.getpid()).open("w+")
    faulthandler.enable(log)
    try:
        for number in numbers:
            current.value = number
            print(f"file {fuzzer.choose(number).path}", file=log, flush=True)
            faulthandler.dump_traceback_later(STALLED * arguments.seconds, exit=True, file=log)
            results.send(fuzzer.run(number))
            faulthandler.cancel_dump_traceback_later()
    finally:
        log.close()
        crash_log(os.getpid()).unlink(missing_ok=True)
        shutil.rmtree(fuzzer.root.parent, ignore_errors=True)


class Worker:
    """A process that runs every N-th case, and is started again after a case that killed it."""

    def __init__(self, numbers: range, folder: Path, arguments: Namespace) -> None:
        self.numbers, self.folder, self.arguments = numbers, folder, arguments
        self.start()

    def start(self) -> None:
        """Start the process."""
        context = multiprocessing.get_context("spawn")
        self.current: Any = context.Value("q", -1)
        self.results, sender = context.Pipe(duplex=False)
        words = (self.numbers, self.folder, self.arguments, self.current, sender)
        self.process = context.Process(target=work, args=words, daemon=True)
        self.process.start()
        sender.close()

    def receive(self) -> Iterator[Case]:
        """Yield what was sent since; restart or end the process where it has died."""
        try:
            while self.results.poll():
                yield self.results.recv()
        except (EOFError, OSError):
            self.process.join()
            number = self.current.value
            if self.process.exitcode == 0 or number < 0:
                if self.process.exitcode:
                    raise SystemExit("a worker could not start") from None
                self.numbers = range(0)
                return
            yield self.died(number, f"the process died (exit {self.process.exitcode})")

    def died(self, number: int, problem: str) -> Case:
        """Count a case that ended its process, and continue after it."""
        log = crash_log(self.process.pid or 0)
        text = log.read_text() if log.exists() else ""
        log.unlink(missing_ok=True)
        places = re.findall(r'File ".*/(labelgap/.*)", line (\d+) in (\w+)', text)
        place = "{}:{} {}".format(*places[0]) if places else "?"
        files = re.findall(r"^file (.*)$", text, re.MULTILINE)
        problem = "no answer, and no interruption" if "Timeout" in text else problem
        self.numbers = self.numbers[self.numbers.index(number) + 1 :]
        failure = Failure(number, (files or ["?"])[-1], "?", "?", problem, place, text[-3000:], 1)
        if self.numbers:
            self.start()
        return Case(("failed",), (failure,), "?", failure.file)


def crash_log(process: int) -> Path:
    """Return the file into which a process writes where it was when it died."""
    return Path(tempfile.gettempdir()) / f"labelgap-fuzz-{process}.log"


def run_all(folder: Path, arguments: Namespace) -> Totals:
    """Run all cases in several processes."""
    totals, shown = Totals(), time.monotonic()
    numbers = range(arguments.cases)
    if not arguments.workers:
        return run_here(numbers, folder, arguments)
    workers = [Worker(numbers[index :: arguments.workers], folder, arguments) for index in range(arguments.workers)]
    while active := [worker for worker in workers if worker.numbers]:
        wait([worker.results for worker in active], timeout=5.0)
        for worker in active:
            for case in worker.receive():
                totals.add(case)
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"{totals.cases:,} cases, {len(totals.failures):,} failures", flush=True)
    return totals


def run_here(numbers: range, folder: Path, arguments: Namespace) -> Totals:
    """Run cases in this process."""
    totals, fuzzer = Totals(), prepare(folder, arguments)
    try:
        for number in numbers:
            totals.add(fuzzer.run(number))
    finally:
        shutil.rmtree(fuzzer.root.parent, ignore_errors=True)
    return totals


def print_failures(failures: list[Failure], seed: int) -> None:
    """Print each cause once, the most frequent first, with the smallest case."""
    causes: dict[tuple[str, str, str], list[Failure]] = {}
    for failure in failures:
        causes.setdefault(failure.key, []).append(failure)
    for (file, problem, place), found in sorted(causes.items(), key=lambda pair: -len(pair[1])):
        least = min(found, key=lambda each: (each.steps, len(each.mutation), each.number))
        print(f"{len(found):6,} × {file}: {problem} at {place}")
        print(f"         {least.reader} after {least.mutation}; --seed {seed} --replay {least.number}")
        last = least.detail.strip().splitlines()[-1:] or [""]
        print(f"         {last[0][:300]}")


def replay(folder: Path, arguments: Namespace) -> int:
    """Repeat one case in this process, and print all of it."""
    fuzzer = prepare(folder, arguments)
    case = fuzzer.run(arguments.replay)
    print(f"{case.target}: {case.mutation}: {', '.join(case.outcomes)}")
    for failure in case.failures:
        print(f"{failure.reader}: {failure.problem} at {failure.place}\n{failure.detail}")
    shutil.rmtree(fuzzer.root.parent, ignore_errors=True)
    return 1 if case.failures else 0


def main() -> None:
    arguments = parse_arguments(
        __doc__, cases=2000, seed=0, workers=2, seconds=10.0, light=False, only="", replay=int, samples=Path
    )
    folder, started = sample_folder(arguments.samples), time.perf_counter()
    if arguments.replay is not None:
        sys.exit(replay(folder, arguments))
    totals = run_all(folder, arguments)
    print_failures(totals.failures, arguments.seed)
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(totals.outcomes.items()))
    print(f"{totals.cases:,} mutations of {len(totals.targets)} files in {time.perf_counter() - started:.0f} s")
    print(f"{totals.outcomes.total():,} readings: {outcomes}")
    print(f"failed {len(totals.failures)}")
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.exit(1 if totals.failures else 0)


if __name__ == "__main__":
    main()
