"""Live logs of a training: the scalars of every epoch to a CSV file, TensorBoard, Weights & Biases or MLflow.

A log that fails is closed with one warning. ``logs.json`` says which epochs every log holds, for a resumed run.
"""

from __future__ import annotations

import csv
import io
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, StringConstraints

from labelgap.core.distributed import is_main_process
from labelgap.core.errors import InputError, LabelGapError, UnknownNameError
from labelgap.core.files import write_json, write_text
from labelgap.core.stored import read_json
from labelgap.core.text import truncate_text
from labelgap.training.config import RunConfig, read_config
from labelgap.training.history import read_history
from labelgap.training.loop.optimizers import rate_factor

CSV_LOG: Final = "log.csv"
TENSORBOARD_FOLDER: Final = "tensorboard"
MLFLOW_DATABASE: Final = "mlflow.db"
LOGS_FILE: Final = "logs.json"
_RECORD: Final = {"train": ("loss", "seconds", "revisions", "revisions_precision"), "val": ("score", "classes_counted")}
_MEASURES: Final = ("map", "map_samples", "f1_micro", "f1_macro")
_LEFT_OUT: Final = {"format", "data", "classes", "why", "weights", "backbone_input", "checkpoint_minutes", "trace"}
_LONGEST_PARAMETER: Final = 500
_WANDB_SETTINGS: Final = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_transaction_log_flush_interval": 1,
}
"""Those that the installed version has; a killed process loses the epochs of the last second."""

Scalars = Mapping[str, float]
Row = tuple[int, Scalars]
History = Sequence[Mapping[str, Any]]
Callback = Callable[[History], None]


def epoch_scalars(record: Mapping[str, Any], config: RunConfig) -> dict[str, float]:
    """Return what is known and finite of a record in ``metrics.jsonl``, and the rate; ``val/score`` selects."""
    found = {f"{part}/{name}": record.get(name) for part, names in _RECORD.items() for name in names}
    if record.get("select") in ("clean", "known"):
        found["val/map"] = record.get("score")
    if config.optimizer != "newton" and record["epoch"]:
        factor = rate_factor(config.schedule, record["epoch"], config.warmup, config.epochs)
        found["train/lr"] = config.lr * factor * (record.get("lr_factor") or 1.0)
    return _finite(found)


def hyper_parameters(config: RunConfig) -> dict[str, str | int | float | bool]:
    """Return the settings of a run, options by their names; no path of this machine."""
    settings = config.model_dump(mode="json", exclude=_LEFT_OUT)
    options = {f"options/{name}": value for name, value in settings.pop("options").items()}
    found = {"data": config.data.get("name", ""), "classes": len(config.classes), **settings, **options}
    return {
        name: value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in found.items()
        if value is not None
    }


def _finite(found: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


class EpochLogger(ABC):
    """Writes the scalars of epochs to one kind of log; a resumed run continues that of ``id`` at epoch ``start``."""

    package = ""  # the library that must be installed

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, id: str, start: int) -> None:
        self.folder, self.settings, self.id, self.start = folder, settings, id, start
        self.open()

    def open(self) -> None:  # noqa: B027 (optional)
        """Open the log, a new one where it has no ``id``, and set that."""

    @abstractmethod
    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        """Write the new epochs; ``rows`` are all epochs of the run, with the new ones at their end."""

    def finish(self, rows: Sequence[Row], measured: Scalars) -> None:
        """Write the measures of the finished run, to its last epoch."""
        epoch, scalars = rows[-1]
        self.log([*rows[:-1], (epoch, {**scalars, **measured})], [(epoch, measured)])

    def close(self, *, finished: bool) -> None:  # noqa: B027 (optional)
        """Close the log; a run that is not finished can be resumed."""


class _CsvLogger(EpochLogger):
    """``log.csv`` in the run folder, which is replaced after every epoch, so that it is complete at every moment."""

    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        names = sorted({name for _, scalars in rows for name in scalars})
        text = io.StringIO()
        writer = csv.DictWriter(text, ["epoch", *names], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"epoch": epoch, **scalars} for epoch, scalars in rows)
        write_text(self.folder / CSV_LOG, text.getvalue())


class _TensorBoardLogger(EpochLogger):
    """Event files in ``tensorboard/`` of the run folder, with the hyper-parameters for the HPARAMS tab.

    A resumed run adds a file that discards the epochs it repeats; its name must have a later second than the others.
    """

    package = "tensorboard"

    def open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        folder, resumed = self.folder / TENSORBOARD_FOLDER, bool(self.id)
        self.id = self.id or self.folder.name
        if resumed:
            seconds = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
            last = max((int(second) for second in seconds if second.isdigit()), default=0)
            time.sleep(min(max(last + 1 - time.time(), 0.0), 1.0))
        writer: Any = SummaryWriter  # its types are incomplete
        self._writer = writer(str(folder), purge_step=self.start if resumed else None)
        if not resumed:
            for summary in hparams(dict(self.settings), {"val/score": 0.0, "best/test/map": 0.0})[:2]:  # type: ignore[no-untyped-call]
                self._writer.file_writer.add_summary(summary)
            self._writer.flush()

    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        for epoch, scalars in new:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        self._writer.close()


class _WandbLogger(EpochLogger):
    """A run in ``wandb/`` of ``WANDB_DIR`` or of the current folder: its links have no place in a run folder.

    Nothing is sent unless ``WANDB_MODE=online``, and neither console output, code nor statistics of the machine are
    recorded.
    """

    package = "wandb"

    def open(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # before the import: it reports crashes otherwise
        import wandb

        library: Any = wandb
        known = library.Settings()
        self._run = library.init(
            project=os.environ.get("WANDB_PROJECT", "labelgap"),
            name=self.folder.name,
            id=self.id or None,
            resume="allow" if self.id else None,
            config=dict(self.settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=library.Settings(**{key: value for key, value in _WANDB_SETTINGS.items() if hasattr(known, key)}),
        )
        self.id = str(self._run.id)

    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        for epoch, scalars in new:
            self._run.log({"epoch": epoch, **scalars}, step=epoch, commit=True)

    def finish(self, rows: Sequence[Row], measured: Scalars) -> None:
        self._run.summary.update(dict(measured))

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class _MlflowLogger(EpochLogger):
    """A run of ``MLFLOW_EXPERIMENT_NAME`` on ``MLFLOW_TRACKING_URI``, or in ``mlflow.db`` of the run folder."""

    package = "mlflow"

    def open(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before the import
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a training waits for a server that is away
        import mlflow

        library: Any = mlflow
        database = f"sqlite:///{(self.folder / MLFLOW_DATABASE).absolute().as_posix()}"
        self._client = library.MlflowClient(tracking_uri=None if os.environ.get("MLFLOW_TRACKING_URI") else database)
        if self.id:
            self._client.update_run(self.id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "labelgap")
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        self.id = str(self._client.create_run(number, run_name=self.folder.name).info.run_id)
        for key, value in self.settings.items():
            self._client.log_param(self.id, key, str(value)[:_LONGEST_PARAMETER])

    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        known = {metric.step for metric in self._client.get_metric_history(self.id, "epoch")}
        for epoch, scalars in new:
            if epoch not in known:  # a killed process may have logged it already
                self._send({**scalars, "epoch": epoch}, epoch)

    def finish(self, rows: Sequence[Row], measured: Scalars) -> None:
        self._send(measured, rows[-1][0])

    def _send(self, scalars: Scalars, epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self.id, [Metric(name, value, now, epoch) for name, value in scalars.items()])

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


LOGGERS: Final[Mapping[str, type[EpochLogger]]] = {
    "csv": _CsvLogger,
    "mlflow": _MlflowLogger,
    "tensorboard": _TensorBoardLogger,
    "wandb": _WandbLogger,
}


def check_loggers(log: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of loggers, from one or several texts with commas; an error for one that cannot be used."""
    texts = [log] if isinstance(log, str) else log
    names = tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))
    for name in names:
        if name not in LOGGERS:
            raise UnknownNameError("log", name, LOGGERS)
        package = LOGGERS[name].package
        if package and find_spec(package) is None:
            raise InputError(f"the log {name} needs the package {package}: pip install 'labelgap[{name}]'.")
    return names


@contextmanager
def log_epochs(
    names: Sequence[str], folder: Path, warn: Callable[[str], None], on_epoch: Callback | None = None, *, resume: bool
) -> Iterator[Callback | None]:
    """Yield what a trainer calls after every epoch: it writes the logs, in the first process, and calls ``on_epoch``.

    At the end a finished run gets what its logs lack: it may have been killed after its last epoch.
    """
    if not names or not is_main_process():
        yield on_epoch
        return
    log = _RunLog(names, folder, warn, resume)

    def both(history: History) -> None:
        log.write(history)
        if on_epoch is not None:
            on_epoch(history)

    try:
        yield both
    finally:
        log.close()


class _LogState(BaseModel, extra="forbid"):
    id: Annotated[str, StringConstraints(max_length=1000)] = ""
    epochs: Annotated[int, Field(ge=0, le=10**9)] = 0
    measured: bool = False  # whether the log has the measures of the finished run


class _Logs(BaseModel, extra="forbid"):
    format: Literal[1] = 1
    logs: dict[Annotated[str, StringConstraints(max_length=100)], _LogState] = {}


class _RunLog:
    """The logs of a run; they are opened when its first epoch ends."""

    def __init__(self, names: Sequence[str], folder: Path, warn: Callable[[str], None], resume: bool) -> None:
        self._names, self._folder, self._warn, self._resume = names, folder, warn, resume
        self._open: dict[str, EpochLogger] = {}
        self._config: RunConfig | None = None  # until the first epoch ends
        self._rows: list[Row] = []
        self._states: dict[str, _LogState] = {}
        self._failed: set[str] = set()

    def write(self, history: History) -> None:
        with self._guard(", ".join(self._names)):
            if self._config is None:
                self._config = read_config(self._folder)
                self._start(self._config, [record["epoch"] for record in history])
            self._rows = [(record["epoch"], epoch_scalars(record, self._config)) for record in history]
            for name, logger in list(self._open.items()):
                with self._guard(name):
                    logger.log(self._rows, self._rows[self._states[name].epochs :])
                    self._states[name].epochs = max(len(self._rows), self._states[name].epochs)
            self._save()

    def close(self) -> None:
        history: History = ()
        summary: Mapping[str, Any] = {}
        with self._guard("measures"):
            history, summary = read_history(self._folder, read_config(self._folder).classes)
        finished = bool(summary) and not summary["interrupted"]
        if finished and self._config is None:
            self.write(history)
        for name, logger in list(self._open.items()):
            with self._guard(name):
                if finished:
                    found = {"best/epoch": summary.get("best_epoch"), "best/score": summary.get("score")}
                    for split in ("train", "val", "test"):
                        found |= {f"best/{split}/{name}": (summary.get(split) or {}).get(name) for name in _MEASURES}
                    logger.finish(self._rows, _finite(found))
                    self._states[name].measured = True
                logger.close(finished=finished)
        if self._open:
            self._save()

    def _start(self, config: RunConfig, epochs: Sequence[int]) -> None:
        """Open the logs, and store their ids before anything is in them."""
        path = self._folder / LOGS_FILE
        try:
            self._states = dict(read_json(path, _Logs, format=1).logs) if self._resume and path.is_file() else {}
        except LabelGapError as error:
            self._warn(f"{error} The logs start anew.")
        for name in self._names:
            state = self._states.setdefault(name, _LogState())
            known = epochs[: state.epochs]
            with self._guard(name):
                if not state.measured:
                    start = known[-1] + 1 if known else epochs[0]
                    opened = LOGGERS[name](self._folder, hyper_parameters(config), id=state.id, start=start)
                    self._open[name], state.id = opened, opened.id
        self._save()

    def _save(self) -> None:
        with self._guard(LOGS_FILE):
            write_json(self._folder / LOGS_FILE, _Logs(logs=self._states).model_dump())

    @contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        """Close a log that fails, with one warning: it may not end the training."""
        try:
            yield
        except Exception as error:
            reason = truncate_text(" ".join(f"{type(error).__name__}: {error}".split()), 300)
            if name not in self._failed:
                self._warn(f"the log {name} failed ({reason}); the training continues without it")
            self._failed.add(name)
            logger = self._open.pop(name, None)
            if logger is not None:
                with suppress(Exception):
                    logger.close(finished=False)
