"""Methods that remember something per image, killed for real after they have decided something, and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import labelgap as lg
from labelgap.training.checkpoints.checkpoint import LAST

METHODS: dict[str, dict[str, Any]] = {
    "ll-cp": {"delta_rel": 5},
    "role": {"expected_positives": 2.5},
    "em-apl": {"warmup": 1},
}
SCRIPT = """
import json, sys, labelgap as lg
method, options, out, resume = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], len(sys.argv) > 4
lg.fit(lg.load("digits", train=160, val=40, test=20), method, options, out=out, epochs=6, batch_size=16, device="cpu",
       resume=resume, quiet=True)
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_ends_with_the_same_weights_memory_and_revisions(method: str, tmp_path: Path) -> None:
    options = METHODS[method]
    data = lg.load("digits", train=160, val=40, test=20)
    settings: dict[str, Any] = {"epochs": 6, "batch_size": 16, "device": "cpu", "quiet": True}
    unbroken = lg.fit(data, method, options, out=tmp_path / "unbroken", **settings)

    out = tmp_path / "killed"
    command = [sys.executable, "-c", SCRIPT, method, json.dumps(options), str(out)]
    process = subprocess.Popen(command)
    _wait_for_epochs(out, 3)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(lg.open_run(out).history) < 6, "it was too quick to be killed in the middle"

    resumed = lg.fit(data, method, options, out=out, resume=True, **settings)
    assert (out / "best.safetensors").read_bytes() == (unbroken.path / "best.safetensors").read_bytes()
    assert resumed.revisions == unbroken.revisions
    assert bool(len(resumed.revisions)) == (method != "role")
    mine, theirs = (torch.load(run.path / LAST, weights_only=True)["loss_fn"] for run in (resumed, unbroken))
    assert mine.keys() == theirs.keys() and mine
    for name, value in mine.items():
        assert torch.equal(value.nan_to_num(-1.0), theirs[name].nan_to_num(-1.0)), name
    if method == "ll-cp":
        assert resumed.metrics["revisions"] == unbroken.metrics["revisions"]


def _wait_for_epochs(out: Path, count: int) -> None:
    path = out / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline, "the training never came so far"
        time.sleep(0.005)
