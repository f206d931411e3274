"""The results of a sweep: its search space, every trial, and the best; ``sweep.json`` holds all of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from labelgap.core.files import write_text
from labelgap.studies.study import Count, Document, Seconds, Share, Stored, Text, csv_text
from labelgap.studies.sweep.search_space import Parameter, Value
from labelgap.training import Run, open_run
from labelgap.training.run_folder import is_run_folder

FILE: Final = "sweep.json"
TABLE: Final = "trials.csv"
DATABASE: Final = "sweep.sqlite"  # the storage of the trials in the folder of a sweep, where none is given
FILES: Final = (FILE, TABLE)
AUTO_FOLDER: Final = "auto"
BEST_FOLDER: Final = "best"

State = Literal["complete", "pruned", "failed", "running"]


@dataclass(frozen=True)
class SweepTrial(Stored):
    """One setting that was tried."""

    number: Count  # from 1, in the order of their start; 0 for ``auto``
    values: Annotated[dict[Text, Value], Field(max_length=1000)]  # of ``auto`` its method, and what it has of them
    state: State  # "pruned": stopped since it was behind the others; "running": in another process
    score: Share | None = None  # of val in its best epoch, or of all training images out of fold
    epoch: Count = 0  # the best one
    epochs: Count = 0  # how many were trained
    seconds: Seconds = 0.0  # of the training; of heads that were trained together its share
    reason: Text = ""  # why it failed


@dataclass(frozen=True)
class Sweep(Document):
    """The trials of one method on one data set."""

    FILE = FILE
    KIND = "a sweep"
    REMEDY = "Sweep into another --out."

    method: Text  # whose settings are searched
    data: Text  # name of the data set
    images: Annotated[Mapping[Text, int], Field(max_length=10)]  # in each split
    protocol: Text
    backbone: Text
    epochs: int  # of a trial that is not pruned, where they are not searched
    rule: Annotated[str, StringConstraints(pattern="^(clean|known|observed)$")]  # that selects epochs and trials
    space: Annotated[tuple[Parameter, ...], Field(min_length=1, max_length=1000)]
    asked: Annotated[int, Field(ge=1)]  # number of trials that was asked for, or all points of a smaller space
    storage: Text  # its URL, without a password
    study: Text  # name of the study in the storage
    identity: Annotated[Mapping[Text, Text], Field(max_length=100)]  # digests of what all its trials share
    trials: Annotated[tuple[SweepTrial, ...], Field(max_length=1_000_000)] = field(default=(), repr=False)
    importance: Annotated[Mapping[Text, Share], Field(max_length=1000)] = field(default_factory=dict)
    """Name → share of the variance of the scores that it explains; empty with few trials."""
    retrained_score: Share | None = None  # of the run in ``best/``; None before it is trained
    folds: Count = 0  # of the cross-validation that scores trials; 0 where val does
    auto: SweepTrial | None = None
    """What ``fit`` does without settings, scored as the trials are: the line to beat. Its run is in ``auto/`` of the
    process that trained it. None before it is started."""

    @property
    def ranked(self) -> list[SweepTrial]:
        """The complete trials, the best first; of equals the first."""
        complete = [trial for trial in self.trials if trial.state == "complete" and trial.score is not None]
        return sorted(complete, key=lambda trial: (-(trial.score or 0.0), trial.number))

    @property
    def pruned(self) -> list[SweepTrial]:
        """The trials that were stopped since they were behind the others."""
        return [trial for trial in self.trials if trial.state == "pruned"]

    @property
    def best(self) -> SweepTrial | None:
        """The trial with the highest score."""
        return next(iter(self.ranked), None)

    @property
    def seconds(self) -> float:
        """Duration of the training of all trials."""
        return sum(trial.seconds for trial in self.trials)

    @property
    def finished(self) -> bool:
        """Whether all trials that were asked for have ended, and ``auto``."""
        return len(self.trials) >= self.asked and not self.running

    @property
    def running(self) -> int:
        """How many trials other processes train, ``auto`` included."""
        return sum(trial is not None and trial.state == "running" for trial in (self.auto, *self.trials))

    def best_run(self) -> Run | None:
        """Return the run with the best settings; None before it is trained, also where ``best/`` has an earlier one."""
        return None if self.retrained_score is None else self._run(BEST_FOLDER)

    def auto_run(self) -> Run | None:
        """Return the run of ``auto``; None before it is trained, and where a process with another folder trained it."""
        return self._run(AUTO_FOLDER)

    def _run(self, name: str) -> Run | None:
        run = open_run(self.path / name) if is_run_folder(self.path / name) else None
        return run if run is not None and run.finished else None

    def check(self) -> None:
        """Check that trials have values of the search space."""
        for each in self.space:
            if not each.choices and not (0 if each.log else -math.inf) < each.low < each.high:
                raise ValueError(f"the range of {each.name[:80]!r} is none")
            if any(trial.state != "running" and trial.values.get(each.name) not in each for trial in self.trials):
                raise ValueError(f"a trial has a value of {each.name[:80]!r} that is not searched")

    def write(self) -> None:
        """Write ``sweep.json``, ``trials.csv`` and, of a finished sweep, the manifest."""
        names, rows = [parameter.name for parameter in self.space], list[list[Any]]()
        for trial in self.trials:
            score = "" if trial.score is None else f"{trial.score:.6f}"
            row = [trial.number, trial.state, score, trial.epoch, trial.epochs, f"{trial.seconds:.2f}"]
            rows.append([*row, *(trial.values.get(name, "") for name in names), trial.reason])
        header = ["trial", "state", "score", "epoch", "epochs", "seconds", *names, "reason"]
        with self.writing([TABLE, DATABASE], finished=self.finished):
            write_text(self.path / TABLE, csv_text(header, rows))


def format_values(values: Mapping[str, Value]) -> str:
    """Return the values of a trial as text, e.g. "lr 0.0001234, batch size 16"."""
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in shown.items())


def trial_name(trial: SweepTrial) -> str:
    """Return what people call a trial: by its number, or "auto"."""
    return f"trial {trial.number}" if trial.number else "auto"
