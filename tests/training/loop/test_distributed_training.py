"""A run with two real processes is the run with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.training.loop.two_processes_train import METHODS, main

import labelgap as lg


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same runs with one process and with two."""
    folder = tmp_path_factory.mktemp("parallel")
    main(folder / "one")
    script = Path(__file__).with_name("two_processes_train.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, str(script), str(folder / "two")], check=True, capture_output=True, timeout=300)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_end_with_the_weights_and_revisions_of_one(both: Path, method: str) -> None:
    one, two = lg.open_run(both / "one" / method), lg.open_run(both / "two" / method)
    mine, theirs = (safetensors.torch.load_file(run.path / "best.safetensors") for run in (one, two))
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5)
    assert np.allclose(one.trace["loss"], two.trace["loss"], atol=1e-4)
    assert [record["loss"] for record in one.history] == pytest.approx([r["loss"] for r in two.history], abs=1e-6)
    changes, others = ([(r.image, r.class_name, r.value, r.epoch) for r in run.revisions] for run in (one, two))
    assert changes == others
    assert bool(changes) == (method in ("ll-cp", "em-apl"))


def test_soft_targets_agree_to_rounding(both: Path) -> None:
    one, two = ([r.target for r in lg.open_run(both / name / "em-apl").revisions] for name in ("one", "two"))
    assert one == pytest.approx(two, abs=1e-5)


def test_a_loss_that_is_not_a_number_in_one_process_restarts_both(both: Path) -> None:
    one, two = (lg.open_run(both / name / "breaks") for name in ("one", "two"))
    assert [record.get("restarted", False) for record in two.history] == [False, True, False]
    assert two.history[2]["lr_factor"] == 0.5
    assert [record["loss"] for record in one.history] == pytest.approx([r["loss"] for r in two.history], abs=1e-5)


def test_a_linear_phase_is_that_of_one_process(both: Path) -> None:
    folders = [both / name / "linear-init" for name in ("one", "two")]
    heads = [safetensors.torch.load_file(folder / "linear" / "best.safetensors") for folder in folders]
    torch.testing.assert_close(heads[0]["head.weight"], heads[1]["head.weight"], rtol=1e-5, atol=1e-6)
    one, two = map(lg.open_run, folders)
    assert one.history[0]["epoch"] == 0 and one.history[0]["score"] == pytest.approx(two.history[0]["score"])
    assert [record["loss"] for record in one.history] == pytest.approx([r["loss"] for r in two.history], abs=1e-5)
