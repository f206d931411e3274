"""The results of a sweep: its search space, every trial, and the best; ``sweep.json`` holds all of it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from labelgap.core.files import write_json, write_text
from labelgap.studies.result_files import csv_text, read_result, writing_results
from labelgap.studies.sweep.search_space import Parameter, Value
from labelgap.training import Run, open_run
from labelgap.training.config import CONFIG_FILE

FORMAT: Final = 1
FILE: Final = "sweep.json"
TABLE: Final = "trials.csv"
FILES: Final = (FILE, TABLE)
AUTO_FOLDER: Final = "auto"
BEST_FOLDER: Final = "best"

State = Literal["complete", "pruned", "failed", "running"]
Text = Annotated[str, StringConstraints(max_length=10_000)]
Score = Annotated[float, Field(ge=0, le=1)]
Values = Annotated[dict[Text, Value], Field(max_length=1000)]


@dataclass(frozen=True)
class SweepTrial:
    """One setting that was tried.

    Attributes:
        number: from 1, in the order of their start; 0 for ``auto``.
        values: of the searched settings and options; of ``auto`` its method, and what it has of them.
        state: "complete"; "pruned", stopped since it was behind the others; "failed"; "running" in another process.
        score: of val in its best epoch, or of all training images out of fold; None where none was scored.
        epoch: the best one.
        epochs: how many were trained.
        seconds: of the training; of heads that were trained together its share.
        reason: why it failed.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    number: Annotated[int, Field(ge=0)]
    values: Values
    state: State
    score: Score | None = None
    epoch: Annotated[int, Field(ge=0)] = 0
    epochs: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    reason: Text = ""


@dataclass(frozen=True)
class Sweep:
    """The trials of one method on one data set.

    Attributes:
        path: the folder.
        method: whose settings are searched.
        data: name of the data set.
        images: number of images in each split.
        protocol: of the training.
        backbone: of the training.
        epochs: of a trial that is not pruned, where they are not searched.
        rule: that selects epochs and trials; see ``training.selection``.
        space: what is searched.
        asked: number of trials that was asked for, or all points of a smaller space.
        storage: its URL, without a password.
        study: name of the study in the storage.
        identity: digests of what all its trials share, by which another process recognizes it.
        trials: in the order of their numbers.
        importance: name → share of the variance of the scores that it explains; empty with few trials.
        retrained_score: of the run in ``best/``; None before it is trained.
        folds: of the cross-validation that scores trials; 0 where val does.
        auto: what ``fit`` does without settings, scored as the trials are: the line to beat. Its run is in ``auto/`` of
            the process that trained it. None before it is started.
        seconds: of the training of all trials.
    """

    path: Path
    method: str
    data: str
    images: Mapping[str, int]
    protocol: str
    backbone: str
    epochs: int
    rule: str
    space: tuple[Parameter, ...]
    asked: int
    storage: str
    study: str
    identity: Mapping[str, str]
    trials: tuple[SweepTrial, ...] = field(default=(), repr=False)
    importance: Mapping[str, float] = field(default_factory=dict)
    retrained_score: float | None = None
    folds: int = 0
    auto: SweepTrial | None = None

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
        run = open_run(self.path / name) if (self.path / name / CONFIG_FILE).exists() else None
        return run if run is not None and run.finished else None

    def write(self) -> None:
        """Write ``sweep.json``, ``trials.csv`` and, of a finished sweep, the manifest."""
        stored = asdict(self)
        del stored["path"]
        with writing_results(self.path, FILES, finished=self.finished):
            write_json(self.path / FILE, {"format": FORMAT, **stored})
            write_text(self.path / TABLE, _to_csv(self.trials, [parameter.name for parameter in self.space]))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Sweep:
        """Read the folder of a sweep."""
        folder = Path(path)
        about = {"what": "a sweep", "remedy": "Sweep into another --out."}
        stored = read_result(folder / FILE, _StoredSweep, format=FORMAT, **about)
        return cls(folder, **{name: getattr(stored, name) for name in _StoredSweep.model_fields if name != "format"})


class _StoredSweep(BaseModel):
    """``sweep.json``, which may come from anybody."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    format: Literal[1]
    method: Text
    data: Text
    images: Annotated[dict[Text, int], Field(max_length=10)]
    protocol: Text
    backbone: Text
    epochs: int
    rule: Literal["clean", "known", "observed"]
    space: Annotated[tuple[Parameter, ...], Field(min_length=1, max_length=1000)]
    asked: Annotated[int, Field(ge=1)]
    storage: Text
    study: Text
    identity: Annotated[dict[Text, Text], Field(max_length=100)]
    trials: Annotated[tuple[SweepTrial, ...], Field(max_length=1_000_000)]
    importance: Annotated[dict[Text, Score], Field(max_length=1000)]
    retrained_score: Score | None
    folds: Annotated[int, Field(ge=0)] = 0
    auto: SweepTrial | None = None

    @model_validator(mode="after")
    def _check_values(self) -> _StoredSweep:
        for each in self.space:
            if not each.choices and not (0 if each.log else -math.inf) < each.low < each.high:
                raise ValueError(f"the range of {each.name[:80]!r} is none")
            if any(trial.state != "running" and trial.values.get(each.name) not in each for trial in self.trials):
                raise ValueError(f"a trial has a value of {each.name[:80]!r} that is not searched")
        return self


def format_values(values: Mapping[str, Value]) -> str:
    """Return the values of a trial as text.

    Example:
        >>> format_values({"lr": 0.00012345, "batch_size": 16})
        'lr 0.0001234, batch size 16'
    """
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in shown.items())


def trial_name(trial: SweepTrial) -> str:
    """Return what people call a trial: by its number, or "auto"."""
    return f"trial {trial.number}" if trial.number else "auto"


def is_sweep(folder: Path) -> bool:
    """Return whether a folder holds a sweep."""
    return (folder / FILE).is_file()


def _to_csv(trials: Sequence[SweepTrial], names: Sequence[str]) -> str:
    rows: list[list[Any]] = []
    for trial in trials:
        score = "" if trial.score is None else f"{trial.score:.6f}"
        row = [trial.number, trial.state, score, trial.epoch, trial.epochs, f"{trial.seconds:.2f}"]
        rows.append([*row, *(trial.values.get(name, "") for name in names), trial.reason])
    return csv_text(["trial", "state", "score", "epoch", "epochs", "seconds", *names, "reason"], rows)
