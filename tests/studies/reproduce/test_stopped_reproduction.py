"""A reproduction that is stopped or damaged: what its folder says then, and what the same command mends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import call
from tests.data.readers.official.test_load_voc import devkit
from tests.killing import start_forked, wait_forked
from tests.waiting import wait_until

from labelgap.core.tensors import read_tensors
from labelgap.studies.compare import heads as compare_heads
from labelgap.studies.reproduce import Reproduction, networks, reproduce
from labelgap.training.signals import defer_interrupt
from labelgap.verification import verify_run

QUICK: dict[str, Any] = {"seeds": 1, "epochs": 1, "grid": "preset", "device": "cpu"}
OPTIONS = ("--seeds", "1", "--epochs", "1", "--grid", "preset", "--device", "cpu")
FOLDER = Path("runs/reproduce")


def interrupt(*given: Any, **settings: Any) -> None:
    raise KeyboardInterrupt


def test_a_stop_says_what_is_stored_and_leaves_a_folder_that_verifies(
    vectors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for cell, said in (("an", "stopped before the first head was finished"), ("role", "what was finished is stored")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(compare_heads, "train_heads", interrupt)
            reproduce("cole-table2", [vectors], cells=[cell], **QUICK)
        stopped = verify_run(FOLDER)
        assert stopped.intact and stopped.finished, stopped.problems
        assert said in capsys.readouterr().err
        if cell == "an":
            reproduce("cole-table2", [vectors], cells=[cell], quiet=True, **QUICK)
    reproduce("cole-table2", [vectors], cells=["role"], quiet=True, **QUICK)
    assert verify_run(FOLDER).intact and len(list(FOLDER.glob("linear/*/heads/*"))) == 2


def wait_for_signals(run: Any, **settings: Any) -> None:
    """Complete a step, as a training does, that lasts until a signal has come; write how many came."""
    process = os.getpid()
    with defer_interrupt() as received:
        Path(f"{process}.started").touch()
        while not received:
            time.sleep(0.01)
        time.sleep(0.3)
        Path(f"{process}.signals").write_text(str(len(received)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("interrupt", [os.kill, os.killpg])
def test_networks_in_training_are_stopped_once_whether_all_processes_or_the_first_get_a_ctrl_c(
    tmp_path: Path, forked: None, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[int, int], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    splits = {"train": [f"2008_{number:06d}" for number in range(60)], "val": ["2009_000001", "2009_000002"]}
    devkit(tmp_path, "2012", splits)
    monkeypatch.setattr(networks, "_train", wait_for_signals)
    network: dict[str, Any] = {"backbone": "tiny-cnn", "size": 16, "jobs": 2, "cells": ["an/end*", "wan/end*"]}
    process = start_forked(partial(reproduce, "cole-table1", ["voc2012=VOCdevkit"], **network, **QUICK), Path("screen"))
    wait_until(lambda: len(list(tmp_path.glob("*.started"))) == 2)
    interrupt(process, signal.SIGINT)
    assert wait_forked(process) == 1
    assert [path.read_text() for path in tmp_path.glob("*.signals")] == ["1", "1"]
    said = Path("screen").read_text(encoding="utf-8")
    assert "the same command resumes" in said and said.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("lost", [False, True])
def test_a_damaged_or_lost_head_is_trained_again(vectors: str, lost: bool, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("reproduce", "cole-table2", "--data", vectors, "--cells", "an;role", *OPTIONS)
    assert call(*asked) == 0
    heads = sorted(FOLDER.glob("linear/voc2012/heads/*"))
    weights = {name: values.clone() for name, values in read_tensors(heads[0])[0].items()}
    before = Reproduction.open(FOLDER).by_name
    heads[0].write_bytes(heads[0].read_bytes()[:100])
    if lost:
        heads[0].unlink()
    capsys.readouterr()
    assert call(*asked) == 0
    assert f"damaged   {heads[0]}: trained again" in capsys.readouterr().out
    again, after = read_tensors(heads[0])[0], Reproduction.open(FOLDER).by_name
    for name, values in weights.items():
        torch.testing.assert_close(again[name], values)
    assert verify_run(FOLDER).intact and before.keys() == after.keys()
    assert all(after[name].values == pytest.approx(cell.values, abs=0.01) for name, cell in before.items())
    assert call(*asked) == 0 and "done      2 cells" in capsys.readouterr().out
