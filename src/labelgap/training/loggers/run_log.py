"""The live logs of one run: which were asked for, what they hold already, and that none can end the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from labelgap.core.distributed import is_main_process
from labelgap.core.errors import InputError, LabelGapError, UnknownNameError
from labelgap.core.files import write_json
from labelgap.core.stored import read_json
from labelgap.core.text import truncate_text
from labelgap.training.checkpoints.history import read_history
from labelgap.training.config.schema import read_config
from labelgap.training.loggers.base import EpochLogger
from labelgap.training.loggers.csv_file import CsvLogger
from labelgap.training.loggers.mlflow_run import MlflowLogger
from labelgap.training.loggers.scalars import epoch_scalars, hyper_parameters, summary_scalars
from labelgap.training.loggers.tensorboard_events import TensorBoardLogger
from labelgap.training.loggers.wandb_run import WandbLogger

LOGGERS: Final[Mapping[str, type[EpochLogger]]] = {
    "csv": CsvLogger,
    "mlflow": MlflowLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
}
LOGS_FILE: Final = "logs.json"
"""Which epochs every log holds, so that a resumed run continues it."""

History = Sequence[Mapping[str, Any]]
Callback = Callable[[History], None]


class _LogState(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, StringConstraints(max_length=1000)] = ""
    epochs: Annotated[int, Field(ge=0, le=10**9)] = 0
    measured: bool = False
    """Whether the log has the measures of the finished run."""


class _Logs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = 1
    logs: dict[Annotated[str, StringConstraints(max_length=100)], _LogState] = {}


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
    """Yield what a trainer calls after every epoch: it writes the logs, and calls ``on_epoch`` after that.

    Only the first of several processes writes. A log that fails is closed with one warning, and the training continues.
    At the end a finished run gets what its logs lack: it may have been killed after its last epoch.

    Args:
        names: from ``check_loggers``.
        folder: of the run.
        warn: prints a message.
        on_epoch: another callback.
        resume: whether the logs of the folder are continued.
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


class _RunLog:
    """The open logs of a run."""

    def __init__(self, names: Sequence[str], folder: Path, warn: Callable[[str], None], resume: bool) -> None:
        self._names, self._folder, self._warn, self._resume = names, folder, warn, resume
        self._open: dict[str, EpochLogger] | None = None
        self._history: History = ()
        self._states: dict[str, _LogState] = {}
        self._failed: set[str] = set()

    def write(self, history: History) -> None:
        """Log the epochs that are not logged yet."""
        self._history = list(history)
        with self._guard(", ".join(self._names)):
            if self._open is None:
                self._start()
            rows = self._rows() if self._open else []
            for name, logger in list((self._open or {}).items()):
                state = self._states[name]
                with self._guard(name):
                    logger.log(rows, rows[state.epochs :])
                    self._states[name] = _LogState(id=logger.id, epochs=max(len(rows), state.epochs))
            self._save()

    def close(self) -> None:
        """Log the measures of a finished run, and close the logs."""
        history: History = ()
        summary: Mapping[str, Any] = {}
        with self._guard("measures"):
            history, summary = read_history(self._folder, read_config(self._folder).classes)
        finished = bool(summary) and not summary["interrupted"]
        if finished and self._open is None:
            self.write(history)
        rows = self._rows() if self._open else []
        for name, logger in list((self._open or {}).items()):
            with self._guard(name):
                if finished:
                    logger.finish(rows, summary_scalars(summary))
                    self._states[name] = self._states[name].model_copy(update={"measured": True})
                logger.close(finished=finished)
        if self._open:
            self._save()

    def _start(self) -> None:
        """Open the logs, and store their ids before anything is in them."""
        self._states, self._open = self._read_states(), {}
        self._config = read_config(self._folder)
        for name in self._names:
            state = self._states.setdefault(name, _LogState())
            known = self._history[: state.epochs]
            start = known[-1]["epoch"] + 1 if known else self._history[0]["epoch"]
            if state.measured:
                continue
            with self._guard(name):
                settings = hyper_parameters(self._config)
                self._open[name] = LOGGERS[name](self._folder, settings, id=state.id, start=start)
                self._states[name] = _LogState(id=self._open[name].id, epochs=state.epochs)
        self._save()

    def _rows(self) -> list[tuple[int, dict[str, float]]]:
        return [(record["epoch"], epoch_scalars(record, self._config)) for record in self._history]

    def _save(self) -> None:
        with self._guard(LOGS_FILE):
            write_json(self._folder / LOGS_FILE, _Logs(logs=self._states).model_dump())

    def _read_states(self) -> dict[str, _LogState]:
        path = self._folder / LOGS_FILE
        try:
            return dict(read_json(path, _Logs, format=1).logs) if self._resume and path.is_file() else {}
        except LabelGapError as error:
            self._warn(f"{error} The logs start anew.")
            return {}

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
            logger = (self._open or {}).pop(name, None)
            if logger is not None:
                with suppress(Exception):
                    logger.close(finished=False)
