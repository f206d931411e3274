"""What a training tells: live logs, the same scalars everywhere and each epoch once; and progress, as lines or bars."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.killing import run_forked
from tests.studies.compare.small_features import features
from tests.waiting import wait_until

import labelgap as lg
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.training.loggers import LOGGERS, check_loggers, log_epochs
from labelgap.verification import verify_run

EPOCHS = 4
EVERY_EPOCH = {"train/loss", "train/lr", "train/seconds", "val/classes_counted", "val/map", "val/score"}
SPLITS = ("train", "val", "test")
MEASURES = ("map", "map_samples", "f1_micro", "f1_macro")
MEASURED = {"best/epoch", "best/score", *(f"best/{split}/{name}" for split in SPLITS for name in MEASURES)}
Log = dict[str, list[tuple[int, float]]]


def read_csv(run: Path) -> tuple[Log, dict[str, str]]:
    with (run / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = set(rows[0]) - {"epoch"}
    log = {name: [(int(row["epoch"]), float(row[name])) for row in rows if row[name]] for name in names}
    return log, {}


def read_tensorboard(run: Path) -> tuple[Log, dict[str, str]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    log = {name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]}
    data = HParamsPluginData.FromString(events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    found = data.session_start_info.hparams
    return log, {name: found[name].string_value or f"{found[name].number_value:g}" for name in found}


def read_mlflow(run: Path) -> tuple[Log, dict[str, str]]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'labelgap'")
    (found,) = client.search_runs([experiment.experiment_id])
    names = set(found.data.metrics) - {"epoch"}
    history = {name: client.get_metric_history(found.info.run_id, name) for name in names}
    return {name: [(each.step, each.value) for each in history[name]] for name in names}, found.data.params


def leveldb_records(content: bytes, block: int = 1 << 15) -> Iterator[bytes]:
    """Yield the records of a log of LevelDB, as .wandb is; what a killed process left of the last one is left out."""
    place, record = 7, b""  # after the header of the file
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        part = content[place + 7 : place + 7 + length]
        if kind == 0 or len(part) < length:
            return
        record = part if kind in (1, 2) else record + part
        place += 7 + length
        if kind in (1, 4):
            yield record


def read_wandb(run: Path) -> tuple[Log, dict[str, str]]:
    from wandb.proto import wandb_internal_pb2

    log: Log = {}
    settings: dict[str, str] = {}
    for path in sorted(run.parent.glob("wandb/offline-run-*/*.wandb")):
        for data in leveldb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            settings |= {item.key: str(json.loads(item.value_json)) for item in record.run.config.update}
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name in items.keys() - {"epoch"}:
                if not name.startswith("_"):
                    log.setdefault(name, []).append((items["epoch"], items[name]))
            for item in record.summary.update:
                if (item.key or item.nested_key[0]).startswith("best"):
                    log[item.key or item.nested_key[0]] = [(EPOCHS, json.loads(item.value_json))]
    return log, settings


READERS: dict[str, Callable[[Path], tuple[Log, dict[str, str]]]] = {
    "csv": read_csv,
    "mlflow": read_mlflow,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
}


def fit(out: Path, log: str | Sequence[str], **arguments: Any) -> lg.Run:
    settings: dict[str, Any] = {"epochs": EPOCHS, "device": "cpu", "quiet": True, "select": "clean", "lr": 1e-3}
    return lg.fit(features(), "an", out=out, log=log, weight_decay=0.0, **settings, **arguments)


def log_again(run: lg.Run, *, resume: bool) -> list[str]:
    """Log the epochs of a run as its training does; return the warnings."""
    said: list[str] = []
    with log_epochs(("csv",), run.path, said.append, resume=resume) as on_epoch:
        assert on_epoch is not None
        for count in range(1, EPOCHS + 1):
            on_epoch(run.history[:count])
    return said


@pytest.mark.filterwarnings("default")  # of the libraries
@pytest.mark.parametrize("name", sorted(LOGGERS))
def test_a_resumed_log_has_every_epoch_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = LOGGERS[name].package
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if package:
        importlib.import_module(package)  # once, and not in the process that is killed too
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    out = tmp_path / "run"

    def kill(history: Sequence[Mapping[str, Any]]) -> None:
        if len(history) == 2:
            if name == "wandb":  # another process writes it, every second
                wait_until(lambda: len(READERS[name](out)[0].get("train/loss", [])) == 2)
            os.kill(os.getpid(), signal.SIGKILL)

    assert run_forked(lambda: fit(out, name, on_epoch=kill)) == -signal.SIGKILL
    half, _ = READERS[name](out)
    assert [epoch for epoch, _ in half["train/loss"]] == [1, 2]

    run = fit(out, name, resume=True)
    log, settings = READERS[name](out)
    assert log.keys() == EVERY_EPOCH | MEASURED
    for scalar in EVERY_EPOCH:
        assert [epoch for epoch, _ in log[scalar]] == [1, 2, 3, 4]
    assert [value for _, value in log["train/loss"]] == pytest.approx([record["loss"] for record in run.history])
    ((epoch, measured),) = log["best/test/map"]
    assert epoch == EPOCHS and measured == pytest.approx(run.metrics["test"]["map"])
    if name != "csv":
        assert settings["method"] == "an" and float(settings["lr"]) == pytest.approx(run.config.lr)


@pytest.mark.parametrize(
    "place",
    [
        "labelgap.training.loggers._TensorBoardLogger.finish",
        "labelgap.training.fit.write_history",
    ],
)
def test_logs_are_complete_wherever_it_was_killed(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    logs, out = ("csv", "tensorboard"), tmp_path / "run"
    monkeypatch.setattr(place, kill)
    assert run_forked(lambda: fit(out, logs)) == -signal.SIGKILL
    monkeypatch.undo()
    run = fit(out, logs, resume=True)
    for read in (read_csv, read_tensorboard):
        log, _ = read(out)
        assert [epoch for epoch, _ in log["train/loss"]] == [1, 2, 3, 4], read
        assert [value for _, value in log["best/test/map"]][-1] == pytest.approx(run.metrics["test"]["map"])
    assert verify_run(out).intact


def test_a_log_that_fails_warns_once_and_catches_up_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LOGGERS["tensorboard"], "__init__", full)
        patch.setattr("labelgap.training.loggers.find_spec", lambda name: True)
        run, closed = fit(tmp_path / "run", "csv,tensorboard"), list[bool]()
    assert run.finished and len(read_csv(run.path)[0]["train/loss"]) == EPOCHS and verify_run(run.path).intact
    whole = (run.path / "log.csv").read_bytes()
    (run.path / "logs.json").unlink()
    for place in ("loggers.epoch_scalars", "loggers.read_config", "loggers.write_json", "log"):
        with monkeypatch.context() as patch:
            if place == "log":
                patch.setattr(LOGGERS["csv"], "log", lambda *arguments: 1 / 0)
                patch.setattr(LOGGERS["csv"], "close", lambda *_, finished: closed.append(finished))
            else:
                patch.setattr(f"labelgap.training.{place}", lambda *arguments: 1 / 0)
            said = log_again(run, resume=False)
        assert 1 <= len(said) == len(set(said)) <= 2 and all("ZeroDivisionError" in each for each in said)
    assert len(said) == 1 and "the log csv failed" in said[0] and closed == [False]
    (run.path / "log.csv").unlink(missing_ok=True)
    assert log_again(run, resume=True) == [] and (run.path / "log.csv").read_bytes() == whole


def test_a_log_that_is_not_installed_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_loggers(["csv, csv", ""]) == ("csv",)
    with monkeypatch.context() as patch:
        patch.setattr("labelgap.training.loggers.is_main_process", lambda: False)
        with log_epochs(("csv",), tmp_path, print, resume=False) as on_epoch:
            assert on_epoch is None, "only the first process logs"
    with pytest.raises(UnknownNameError, match="'tensorboard'"):
        fit(tmp_path / "run", "tensorbord")
    monkeypatch.setattr("labelgap.training.loggers.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'labelgap\[wandb\]'"):
        fit(tmp_path / "run", ["csv", "wandb"])
    assert not (tmp_path / "run").exists()


NESTED = """
from labelgap.training import progress
progress.LINE_SECONDS = progress.LINE_SHARE = progress.NOTE_SECONDS = 0.0
reporter = progress.Reporter()
with reporter.bar("trials", 4):
    reporter.advance(1, note=lambda: "trial 0")
    with reporter.bar("features", 10):
        reporter.advance(5)
    reporter.log("a message")
    reporter.advance(2, note=lambda: "trial 1")
    reporter.advance(0)
    reporter.advance(1, note=lambda: "the last one, which needs no line")
reporter.advance()
"""
IN_A_COMMAND = f"""
from labelgap.core.terminal import protect_streams
with protect_streams():
    exec({NESTED!r})
"""


def test_a_log_gets_lines_without_control_characters_where_colors_are_forced_too() -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    ended = subprocess.run([sys.executable, "-c", NESTED], env=environment, check=True, capture_output=True)
    assert not ended.stdout and all(line.isprintable() for line in ended.stderr.decode().splitlines())
    assert re.sub("about [0-9.]+ (s|min) left", "ETA", ended.stderr.decode()).splitlines() == [
        "trials: 25 %  trial 0  ETA",
        "features: 50 %  ETA",
        "a message",
        "trials: 75 %  trial 1  ETA",
        "trials: 75 %  ETA",
    ]


@pytest.mark.parametrize("script", [NESTED, IN_A_COMMAND])
def test_a_terminal_gets_a_bar_for_each_and_no_lines(script: str) -> None:
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", script], stderr=end, env=environment) as process:
        os.close(end)
        shown = b""
        with suppress(OSError):  # the end of a terminal, on Linux
            while part := os.read(terminal, 4096):
                shown += part
    os.close(terminal)
    text = shown.decode()
    assert process.returncode == 0 and "\x1b[2K" in text and " %" not in text
    assert "\\x1b" not in text, "what rich draws is not escaped"
    assert text.index("features") < text.index("a message")
    assert "the last one" in text.split("a message")[1]  # the outer bar still moves
