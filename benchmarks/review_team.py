"""How long does a decision take when twenty people review at once, beside the process that ranks again?

    python -m benchmarks.review_team [--people 20] [--seconds 30] [--pause 1.0] [--images 600]

The real command serves a run on the digits. Simulated people, in four processes, load pages of 60 candidates, decide
one after the other with random pauses of one second on average, and poll as the page does. Measured is the time from
sending a decision to its answer, which comes after the decision is on disk. First in the fixed order of the audit, then
with the order that learns from the answers, then without any pause, as fast as everybody can.

The aim: 95 % of the answers within 50 ms, and no decision lost.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from benchmarks.harness import parse_arguments, print_ratios
from benchmarks.simulated_people import Plan, Work, simulate
from tests.review.samples import make_run

from labelgap.review.database import FILE
from labelgap.review.store import DecisionStore


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[int, str]]:
    """Serve a review by the command, and yield its port and its token."""
    words = [sys.executable, "-m", "labelgap", "review", str(folder), "--no-browser", "--port", "0", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)\n", line):
                yield int(found[1]), found[2]
                return
        raise SystemExit("the server did not start")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def count_lost(folder: Path, people: list[Work]) -> tuple[int, int]:
    """Return how many confirmed decisions are not in the store exactly once, and how many rankings there were."""
    with closing(DecisionStore(folder / FILE, read_only=True)) as store:
        stored = Counter(event.request_id for event in store.events())
        rankings = sum(decisions > 0 for _, _, _, decisions, _ in store.rankings())
    return sum(stored[request_id] != 1 for person in people for request_id, *_ in person.decided), rankings


def measure(name: str, run: Path, people: int, seconds: float, pause: float, *options: str) -> float:
    """Let people decide about a copy of a run, print what was measured, and return the 95th percentile in seconds."""
    folder = run.parent / name.replace(" ", "-")
    shutil.copytree(run, folder)
    with serving(folder, *options) as server:
        simulate(
            Plan(*server, people=2, seconds=8, pause=0.2, processes=2)
        )  # the first ranking, and all that is loaded once
        team = simulate(Plan(*server, people=people, seconds=seconds, pause=pause))
        lost, rankings = count_lost(folder, team)
    for person in team:
        if person.problem or person.refused:
            raise SystemExit(f"{person.name}: {person.problem} {Counter(person.refused)}")
    latency, polls = (
        np.array([each for person in team for each in getattr(person, of)]) for of in ("latency", "polls")
    )
    slow_poll = 1000 * float(np.quantile(polls, 0.95)) if len(polls) else 0.0
    p50, p95, most = (1000 * float(each) for each in (*np.quantile(latency, [0.5, 0.95]), latency.max()))
    print(
        f"{name:<18}{len(latency):>7,} decisions, {len(latency) / seconds:>5.0f} a second; p50 {p50:.1f} ms, "
        f"p95 {p95:.1f} ms, longest {most:.0f} ms; p95 of polls {slow_poll:.0f} ms; "
        f"{rankings} rankings, {lost} lost",
        flush=True,
    )
    return p95 / 1000


def main() -> None:
    """Make a run and measure."""
    arguments = parse_arguments(__doc__, people=20, seconds=30.0, pause=1.0, images=600)
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        make_run(run, train=arguments.images)
        common = (run, arguments.people, arguments.seconds)
        fixed = measure("fixed order", *common, arguments.pause, "--fixed-order")
        live = measure("learning order", *common, arguments.pause)
        rushed = measure("without pauses", *common, 0.0)
    ratios = {"beside-ranking": live / fixed, "of-50ms": live / 0.05, "without-pauses": rushed / live}
    print_ratios({f"team-p95-{name}": value for name, value in ratios.items()})


if __name__ == "__main__":
    main()
