"""The trials of a study in a storage that processes share: which setting is tried next, and what became of it.

Every trial is claimed by one process. A trial whose process died is marked as failed, and its setting is queued again:
at once where the process was on this machine, else when its heartbeat has stopped.

People see the trials numbered from 1 without gaps: a repeated trial keeps the number of the first attempt, and one that
was not trained has none. The numbers of optuna start from 0 and count every attempt.
"""

from __future__ import annotations

import math
import os
import platform
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import psutil

from labelgap.studies.sweep.results import SweepTrial
from labelgap.studies.sweep.search_space import Parameter, Value, grid_points
from labelgap.studies.sweep.storage import GRACE, Heartbeat

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

RESULT: Final = "labelgap"
"""Attribute of an ended trial: what ``SweepTrial`` has beside its number and state."""
WORKER: Final = "worker"
"""Attribute of a claimed trial: the process that trains it."""
DROPPED: Final = "dropped"
"""Attribute of a trial that was asked for and not trained."""
STOPPED: Final = "stopped"
"""Attribute of a trial that a person stopped: it is repeated, however often."""
ORIGIN: Final = "origin"
RETRY_OF: Final = "retry_of"
_MAX_DEATHS: Final = 3
_MAX_POINTS: Final = 100_000
_MAX_DUPLICATES: Final = 50


class TrialQueue:
    """The trials of a study.

    Args:
        study: of optuna.
        space: what is searched.
        total: number of trials, over all processes.
        heartbeat: of the storage.
    """

    def __init__(self, study: Study, space: Sequence[Parameter], total: int, heartbeat: Heartbeat) -> None:
        self.study, self.space, self.heartbeat = study, space, heartbeat
        self.total = int(min(total, math.prod(parameter.size for parameter in space)))
        self._distributions = {parameter.name: _distribution(parameter) for parameter in space}
        self._own: dict[int, Trial] = {}
        self._worker = _process()

    def suggest(self, values: Mapping[str, Value]) -> None:
        """Queue a setting, in which other parameters may be open, as the first one of the study."""
        if not self._trials() and values:
            self.study.enqueue_trial(dict(values), skip_if_exists=True)

    def ask(self, most: int) -> list[Trial]:
        """Claim the next trials, at most so many; none where no more are wanted."""
        self.recover()
        asked: list[Trial] = []
        while len(asked) < most and (trial := self._next()) is not None:
            asked.append(trial)
        return asked

    def tell(self, trial: Trial, ended: SweepTrial) -> None:
        """Store what became of a trial; ignored where another process has taken it over."""
        try:
            self._store(trial, ended)
        except (KeyboardInterrupt, SystemExit):
            self._store(trial, ended)  # half of it would make a failed trial of a complete one
            raise
        finally:
            self._release(trial)

    def _store(self, trial: Trial, ended: SweepTrial) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        result = {name: value for name, value in asdict(ended).items() if name not in ("number", "state")}
        with suppress(UpdateFinishedTrialError):
            trial.set_user_attr(RESULT, result)
            self.study.tell(trial, ended.score if ended.state == "complete" else None, state=states[ended.state])

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """Give claimed trials back when a Ctrl-C or SIGTERM ends the block: they are queued again at once."""
        from optuna.trial import TrialState

        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            for trial in list(self._own.values()):
                with suppress(Exception):  # it has just ended, or the storage is gone: as for a killed process
                    trial.set_user_attr(STOPPED, True)
                    self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
                    self._release(trial)
            raise

    def results(self) -> tuple[SweepTrial, ...]:
        """Return the trials that count, those of other processes too."""
        counted, numbers = self._counted(), self._numbers()
        kept = [trial for trial in counted if _origin(trial) in numbers]  # another process may drop one meanwhile
        return tuple(_result(numbers[_origin(trial)], trial) for trial in sorted(kept, key=_origin))

    def number(self, trial: Trial) -> int:
        """Return the number of a claimed trial as people see it, from 1."""
        return self._numbers()[_origin(trial)]

    def origin(self, trial: Trial) -> int:
        """Return the number in the storage of the trial that this one repeats, or its own."""
        return _origin(trial)

    def recover(self) -> None:
        """Queue the settings of trials again whose process has died, a few times at most."""
        from optuna.storages import fail_stale_trials
        from optuna.trial import TrialState

        for trial in self._trials():
            if trial.state == TrialState.RUNNING and self._is_dead(trial):
                self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        fail_stale_trials(self.study)
        for trial, deaths in self._lost():
            if deaths < _MAX_DEATHS:
                about = {RETRY_OF: trial.number, ORIGIN: _origin(trial)}
                self.study.enqueue_trial(trial.params, user_attrs=about)

    def _lost(self) -> list[tuple[FrozenTrial, int]]:
        """Return the trials without a result that no other repeats, and how many of their processes died."""
        from optuna.trial import TrialState

        trials = self._trials()
        repeated = {trial.user_attrs.get(RETRY_OF) for trial in trials}
        lost = [each for each in trials if each.state == TrialState.FAIL and not {RESULT, DROPPED} & {*each.user_attrs}]
        deaths = Counter(_origin(trial) for trial in lost if STOPPED not in trial.user_attrs)
        return [(trial, deaths[_origin(trial)]) for trial in lost if trial.number not in repeated]

    def _numbers(self) -> dict[int, int]:
        """Return the numbers that people see, by those of the first attempts in the storage."""
        trials = self._trials()
        repeated = {trial.user_attrs.get(RETRY_OF) for trial in trials}
        kept = {_origin(each) for each in trials if DROPPED not in each.user_attrs and each.number not in repeated}
        return {origin: number for number, origin in enumerate(sorted(kept), start=1)}

    def _counted(self) -> list[FrozenTrial]:
        """Return the trials that were asked for: they run, have a result, or are not repeated any more."""
        given_up = {trial.number for trial, deaths in self._lost() if deaths >= _MAX_DEATHS}
        return [trial for trial in self._trials() if _counts(trial) or trial.number in given_up]

    def _next(self) -> Trial | None:
        """Claim one trial whose setting is new; several processes may ask at the same time."""
        for _ in range(_MAX_DUPLICATES):
            if len(self._counted()) >= self.total:
                return None
            trial = self._claim()
            if trial is None:
                continue
            earlier = [each for each in self._counted() if each.number < trial.number]
            if len(earlier) >= self.total:
                self._drop(trial)
                return None
            if all(each.params != trial.params for each in earlier):
                return trial
            self._drop(trial)
            if (point := self._nearest_untried(trial.params, [each.params for each in earlier])) is not None:
                self.study.enqueue_trial(point)
        return None

    def _claim(self) -> Trial | None:
        from optuna.exceptions import UpdateFinishedTrialError

        trial = self.study.ask(self._distributions)
        self._own[trial.number] = trial
        try:
            trial.set_user_attr(WORKER, self._worker)
            self.heartbeat.add(trial._trial_id)
        except UpdateFinishedTrialError:
            self._own.pop(trial.number, None)
            return None
        return trial

    def _drop(self, trial: Trial) -> None:
        from optuna.trial import TrialState

        trial.set_user_attr(DROPPED, True)
        self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
        self._release(trial)

    def _release(self, trial: Trial) -> None:
        self.heartbeat.remove(trial._trial_id)
        self._own.pop(trial.number, None)

    def _nearest_untried(
        self, values: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
    ) -> dict[str, Value] | None:
        """Return the untried point of a finite space that is nearest to some values; None in a large space."""
        points = grid_points(self.space, _MAX_POINTS)
        left = [point for point in points or () if point not in tried]
        random.Random(len(tried)).shuffle(left)  # of equally near ones any

        def distance(point: Mapping[str, Value]) -> float:
            return sum(parameter.distance(point[parameter.name], values[parameter.name]) for parameter in self.space)

        return min(left, key=distance, default=None)

    def _is_dead(self, trial: FrozenTrial) -> bool:
        """Return whether the process of a running trial is known to have ended."""
        worker = trial.user_attrs.get(WORKER)
        if worker is None:  # killed between two operations
            started = trial.datetime_start
            return started is not None and abs((datetime.now() - started).total_seconds()) > GRACE
        if worker == self._worker:
            return trial.number not in self._own
        host, process, created = str(worker).rsplit(" ", 2)
        return host == platform.node() and _process(int(process)) != f"{host} {process} {created}"

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)


def _process(number: int | None = None) -> str:
    """Return what identifies a process among all that share a storage: machine, number and start; "" where it ended."""
    try:
        process = psutil.Process(number or os.getpid())
        return f"{platform.node()} {process.pid} {process.create_time():.2f}"
    except psutil.Error:
        return ""


def _origin(trial: Trial | FrozenTrial) -> int:
    """Return the number of the trial that this one repeats, or its own."""
    return int(trial.user_attrs.get(ORIGIN, trial.number))


def _counts(trial: FrozenTrial) -> bool:
    """Return whether a trial runs or has a result."""
    from optuna.trial import TrialState

    ended = trial.state.is_finished() and RESULT in trial.user_attrs
    return DROPPED not in trial.user_attrs and (trial.state == TrialState.RUNNING or ended)


def _result(number: int, trial: FrozenTrial) -> SweepTrial:
    from optuna.trial import TrialState

    names = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.RUNNING: "running"}
    state: Any = names.get(trial.state, "failed")
    given_up = {} if state == "running" else {"reason": "its process ended, three times"}
    result = given_up if state == "running" else trial.user_attrs.get(RESULT, given_up)
    return SweepTrial(number, state=state, **{"values": dict(trial.params), **result})


def _distribution(parameter: Parameter) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.choices:
        return CategoricalDistribution(parameter.choices)
    if parameter.integer:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    return FloatDistribution(float(parameter.low), float(parameter.high), log=parameter.log)
