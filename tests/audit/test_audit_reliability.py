"""An audit that is killed, run twice at once, or given a damaged fold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.audit.small_runs import train, write
from tests.killing import killed_at_every_operation
from tests.racing import race

import labelgap as lg
from labelgap.audit import scorers
from labelgap.audit.candidates import FILE
from labelgap.audit.find_missing import find_missing
from labelgap.audit.scorers import HeadScorer
from labelgap.core.lock import lock_folder
from labelgap.training import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return train(tmp_path, lg.load("features", write(tmp_path)), epochs=1)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_killed_at_every_operation_it_ends_with_the_same_bytes(run: Run) -> None:
    path = find_missing(run, quiet=True, folds=2).path
    whole, expected, kills = path.read_bytes(), files(run.path), 0
    for kills in killed_at_every_operation(lambda: find_missing(run, quiet=True, folds=2), run.path, step=2):
        find_missing(run, quiet=True, folds=2)
        assert path.read_bytes() == whole and files(run.path) == expected, f"after a kill at operation {kills}"
    assert kills > 5


def audit_when_refused(wait: Callable[[], None], run: str) -> None:
    real = HeadScorer.logits

    def logits(self: HeadScorer, split: str, rows: slice) -> NDArray[np.float32]:
        wait()
        return real(self, split, rows)

    HeadScorer.logits = logits  # type: ignore[method-assign]
    find_missing(run, quiet=True, folds=2)


def test_of_two_audits_into_one_folder_one_is_refused_and_names_the_other(run: Run) -> None:
    refused, done = race(audit_when_refused, str(run.path))
    assert done == "done" and "(auditing, process" in refused
    raced = (run.path / FILE).read_bytes()
    assert find_missing(run, quiet=True, folds=2).path.read_bytes() == raced


def test_a_run_in_training_is_not_audited_and_files_of_other_names_do_not_wait(run: Run, tmp_path: Path) -> None:
    with lock_folder(run.path, "training"):
        with pytest.raises(lg.RunError, match="in use"):
            find_missing(run, quiet=True, folds=2)
        assert len(find_missing(run, quiet=True, folds=2, out=tmp_path / "a.parquet"))
    with lock_folder(tmp_path, "auditing", name=".a.parquet.lock"):
        assert len(find_missing(run, quiet=True, folds=2, out=tmp_path / "b.parquet"))


def test_a_damaged_fold_of_a_killed_audit_is_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    data = lg.load("digits", train=24, val=8, test=4)
    settings: dict[str, Any] = {"backbone": "small-cnn", "protocol": "linear"}
    settings["optimizer"] = "newton"  # whose batch is all images, in a fold fewer
    run = lg.fit(data, "an", out=tmp_path / "run", epochs=1, device="cpu", quiet=True, trace="off", **settings)
    settings = {"folds": 2, "splits": ("train", "val"), "quiet": True}
    whole = find_missing(run, **settings).table
    real, calls = lg.fit, 0

    def killed(*arguments: object, **named: object) -> Run:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(scorers, "fit", killed)
    for name in ("best.safetensors", "metrics.jsonl"):
        calls = 0
        with pytest.raises(KeyboardInterrupt):
            find_missing(run, **settings)
        (damaged,) = (run.path / scorers.FOLDER).glob(f"*/fold-1/{name}")
        damaged.write_bytes(damaged.read_bytes()[:-20])
        assert find_missing(run, **settings).table == whole and not (run.path / scorers.FOLDER).exists(), name
