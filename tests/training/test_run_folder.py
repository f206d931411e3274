"""One training at a time in a run folder, and what a killed one leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.audit.small_runs import arrays, train
from tests.cli.conftest import call
from tests.core.process_pair import run_pair
from tests.killing import killed_at_every_operation, start_forked, wait_forked
from tests.training.plain_config import PLAIN

import labelgap as lg
from labelgap.core.errors import InputError, RunError
from labelgap.core.lock import LOCK_FILE, lock_folder
from labelgap.core.manifest import MANIFEST_FILE, verify_folder
from labelgap.data.dataset import Dataset
from labelgap.training import run_folder
from labelgap.training.config import RunConfig, write_config
from labelgap.training.history import write_history
from labelgap.training.loop.processes import barrier, lock_together
from labelgap.training.progress import Reporter
from labelgap.training.run_files import PREDICTIONS_FILE
from labelgap.training.run_folder import read_predictions, sweep_run, write_predictions

STEP = int(os.environ.get("LABELGAP_TEST_STEP", "15"))
"""Operations between two kills; 1 takes a minute and is what docs/reliability.md reports."""
TRAIN = ("--epochs", "1", "--device", "cpu", "--trace", "off")


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    np.savez(tmp_path / "vectors.npz", **arrays(rows=30, width=4))  # type: ignore[arg-type]
    return lg.load("features", tmp_path / "vectors.npz")


def test_of_two_trainings_into_one_folder_one_is_refused(
    data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    words = ["train", f"features={data.recipe['path']}", *TRAIN, "--out", str(out), "--method"]

    @contextmanager
    def lock_and_stop(folder: Path, purpose: str) -> Iterator[None]:
        with lock_together(folder, purpose):
            os.kill(os.getpid(), signal.SIGSTOP)
            yield

    def train_alone() -> None:
        sys.modules[lg.fit.__module__].lock_together = lock_and_stop  # type: ignore[attr-defined]
        sys.exit(call(*words, "an", "--seed", "1"))

    first = start_forked(train_alone, log)
    assert os.WIFSTOPPED(os.waitpid(first, os.WUNTRACED)[1]), log.read_text()
    code = call(*words, "bce", "--seed", "2")
    os.kill(first, signal.SIGCONT)
    assert code == 2
    said = capsys.readouterr().err
    assert f"(training, process {first}, since " in said
    assert wait_forked(first) == 0, log.read_text()
    run = lg.open_run(out)
    assert (run.config.method, run.config.seed) == ("an", 1)
    assert run.model is not None
    assert set(verify_folder(out).values()) == {"intact"}
    assert not (out / LOCK_FILE).exists()


def test_a_training_that_failed_can_be_started_again(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise InputError("a.jpg is empty.")

    settings: dict[str, Any] = {"out": tmp_path / "run", "epochs": 1, "device": "cpu", "quiet": True}
    with monkeypatch.context() as patch, pytest.raises(InputError):
        patch.setattr(sys.modules[lg.fit.__module__], "linear_features", fail)
        lg.fit(data, "an", **settings)
    assert (tmp_path / "run" / "config.json").exists()
    assert lg.fit(data, "bce", **settings).finished
    with pytest.raises(RunError, match="run"):
        lg.fit(data, "bce", **settings)


def lock_in_both(folder: Path) -> None:
    with pytest.raises(RunError, match="auditing"), lock_together(folder / "run", "training"):
        pass
    barrier()
    with lock_together(folder / "free", "training"):
        assert (folder / "free" / LOCK_FILE).exists()
        barrier()


def test_of_several_processes_all_are_refused_where_the_first_one_is(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run", "auditing"):
        run_pair(lock_in_both, tmp_path)
    assert not (tmp_path / "free").exists()


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_training_killed_before_any_operation_resumes_to_the_same_bytes(data: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "ll-cp", "options": {"delta_rel": 20}, "epochs": 2, "trace": 20}
    whole = train(tmp_path / "whole", data, **settings).path
    assert {"revisions.parquet", "traces.npz", MANIFEST_FILE} <= names(whole)
    out = tmp_path / "broken" / "ll-cp"

    def work() -> None:
        train(out.parent, data, **settings)

    for number in killed_at_every_operation(work, tmp_path / "broken", step=STEP):
        finished = (out / MANIFEST_FILE).exists()
        resume = (out / "config.json").exists()
        assert train(out.parent, data, **settings, resume=resume).finished
        assert names(out) == names(whole), number
        for name in names(whole) - {"metrics.jsonl", MANIFEST_FILE}:
            if name != "last.pt":
                assert (out / name).read_bytes() == (whole / name).read_bytes(), (number, name)
        assert set(verify_folder(out).values()) == {"intact"}
        shutil.rmtree(out)
    assert finished, "the last process was not killed"


def test_an_interrupted_run_has_a_manifest(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping_after(epochs: int, error: type[BaseException]) -> None:
        left = iter(range(epochs))

        def advance(self: Reporter, *_: object, **__: object) -> None:
            if next(left, None) is None:
                raise error

        monkeypatch.setattr(Reporter, "move_to", advance)

    stopping_after(1, KeyboardInterrupt)
    run = train(tmp_path, data, "an", epochs=4, weight_decay=0.0)
    assert run.metrics["interrupted"] and (run.path / MANIFEST_FILE).exists()
    assert (run.path / "last.previous.pt").exists() and set(verify_folder(run.path).values()) == {"intact"}
    stopping_after(1, RuntimeError)
    with pytest.raises(RuntimeError):
        train(tmp_path, data, "an", epochs=4, weight_decay=0.0, resume=True)
    assert not (run.path / MANIFEST_FILE).exists() and not lg.open_run(run.path).finished
    monkeypatch.undo()
    assert not train(tmp_path, data, "an", epochs=4, weight_decay=0.0, resume=True).metrics["interrupted"]
    assert (run.path / MANIFEST_FILE).exists() and not list(run.path.glob("*previous*"))


@pytest.mark.usefixtures("undrawn")
def test_what_a_kill_in_the_last_second_leaves_is_swept_by_whoever_writes_next(data: Dataset, tmp_path: Path) -> None:
    run = train(tmp_path, data, "an")
    before = names(run.path)
    partial, previous = run.path / ".report-0123456789abcdef.partial.html", run.path / "last.previous.pt"

    def kill() -> None:
        for path in (partial, previous):
            path.write_bytes(b"left")
        (run.path / MANIFEST_FILE).unlink()

    kill()
    train(tmp_path, data, "an", resume=True)
    assert names(run.path) == before
    for command, written in (("report", {"report.html", "MODEL_CARD.md"}), ("audit", {"candidates.parquet"})):
        kill()
        os.utime(partial, (0, 0))
        assert call(command, str(run.path)) == 0
        before |= written
        assert names(run.path) == before
    assert set(verify_folder(run.path).values()) == {"intact"}
    kill()
    with lock_folder(run.path, "training"):
        sweep_run(run.path, interrupted=False)
        assert previous.exists(), "somebody else is at work"


def test_a_link_in_a_new_folder_is_not_written_through(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "an").mkdir()
    (tmp_path / "an" / "metrics.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(RunError, match=r"link metrics\.jsonl"):
        train(tmp_path, data, "an")
    assert (tmp_path / "victim").read_text() == "mine"


def test_many_scores_are_written_in_parts_and_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "_SCORES_AT_ONCE", 8)
    monkeypatch.setattr("labelgap.core.stored._CELLS_AT_ONCE", 10)
    logits = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    names, classes = [f"{number}.jpg" for number in range(7)], ["cat", "dog", "owl"]
    write_predictions(tmp_path, {"val": (names, logits), "test": (names[:3], logits[4:])}, classes)
    assert pq.ParquetFile(tmp_path / PREDICTIONS_FILE).num_row_groups == 4 + 2
    found = read_predictions(tmp_path, "val", ["5.jpg", "0.jpg"], classes)
    assert found is not None
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits[[5, 0]])), rtol=1e-6)
    assert read_predictions(tmp_path, "test", ["5.jpg"], classes) is None


def text_of(folder: Path, scores: list[float], summary: dict[str, Any] | None, **settings: Any) -> str:
    """Write a run folder by hand, and return what it shows; none of it is a tag of its own."""
    folder.mkdir()
    write_config(folder, RunConfig.checked(**PLAIN | settings))
    history = [{"epoch": epoch, "loss": 1.0, "seconds": 1.0, "score": score} for epoch, score in enumerate(scores, 1)]
    thresholds = {"values": [0.5, 0.5], "marks": ["default", "default"]}
    rest = {"interrupted": False, "seconds": 1.0, "select": "clean", "score": None, "thresholds": thresholds}
    write_history(folder, history, None if summary is None else rest | summary)
    page = ElementTree.fromstring(lg.open_run(folder)._repr_html_())
    assert page.find(".//img") is None and str(folder) in "".join(page.itertext())
    return " ".join(page.itertext())


def measured(value: float | None) -> dict[str, Any]:
    measures = ("map", "map_samples", "f1_micro", "f1_micro_at_half", "f1_macro", "f1_macro_at_half")
    counts = {"images": 9, "images_counted": 9, "classes": 2, "classes_counted": 2 if value else 0}
    return {**counts, **dict.fromkeys(measures, value), "average_precision": {"cat": value, "dog": value}}


MEASURED = {"best_epoch": 2, "epochs": 3, "val": measured(0.5), "test": measured(0.456)}
UNMEASURED = {"best_epoch": 2, "epochs": 2, "val": measured(None)}


@pytest.mark.parametrize(
    ("scores", "summary", "shown", "hidden"),
    [
        ([0.2, 0.5, 0.3], MEASURED, ["mAP 45.6 over 2 of 2", "F1 micro 45.6", "epoch 2 of 3"], ["labelgap review"]),
        ([0.2, 0.5], UNMEASURED, ["labelgap review", "--random 300"], ["20.0", "50.0"]),
        ([0.5], None, ["1 of 4"], []),
        ([0.2], {"best_epoch": 1, "epochs": 1, "interrupted": True}, ["epoch 1 of 1", "before 4"], []),
    ],
)
def test_a_notebook_shows_the_epoch_kept_and_the_numbers_that_the_labels_support(
    tmp_path: Path, scores: list[float], summary: dict[str, Any] | None, shown: list[str], hidden: list[str]
) -> None:
    text = text_of(tmp_path / "run", scores, summary, select="observed" if summary is UNMEASURED else "clean")
    assert all(each in text for each in shown) and not any(each in text for each in hidden)


def test_what_people_made_up_is_escaped(tmp_path: Path) -> None:
    evil = '<img src=x onerror="alert(1)">&'
    data = {**PLAIN["data"], "path": evil}
    text = text_of(tmp_path / "a<b>&c", [0.1, 0.2], None, method=evil, why=evil, data=data, backbone=evil)
    assert text.count(evil) == 4
