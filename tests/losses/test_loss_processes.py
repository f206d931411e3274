"""Two real processes, each with a shard of the batch, learn what one process learns from the whole of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.losses.reference import references

PROJECT = Path(__file__).resolve().parents[2]


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    out = tmp_path / "apart.json"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).with_name("two_processes.py")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (PROJECT / "src", PROJECT))),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*launch, str(script), str(out)], env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text())
    assert {story.split()[0] for story in found} == set(references())
    apart = {story: distance for story, distance in found.items() if not distance < 1e-9}
    assert not apart, apart
