from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import sqlite3
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.cli.conftest import undraw
from tests.killing import run_forked, start_forked, wait_forked
from tests.sample_photos import write_small_photos
from tests.studies.compare.small_features import features
from tests.waiting import reserved_port, wait_until

import labelgap as lg
from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Dataset
from labelgap.losses import loss, method_options, methods
from labelgap.reporting import write_report
from labelgap.reporting.pages.sweep import describe_auto, describe_progress, sweep_rows
from labelgap.studies import jobs
from labelgap.studies.sweep import Sweep, runner
from labelgap.studies.sweep.results import SweepTrial
from labelgap.studies.sweep.search_space import (
    Parameter,
    head_space,
    make_request,
    paper_space,
    parse_parameter,
    parse_search,
    plan_sweep,
    search_space,
    with_values,
)
from labelgap.studies.sweep.trial_queue import DEATHS, WORKER, TrialQueue, open_storage, quiet_optuna
from labelgap.training.auto import STRENGTHS
from labelgap.training.folds import train_configs
from labelgap.training.progress import Reporter
from labelgap.verification import accept_changes

optuna = pytest.importorskip("optuna", reason="optuna is not installed (the extra sweep)")
text = pytest.importorskip("sqlalchemy").text
SEARCH: dict[str, Any] = {"lr": "1e-4..1e-1:log", "delta_rel": [1, 5, 20]}
HEAD: dict[str, Any] = {"weight_decay": 0.0, "standardize": False}
"""The settings of linear heads that are searched by default."""
QUICK: dict[str, Any] = {"epochs": 2, "device": "cpu", "quiet": True}
CPU = torch.device("cpu")
EXECUTION = runner._Execution("cpu", 0, Reporter(quiet=True))


@pytest.fixture(scope="module")
def data() -> Dataset:
    return features()


@pytest.fixture(scope="module")
def finished(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    out = tmp_path_factory.mktemp("sweep") / "a"
    return lg.sweep(data, "ll-r", search=SEARCH, trials=12, out=out, seed=3, **QUICK)


@pytest.fixture
def instant_auto(monkeypatch: pytest.MonkeyPatch) -> SweepTrial:
    """The line to beat is not trained."""
    auto = SweepTrial(0, {"method": "an"}, "complete", 0.01, 1, 1, 0.1)
    monkeypatch.setattr(runner, "train_auto", Mock(return_value=auto))
    return auto


def keys(sweep: Sweep) -> list[str]:
    return sorted(json.dumps(trial.values, sort_keys=True) for trial in sweep.trials)


def test_the_best_trial_is_a_run_and_all_are_as_by_fit(finished: Sweep, data: Dataset, tmp_path: Path) -> None:
    best, run = finished.best, finished.best_run()
    assert finished.trials[0].values["lr"] == 1e-3  # what ``fit`` uses, as far as the space has it
    assert best is not None and run is not None and finished.finished and len(finished.trials) == 12
    assert best.score == max(trial.score or 0 for trial in finished.trials) == finished.retrained_score
    assert run.metrics["test"]["map"] is not None and sum(finished.importance.values()) == pytest.approx(1)
    worst = finished.ranked[-1]
    settings: dict[str, Any] = {**worst.values, "options": {"delta_rel": worst.values["delta_rel"]}, "seed": 3}
    del settings["delta_rel"]
    assert settings["weight_decay"] > 0 and isinstance(settings["standardize"], bool)
    alone = lg.fit(data, "ll-r", out=tmp_path / "alone", **settings, **QUICK)
    assert (alone.metrics["score"], alone.metrics["best_epoch"]) == (worst.score, worst.epoch)
    reopened = Sweep.open(finished.path)
    assert reopened == replace(finished, path=finished.path)
    assert lg.verify_run(finished.path).intact
    assert [trial.number for trial in finished.trials] == list(range(1, 13))
    assert (finished.path / "trials.csv").read_text().splitlines()[1].startswith("1,complete,")


def test_auto_is_the_line_to_beat_as_fit_alone_trains_it(finished: Sweep, data: Dataset, tmp_path: Path) -> None:
    auto, run = finished.auto, finished.auto_run()
    alone = lg.fit(data, out=tmp_path / "alone", seed=3, device="cpu", quiet=True)
    assert auto is not None and run is not None and auto.number == 0 and auto.state == "complete"
    assert (auto.score, auto.epoch) == (alone.metrics["score"], alone.metrics["best_epoch"])
    assert auto.values["method"] == alone.config.method
    assert run.metrics["test"] == alone.metrics["test"] and "epochs" not in auto.values
    assert f"{100 * (auto.score or 0):.2f}" in describe_auto(finished)
    assert f"auto: {alone.config.method}" in {row.label for row in sweep_rows(finished)}
    elsewhere = replace(finished, auto=replace(auto, state="running"), retrained_score=None)
    assert elsewhere.running == 1 and "12 of 12 trials" in describe_progress(elsewhere)
    assert sweep_rows(replace(finished, auto=replace(auto, score=1.0)))[0].label.startswith("auto")
    failed = replace(auto, state="failed", score=None, reason="of a reason")
    assert "of a reason" in describe_auto(replace(finished, auto=failed))


def test_the_same_command_again_trains_nothing_and_more_trials_only_those(
    finished: Sweep, data: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, train = list[int](), runner.train_head_trials

    def count(claimed: Mapping[int, Any], *rest: Any) -> Iterator[Any]:
        trained.extend(claimed)
        return train(claimed, *rest)

    monkeypatch.setattr(runner, "train_head_trials", count)
    settings = {"search": SEARCH, "out": finished.path, "seed": 3, **QUICK}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runner, "load_inputs", Mock(side_effect=KeyboardInterrupt))
        lg.sweep(data, "ll-r", trials=15, **{**settings, "quiet": False})
    assert "what was finished is stored" in capsys.readouterr().err
    monkeypatch.setattr(runner, "train_auto", Mock(side_effect=AssertionError("it is stored")))
    assert Sweep.open(finished.path) == finished, "a stop before the next trial ends loses nothing of what was there"
    assert lg.sweep(data, "ll-r", trials=12, **{**settings, "quiet": False}).trials == finished.trials and not trained
    assert finished.best is not None
    said = capsys.readouterr().err
    assert f"trial {finished.best.number} " in said and "training" not in said
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runner, "_train_best", Mock(side_effect=KeyboardInterrupt))
        lg.sweep(data, "ll-r", trials=15, **settings)
    left = Sweep.open(finished.path)
    assert len(left.trials) == 15 and left.best_run() is None, "best/ holds the best one of the first 12"
    assert "15 complete, " in describe_progress(left)
    assert "test mAP" not in write_report(left).read_text(encoding="utf-8")
    more = lg.sweep(data, "ll-r", trials=15, **settings)
    assert more.trials[:12] == finished.trials and more.trials == left.trials and len(trained) == 3
    assert more.best_run() is not None and describe_progress(more) == "15 of 15 trials: 15 complete"


def test_a_late_process_keeps_the_result(finished: Sweep, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Sweep.open(finished.path)
    stale = replace(stored, trials=(*stored.trials[:-1], replace(stored.trials[-1], state="running")))
    monkeypatch.setattr(runner, "_run_trials", Mock(return_value=replace(stale, retrained_score=None)))
    settings = {"search": SEARCH, "out": finished.path, "seed": 3, **QUICK}
    assert lg.sweep(data, "ll-r", trials=12, **settings) == stored == Sweep.open(finished.path)


def test_test_labels_change_nothing_but_what_is_measured_at_the_end(finished: Sweep, data: Dataset) -> None:
    assert data.test is not None
    request = make_request("ll-r", {"epochs": 2, "seed": 3})
    for given in (data, replace(data, test=None)):
        plan = plan_sweep(given, request, SEARCH, CPU, print)
        assert plan.data.test is None and plan.study_name == finished.study
    relabeled = replace(data, train=replace(data.train, labels=data.train.truth))  # type: ignore[arg-type]
    assert plan_sweep(relabeled, request, SEARCH, CPU, print).study_name != finished.study


def test_no_point_of_a_small_space_is_tried_twice_and_a_lost_one_is_repeated(tmp_path: Path) -> None:
    with quiet_optuna(), open_storage(None, tmp_path) as storage:
        study = optuna.create_study(storage=storage, direction="maximize")
        queue = TrialQueue(study, paper_space("an"), 40)
        queue.suggest({"lr": 1e-3, "batch_size": 16})
        asked = queue.ask(40)
        points = {json.dumps(trial.params, sort_keys=True) for trial in asked}
        assert asked[0].params == {"lr": 1e-3, "batch_size": 16} and len(points) == len(asked) == queue.total == 8
        for trial in asked[1:]:
            queue.tell(trial, SweepTrial(trial.number, dict(trial.params), "complete", 0.5))
        for repetition in range(3):
            assert [trial.params for trial in asked[:1]] == [{"lr": 1e-3, "batch_size": 16}]
            asked[0].set_user_attr(WORKER, "elsewhere 1 0.00")  # it was claimed on another machine, and
            queue._release(asked[0])
            assert not queue.ask(1) and len(queue.results()) == 8
            with storage.engine.begin() as connection:  # that machine is gone
                connection.execute(text("UPDATE trial_heartbeats SET heartbeat = '2000-01-01 00:00:00'"))
            asked = queue.ask(40)
            assert len(asked) == (repetition < 2)
        assert [trial.state for trial in queue.results()].count("failed") == 1


def test_a_stop_while_a_result_is_stored_fails_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet_optuna(), open_storage(None, tmp_path) as storage:
        study = optuna.create_study(storage=storage, direction="maximize")
        queue = TrialQueue(study, paper_space("an"), 2)
        first, second = queue.ask(2)
        monkeypatch.setattr(study, "tell", Mock(side_effect=[KeyboardInterrupt, *[mock.DEFAULT] * 9], wraps=study.tell))
        with pytest.raises(KeyboardInterrupt), queue:
            queue.tell(first, SweepTrial(first.number, dict(first.params), "complete", 0.5))
        assert [(trial.state, trial.score) for trial in queue.results()] == [("complete", 0.5)]
        with queue:
            (again,) = queue.ask(2)
            assert again.number == second.number and again.params == second.params
            assert queue.number(again) == 2


@pytest.mark.usefixtures("instant_auto")
def test_after_a_kill_lost_trials_are_run(data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = train_configs

    def killed(*given: Any, **named: Any) -> Any:
        if batches:
            os.kill(os.getpid(), signal.SIGKILL)
        batches.append(1)
        return original(*given, **named)

    def work() -> None:
        setattr(runner, "train_configs", killed)  # noqa: B010 (in the copy of this process alone)
        lg.sweep(data, "ll-r", trials=12, out=tmp_path / "s", **HEAD, **QUICK)

    batches: list[int] = []
    assert run_forked(work) == -signal.SIGKILL
    left = Sweep.open(tmp_path / "s")
    assert [trial.state for trial in left.trials] == ["complete"] * 8 and left.best is not None and not left.finished
    assert describe_progress(left).startswith("8 of 12 trials: 8 complete, ")
    assert len((left.path / "trials.csv").read_text().splitlines()) == 9
    assert f"Trial {left.best.number} " in write_report(left).read_text(encoding="utf-8")
    found = lg.sweep(data, "ll-r", trials=12, out=tmp_path / "s", **HEAD, **{**QUICK, "quiet": False})
    assert "12 trials, 8 " in capsys.readouterr().err
    assert found.finished and [trial.state for trial in found.trials] == ["complete"] * 12
    assert len(set(keys(found))) == 12
    assert [trial.number for trial in found.trials] == list(range(1, 13)), "a repeated trial keeps its number"
    with quiet_optuna(), open_storage(None, tmp_path / "s") as storage:
        stored = optuna.load_study(study_name=found.study, storage=storage).trials
    deaths = [trial.user_attrs.get(DEATHS, 0) for trial in stored if not trial.user_attrs.get("dropped")]
    assert sorted(deaths) == [0] * 8 + [1] * 4


def test_a_failure_of_auto_is_told(data: Dataset, tmp_path: Path) -> None:
    with mock.patch.object(jobs, "fit", Mock(side_effect=RunError("the disk is full"))):
        plan = plan_sweep(data, make_request("an", {}), {}, CPU, print)
        failed = runner.train_auto(data, plan, tmp_path, EXECUTION)
    assert (failed.state, failed.score, failed.reason) == ("failed", None, "the disk is full")


@pytest.mark.usefixtures("instant_auto")
def test_a_stop_says_what_is_stored_and_however_many_stops_do_not_cost_a_trial(data: Dataset, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"search": {"lr": [1e-3, 1e-2]}, "batch_size": 16, **HEAD, **QUICK, "quiet": False}
    original = train_configs

    def stop(log: Path, ended: int) -> str:
        """Send a Ctrl-C to a sweep while a head trains after so many that have ended; return what it says."""

        def work() -> None:
            def wait(*given: Any, **named: Any) -> Any:
                if len(calls) == ended:
                    (tmp_path / "waiting").touch()
                    threading.Event().wait()
                calls.append(1)
                return original(*given, **named)

            calls: list[int] = []
            setattr(runner, "HEADS", 1)  # noqa: B010 (in the copy of this process alone)
            setattr(runner, "train_configs", wait)  # noqa: B010
            with suppress(KeyboardInterrupt):
                lg.sweep(data, "an", trials=2, out=tmp_path / "s", **asked)

        process = start_forked(work, log)
        wait_until((tmp_path / "waiting").exists)
        os.kill(process, signal.SIGINT)
        assert wait_forked(process) == 0, log.read_text()
        (tmp_path / "waiting").unlink()
        return log.read_text()

    for number in range(4):  # as often as a process may die
        assert "before the first trial" in stop(tmp_path / f"log-{number}", 0)
    assert "is stored" in stop(tmp_path / "log", 1)
    found = lg.sweep(data, "an", trials=2, out=tmp_path / "s", **{**asked, "quiet": True})
    assert found.finished and sorted(trial.values["lr"] for trial in found.trials) == [1e-3, 1e-2]
    assert all(trial.state == "complete" for trial in found.trials)


def test_two_processes_share_the_trials_of_one_storage(data: Dataset, tmp_path: Path, instant_auto: SweepTrial) -> None:
    total, original = 12, train_configs
    with shared_database(tmp_path) as url:

        def work(name: str, other: str) -> None:
            def together(*given: Any, **named: Any) -> Any:
                (tmp_path / name).touch()
                for _ in range(10_000):  # neither trains before the other has trials
                    if (tmp_path / other).exists():
                        break
                    time.sleep(0.01)
                return original(*given, **named)

            def count(*given: Any) -> SweepTrial:
                (tmp_path / f"auto-{name}").touch()
                return instant_auto

            setattr(runner, "train_configs", together)  # noqa: B010
            setattr(runner, "train_auto", count)  # noqa: B010
            lg.sweep(data, "ll-r", trials=total, storage=url, out=tmp_path / f"out-{name}", **QUICK)

        processes = [start_forked(lambda: work("a", "b")), start_forked(lambda: work("b", "a"))]
        assert [wait_forked(process) for process in processes] == [0, 0]
        found = [Sweep.open(tmp_path / f"out-{name}") for name in "ab"]
        last = max(found, key=lambda sweep: sum(trial.state != "running" for trial in sweep.trials))
        assert last.finished and len(set(keys(last))) == len(last.trials) == total
        assert last.retrained_score == last.best.score  # type: ignore[union-attr]
        assert last.auto == instant_auto and len(list(tmp_path.glob("auto-*"))) == 1
        with quiet_optuna(), open_storage(url, tmp_path) as storage:
            stored = optuna.load_study(study_name=last.study, storage=storage).trials
        assert len({trial.user_attrs[WORKER] for trial in stored if WORKER in trial.user_attrs}) == 2
        assert PASSWORD not in (last.path / "sweep.json").read_text(encoding="utf-8")
    if url.startswith("postgresql"):  # the server has ended
        shown = r"postgresql\+psycopg://ann:\*\*\*@127.0.0.1:\d+/postgres cannot be used"
        with pytest.raises(RunError, match=shown) as error:
            lg.sweep(data, "ll-r", trials=total, storage=url, out=tmp_path / "out-a", **QUICK)
        assert "s3cret" not in str(error.value)


class Scripted:
    """A trial of optuna that is not pruned."""

    def __init__(self, number: int, params: dict[str, Any]) -> None:
        self.number, self.params, self.scores = number, params, dict[int, float]()

    def report(self, value: float, step: int) -> None:
        self.scores[step] = value

    def should_prune(self) -> bool:
        return False


def test_networks_report_the_score_of_every_epoch_and_resume(tmp_path: Path) -> None:
    data = lg.load("digits", train=40, val=30, test=20)
    request = make_request("ll-r", {"epochs": 4, "batch_size": 20, "backbone": "tiny-cnn"})
    plan = plan_sweep(data, request, {"lr": [1e-3, 3e-3]}, CPU, print)
    assert plan.config.protocol == "end-to-end" and plan.config.backbone_lr == plan.config.lr
    values = {"lr": 3e-3, "delta_rel": 0.2}
    whole = Scripted(1, values)
    unbroken = runner.train_network_trial(2, whole, plan, tmp_path / "b", EXECUTION)  # type: ignore[arg-type]
    assert unbroken.state == "complete" and list(whole.scores) == [1, 2, 3, 4]
    assert unbroken.score == max(whole.scores.values())

    def work() -> None:
        def kill(history: Any) -> None:
            if len(history) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        trial = with_values(request, values)
        jobs.train_run(plan.data, trial, tmp_path / "c", device="cpu", workers=0, quiet=True, on_epoch=kill)

    assert run_forked(work) == -signal.SIGKILL
    again = Scripted(2, values)
    resumed = runner.train_network_trial(3, again, plan, tmp_path / "c", EXECUTION)  # type: ignore[arg-type]
    assert again.scores == whole.scores and resumed.score == unbroken.score and resumed.epochs == 4


@pytest.mark.usefixtures("instant_auto")
def test_networks_behind_the_median_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undraw(monkeypatch)
    data = lg.load("digits", train=40, val=30, test=20)
    settings: dict[str, Any] = {"batch_size": 8, "backbone": "tiny-cnn", **QUICK}
    search = {"lr": [3e-3, 1e-2, 2e-2, 3e-2, 1e-7, 2e-7, 3e-7]}
    found = lg.sweep(data, "an", search=search, trials=8, out=tmp_path / "s", **settings)
    assert found.trials[0].values == {"lr": 3e-3}, "what `train` uses is tried first"
    assert sorted(trial.values["lr"] for trial in found.trials) == sorted(search["lr"]), "each point once"
    assert found.best is not None and found.retrained_score == found.best.score
    assert not (tmp_path / "s" / "trials").exists()
    assert found.pruned and all(trial.epochs < 2 and trial.number > 5 for trial in found.pruned)
    _, after = lg.write_report(found).read_text(encoding="utf-8").split("Stopped early")
    assert all(f"trial {trial.number}</th>" in after for trial in found.pruned), "they are listed apart"


def test_a_folder_of_something_else_is_refused(finished: Sweep, data: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"trials": 12, "out": finished.path, "seed": 3, **QUICK}
    other = replace(data, val=replace(data.val, labels=data.val.labels.drop(0.1, seed=0)))  # type: ignore[type-var,union-attr]
    for given, method, changed, differs in (
        (data, "ll-ct", {"search": SEARCH}, "method"),
        (data, "ll-r", {}, "search space"),
        (data, "ll-r", {"search": SEARCH, "seed": 4}, "settings"),
        (other, "ll-r", {"search": SEARCH, "select": "known"}, "data"),
    ):
        with pytest.raises(RunError, match=f"other {differs}"):
            lg.sweep(given, method, **{**settings, **changed})
    old = tmp_path / "old"
    old.mkdir()
    stored = json.loads((finished.path / "sweep.json").read_text(encoding="utf-8"))
    trial = {**stored["trials"][0], "values": {"lr": "high", "delta_rel": 1}}
    for change, message in (({"format": 99}, "format"), ({"trials": [trial]}, "a value of 'lr' that is not searched")):
        (old / "sweep.json").write_text(json.dumps({**stored, **change}), encoding="utf-8")
        with pytest.raises(RunError, match=rf"sweep\.json.*{message}"):
            lg.sweep(data, "ll-r", search=SEARCH, **{**settings, "out": old})


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TRIGGER t AFTER INSERT ON trials BEGIN SELECT count(*) FROM "
        "(WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c); END",
        "CREATE VIEW v AS SELECT zeroblob(2000000000)",
        "CREATE VIRTUAL TABLE words USING fts5(text)",
        "ALTER TABLE trials ADD COLUMN g TEXT AS (hex(zeroblob(number * 1000000))) VIRTUAL",
        "UPDATE version_info SET library_version = zeroblob(100)",
    ],
)
def test_a_storage_that_optuna_did_not_make_so_is_neither_used_nor_intact(
    finished: Sweep, data: Dataset, tmp_path: Path, change: str
) -> None:
    folder = shutil.copytree(finished.path, tmp_path / "sweep")
    assert "sweep.sqlite" in json.loads((folder / "manifest.json").read_text())["files"]
    with closing(sqlite3.connect(folder / "sweep.sqlite", isolation_level=None)) as connection:
        connection.execute(change)
    assert [file.name for file in lg.verify_run(folder).problems] == ["sweep.sqlite"]
    accept_changes(folder)
    foreign = change.startswith(("CREATE", "ALTER"))
    assert [file.name for file in lg.verify_run(folder).problems] == (["sweep.sqlite"] if foreign else [])
    if foreign:
        with pytest.raises(RunError, match=r"sweep\.sqlite"):
            lg.sweep(data, "ll-r", search=SEARCH, trials=13, out=folder, seed=3, **QUICK)


def test_a_journal_that_names_a_file_deletes_none(finished: Sweep, data: Dataset, tmp_path: Path) -> None:
    folder, precious = shutil.copytree(finished.path, tmp_path / "sweep"), tmp_path / "precious.txt"
    precious.write_text("dear")
    name = str(precious).encode()
    magic, page = bytes.fromhex("d9d505f920a163d7"), (1 << 30) // 4096 + 1
    header = magic + struct.pack(">5I", 0, 0, (folder / "sweep.sqlite").stat().st_size // 4096, 512, 4096)
    end = struct.pack(">I", page) + name + struct.pack(">2I", len(name), sum(name)) + magic
    (folder / "sweep.sqlite-journal").write_bytes(header.ljust(512, b"\0") + end)
    with pytest.raises(RunError, match=r"sweep\.sqlite"):
        lg.sweep(data, "ll-r", search=SEARCH, trials=13, out=folder, seed=3, **QUICK)
    assert precious.read_text() == "dear" and not lg.verify_run(folder).intact
    for large in ("sweep.sqlite-journal", "sweep.sqlite"):
        os.truncate(folder / large, 60_000_000_000)
        with pytest.raises(RunError, match=rf"{large} is damaged \("):
            lg.sweep(data, "ll-r", search=SEARCH, trials=13, out=folder, seed=3, **QUICK)
        (folder / large).unlink()


def test_without_val_trials_are_scored_out_of_fold_as_fit_scores_them(tmp_path: Path) -> None:
    data = features(splits=("test",))
    settings: dict[str, Any] = {"options": {"alpha": 0.1}, "seed": 3, **QUICK}
    found = lg.sweep(data, "em", trials=3, out=tmp_path / "s", **settings)
    assert found.folds == 5 and found.rule == "observed" and found.finished
    assert [each.name for each in found.space] == ["weight_decay", "standardize"], "newton has no rate"
    assert found.best is not None and found.best.score == found.retrained_score
    auto = lg.fit(data, out=tmp_path / "auto", seed=3, device="cpu", quiet=True)
    assert found.auto is not None and found.auto.values["method"] == auto.config.method
    assert found.auto.score == max(line["score"] for line in auto.metrics["cross_validation"]["compared"])
    for trial in found.trials[:2]:
        values: dict[str, Any] = dict(trial.values)
        alone = lg.fit(data, "em", out=tmp_path / str(trial.number), **values, **settings)
        (line,) = alone.metrics["cross_validation"]["compared"]
        assert line["score"] == trial.score and alone.config.optimizer == "newton"


@pytest.mark.usefixtures("instant_auto")
def test_without_val_a_network_holds_images_out_and_heads_of_several_sizes_are_cross_validated(tmp_path: Path) -> None:
    write_small_photos(tmp_path / "photos", 40)
    rows = [f"{number:02d}.jpg,{number % 2},{number % 3 // 2}" for number in range(40)]
    (tmp_path / "tags.csv").write_text("\n".join(["image,odd,third", *rows]))
    data = lg.load("csv", tmp_path / "tags.csv", images=tmp_path / "photos")
    settings: dict[str, Any] = {"trials": 2, "lr": 1e-2, "batch_size": 8, **QUICK}
    network: dict[str, Any] = {"protocol": "end-to-end", "backbone": "tiny-cnn", "out": tmp_path / "a"}
    found = lg.sweep(data, "an", search={"clip": [1, 2]}, **network, **settings)
    assert found.images["val"] > 0 and sum(found.images.values()) == 40 and not found.folds
    assert found.best is not None and found.best.score == found.retrained_score
    linear: dict[str, Any] = {"protocol": "linear", "backbone": "small-cnn", "out": tmp_path / "b", **HEAD}
    heads = lg.sweep(data, "an", search={"size": [32, 48]}, **linear, **settings)
    assert heads.images == {"train": 40} and heads.folds == 5
    assert heads.best is not None and heads.best.score == heads.retrained_score is not None


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    for folds in (0, None):
        data = features(splits=())
        few = data if folds == 0 else replace(data, train=data.train.select(np.arange(8)))
        with pytest.raises(InputError, match=r"no val split.* 10 images"):
            lg.sweep(few, "an", out=tmp_path / "s", folds=folds, **QUICK)
    assert not (tmp_path / "s").exists()


def test_newton_is_taken_where_nothing_asks_for_steps_and_a_preset_keeps_the_papers_space(data: Dataset) -> None:
    def plan(method: str, search: dict[str, Any] | None = None, **settings: Any) -> tuple[str, list[str]]:
        made = plan_sweep(data, make_request(method, settings), search or {}, CPU, print)
        return made.config.optimizer, [each.name for each in made.space]

    steps = ["lr", "batch_size"]
    assert plan("an") == ("newton", ["weight_decay", "standardize"])
    assert plan("an", weight_decay=0.1) == ("newton", ["standardize"])
    assert plan("an", optimizer="adam") == ("adam", [*steps, "weight_decay", "standardize"])
    assert plan("an", {"lr": [1e-3, 1e-2]}, batch_size=8) == ("adam", ["lr", "weight_decay", "standardize"])
    assert plan("ll-r", options={"delta_rel": 0.2}) == ("adam", ["lr", "weight_decay", "standardize"])
    assert plan("an", preset="cole2021") == ("adam", steps)
    with pytest.raises(InputError, match="standardize, weight_decay"):
        plan("an", **HEAD)


@pytest.mark.usefixtures("instant_auto")
@pytest.mark.parametrize("splits", [("val", "test"), ()])
def test_trials_that_all_fail_say_why(splits: tuple[str, ...], tmp_path: Path) -> None:
    data = features(splits=splits)
    vectors = np.linspace(1e30, 2e30, 6 * len(data.train), dtype=np.float32).reshape(-1, 6)
    huge = replace(data, train=replace(data.train, images=type(data.train.images)(vectors)))  # type: ignore[call-arg]
    settings: dict[str, Any] = {"search": {"lr": [1e30, 1e31]}, "batch_size": 16, **HEAD, **QUICK}
    with pytest.raises(RunError, match=r"no trial was successful.*lower (learning rate|--lr)"):
        lg.sweep(huge, "an", out=tmp_path / "s", **settings)
    left = Sweep.open(tmp_path / "s")
    assert describe_auto(left)
    assert [trial.state for trial in left.trials] == ["failed", "failed"]


PASSWORD = "s3cret/@word"
QUOTED = "s3cret%2F%40word"


@contextmanager
def shared_database(place: Path) -> Iterator[str]:
    """Yield the URL of a new, empty database: a file in a folder where there is no PostgreSQL, or no driver of it."""
    programs = [shutil.which("pg_ctl"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")))]
    program = next(filter(None, programs), None)
    if program is None or find_spec("psycopg") is None:
        yield f"sqlite:///{place / 'shared.sqlite'}"
        return
    folder = Path(tempfile.mkdtemp(prefix="labelgap-postgresql-"))
    run: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": folder, "check": True}
    if os.getuid() == 0:  # the server refuses to run as root
        account = pwd.getpwnam("nobody")
        os.chown(folder, account.pw_uid, account.pw_gid)
        run |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    (folder / "password").write_text(PASSWORD, encoding="utf-8")
    (folder / "password").chmod(0o644)
    control = [program, "-D", "data", "-l", "log", "-w", "-m", "fast"]
    try:
        subprocess.run([*control[:3], "initdb", "-o", "-U ann -A scram-sha-256 --pwfile=password -N"], **run)
        with reserved_port() as port:
            options = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -c unix_socket_directories={folder}"
            subprocess.run([*control, "-o", options, "start"], **run)
            try:
                yield f"postgresql://ann:{QUOTED}@127.0.0.1:{port}/postgres"
            finally:
                subprocess.run([*control, "stop"], **run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


COLE = {"lr": (1e-2, 1e-3, 1e-4, 1e-5), "batch_size": (8, 16)}
STEPS = (0.1, 0.25, 0.5, 0.75, 1)
QUARTERS = tuple(sorted({round(part * decade, 9) for decade in (1e-4, 1e-3, 1e-2) for part in STEPS}))
SHARES = (0.01, 0.02, 0.1, 0.2, 0.4, 0.9)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("an", COLE),
        ("role", COLE),
        ("two-way", COLE),
        ("gr", COLE),
        ("ll-ct", {"lr": QUARTERS, "delta_rel": (0.1, 0.2, 0.3, 0.4, 0.5)}),
        ("ll-cp-abs", {"lr": QUARTERS, "r0": (1, 1.5, 2), "delta_abs": (0.1, 0.15, 0.2)}),
        ("em-apl", {**COLE, "alpha": SHARES, "beta": SHARES}),
        ("asl", {**COLE, "gamma_neg": (1, 2), "margin": (0, 0.05, 0.2)}),
    ],
)
def test_the_default_is_the_space_of_the_paper(method: str, expected: dict[str, tuple[float, ...]]) -> None:
    assert {each.name: each.choices for each in paper_space(method)} == expected


def test_every_method_has_a_space_of_values_that_it_takes() -> None:
    for name in methods():
        for parameter in paper_space(name):
            if parameter.name in method_options(name):
                assert all(loss(name, **{parameter.name: value}) for value in parameter.choices)


def test_a_linear_head_searches_its_weight_decay_and_newton_has_no_rate() -> None:
    decay, standardize = head_space("an", 0.02, newton=True)
    assert (decay.name, decay.low, decay.high, decay.log) == ("weight_decay", 1e-5, 0.1, True)
    unit = 2048 / (5000 * 20)
    strengths = [strength * unit for strength in STRENGTHS]
    assert all(each in head_space("an", unit, newton=True)[0] for each in strengths), "all that `auto` compares"
    assert standardize.choices == (True, False)
    assert [each.name for each in head_space("em", 1.0, newton=False)] == [
        *("lr", "batch_size", "alpha", "weight_decay", "standardize")
    ]


def space_of(method: str, given: dict[str, str], fixed: dict[str, float]) -> tuple[Parameter, ...]:
    return search_space(parse_search(method, given, fixed), fixed, paper_space(method))


def test_a_range_or_values_take_the_place_of_the_papers_and_what_is_fixed_is_not_searched() -> None:
    space = space_of("em", {"lr": "1e-5..1e-2:log", "batch_size": "4..64"}, {"alpha": 0.1})
    rate, batch = space
    assert (rate.low, rate.high, rate.log, rate.integer) == (1e-5, 1e-2, True, False)
    assert (batch.low, batch.high, batch.log, batch.integer, batch.size) == (4, 64, False, True, 61)
    assert [str(each) for each in space] == ["lr=1e-05..0.01:log", "batch_size=4..64"]
    assert all(parse_parameter(each.name, str(each).partition("=")[2]) == each for each in space)
