"""``sweep``: try settings of one method, each as ``fit`` would train it, and train the best one as a run."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from labelgap.core.errors import RunError
from labelgap.core.files import make_folder
from labelgap.core.lock import lock_folder
from labelgap.core.text import pluralize
from labelgap.core.trust import refuse_links
from labelgap.data.dataset import Dataset
from labelgap.data.findings import ValidationHeldOut
from labelgap.studies.sweep.plan import Search, SweepPlan, check_sweep, make_request, plan_sweep, with_values
from labelgap.studies.sweep.results import (
    AUTO_FOLDER,
    BEST_FOLDER,
    FILE,
    Sweep,
    SweepTrial,
    format_values,
    is_sweep,
    trial_name,
)
from labelgap.studies.sweep.storage import (
    Heartbeat,
    check_optuna,
    hide_password,
    open_storage,
    quiet_optuna,
)
from labelgap.studies.sweep.trial_queue import TrialQueue
from labelgap.studies.sweep.trials import (
    HeadInputs,
    is_head,
    is_trained,
    load_inputs,
    run_score,
    train_auto,
    train_head_trials,
    train_network_trial,
    train_run,
)
from labelgap.training import open_run
from labelgap.training.checkpoint import LAST
from labelgap.training.config import read_config
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.plan import describe_random_features
from labelgap.training.progress import Reporter
from labelgap.training.run_folder import is_run_folder

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import RDBStorage

HEADS: Final = 8
"""Linear heads that are trained at once; the next ones are chosen by their scores."""
TRIALS_FOLDER: Final = "trials"
"""Where networks are trained, each in a folder of its own until it has ended."""
FEW_TRIALS: Final = 8
"""With fewer complete trials the importance of a setting is not estimated."""
_WAIT: Final = 86400.0
"""Seconds to wait for another process that trains the best settings in the same folder."""


class _Execution(NamedTuple):
    """Where and how trials are trained, which does not change them."""

    device: str
    workers: int | None
    reporter: Reporter


def sweep(
    data: Dataset,
    method: str = "auto",
    *,
    search: Search | None = None,
    trials: int = 40,
    storage: str | None = None,
    out: str | os.PathLike[str] = "runs/sweep",
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Sweep:
    """Try settings of a method and train the best ones: options of the method, and how its weights are learned.

    Settings are chosen by optuna's TPE sampler, from those that ``fit`` would use on. Val selects epochs and trials; a
    linear head without val is cross-validated. Test is measured by the run of the best trial in ``out/best``, and by
    that of ``fit`` without settings in ``out/auto``, the line to beat. Linear heads are trained several at once; the
    training of a network is stopped when its val score is below the median of the others at the same epoch.

    Args:
        data: the data set.
        method: one of ``methods()``; "auto" chooses by the label states.
        search: name of a setting or option → its range ("1e-5..1e-2:log") or values (``[8, 16]``), instead of what is
            searched by default (docs/sweep.md).
        trials: how many, over all processes; those that the storage has are not repeated.
        storage: URL of a database, for processes on several machines; by default a file in ``out``.
        out: folder; a sweep that was stopped in it is resumed.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        quiet: print nothing.
        **settings: further arguments of ``fit``: options, protocol, epochs …; what is given is not searched.
    """
    request, given, folder = make_request(method, settings), dict(search or {}), Path(out)
    check_sweep(request, given, trials)
    check_optuna()
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another --out.")
    reporter = Reporter(quiet)
    plan = plan_sweep(data, request, given, choose_device(device), reporter.log)
    _check_folder(folder, plan)
    execution = _Execution(device, workers, reporter)
    with quiet_optuna():
        result = _run_trials(data, plan, trials, storage, folder, execution)
    with reporter.resumable(), lock_folder(folder, "finishing a sweep", wait=_WAIT):
        if result.finished:
            result = _train_best(result, data, plan, execution)
        elif (stored := Sweep.open(folder)).retrained_score is not None and stored.asked >= result.asked:
            return stored  # another process has finished the sweep in the meantime
        result.write()
    return result


def _run_trials(
    data: Dataset, plan: SweepPlan, trials: int, url: str | None, folder: Path, execution: _Execution
) -> Sweep:
    """Train the trials that the storage does not have yet, and return all of them."""
    if url is None:
        make_folder(folder)
    with open_storage(url, folder) as storage:
        shown = hide_password(storage.url)
        study = _open_study(storage, plan)
        with Heartbeat(storage) as heartbeat:
            queue = TrialQueue(study, plan.space, trials, heartbeat)
            auto = TrialQueue(_open_study(storage, plan, " auto"), (), 1, heartbeat)
            results = partial(_results, plan, queue, auto, folder, shown, data)
            with lock_folder(folder, "starting a sweep", wait=60):
                _check_folder(folder, plan)
                if not is_sweep(folder):
                    results().write()
            queue.suggest(plan.first)
            resumable = execution.reporter.resumable(partial(_has_trained, queue, folder), "trial")
            with resumable, queue.releasing(), auto.releasing():
                _train(queue, auto, data, plan, folder, execution, partial(_write, results, folder))
        found = results()
        return replace(found, importance=_importance(study, found.trials, plan.space))


def _write(results: Callable[[], Sweep], folder: Path) -> None:
    """Write the trials so far; not while another process finishes the sweep in the same folder, which writes them."""
    with suppress(RunError), lock_folder(folder, "storing trials", wait=1):
        results().write()


def _has_trained(queue: TrialQueue, folder: Path) -> bool:
    """Return whether a trial has ended, or the run of one has a checkpoint."""
    ended = any(trial.state != "running" for trial in queue.results())
    return ended or any((folder / TRIALS_FOLDER).glob(f"*/{LAST}"))


def _check_folder(folder: Path, plan: SweepPlan) -> None:
    """Refuse a folder that holds something else, or a sweep of something else."""
    if not folder.exists():
        return
    refuse_links(folder)
    if not is_sweep(folder):
        known = (FILE, TRIALS_FOLDER, AUTO_FOLDER, BEST_FOLDER)
        if any(not path.name.startswith((".", "sweep.")) and path.name not in known for path in folder.iterdir()):
            raise RunError(f"{folder} holds something else than a sweep: choose another --out.")
        return
    stored, now = Sweep.open(folder).identity, plan.identity
    for name, text in now.items():
        before = str(stored.get(name))
        if before != text:
            shown = f" ({before}, now {text})" if name in ("method", "search space") else ""
            other = f"other {name}" if name in ("data", "settings") else f"another {name}"
            raise RunError(f"{folder} holds a sweep with {other}{shown}: choose another --out.")


def _open_study(storage: RDBStorage, plan: SweepPlan, part: str = "") -> Study:
    """Open the study of a plan in a storage, or create it; that of ``auto`` is another part."""
    import optuna

    name = f"{plan.study_name}{part}"
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=max(plan.config.epochs // 3, 1))
    open_settings: dict[str, Any] = {"storage": storage, "pruner": pruner, "load_if_exists": True}
    study = optuna.create_study(study_name=name, direction="maximize", **open_settings)
    study.sampler = optuna.samplers.TPESampler(seed=plan.request.seed + len(study.get_trials(deepcopy=False)))
    return study


def _train(
    queue: TrialQueue,
    auto: TrialQueue,
    data: Dataset,
    plan: SweepPlan,
    folder: Path,
    execution: _Execution,
    write: Callable[[], None],
) -> None:
    """Train ``auto`` and as many trials as asked for; ``write`` their results each time some have ended."""
    device, workers, reporter = execution
    heads, on_device = is_head(plan), choose_device(device)
    done = sum(trial.state != "running" for trial in queue.results())  # those of a killed process are run again
    _describe(plan, reporter)
    reporter.log(pluralize(queue.total, "trial") + (f", {done:,} of them done already" if done else ""))
    inputs: HeadInputs | None = None
    with reporter.bar("trials", queue.total, done):
        while True:
            for claimed in auto.ask(1):
                reporter.log("auto: what `labelgap train` does without settings is trained first, as the line to beat")
                ended = train_auto(data, plan, folder / AUTO_FOLDER, device, workers)
                auto.tell(claimed, ended)
                reporter.log(_line(ended))
                write()
            asked = {queue.number(trial): trial for trial in queue.ask(HEADS if heads else 1)}
            if not asked:
                break
            if heads:
                inputs = inputs or load_inputs(plan, on_device, choose_workers(workers, on_device), reporter)
                for ended in train_head_trials(asked, plan, inputs, on_device, reporter):
                    _tell(queue, asked[ended.number], ended, reporter)
            else:
                ((number, trial),) = asked.items()
                out = folder / TRIALS_FOLDER / f"{queue.origin(trial):04d}"
                _tell(queue, trial, train_network_trial(number, trial, plan, out, *execution), reporter)
            write()


def _describe(plan: SweepPlan, reporter: Reporter) -> None:
    """Log what is searched, and by which score."""
    config = plan.config
    by = ", newton" if config.optimizer == "newton" else ""
    reporter.log(f"{config.method}, {config.protocol}{by}: {'; '.join(map(str, plan.space))}")
    if untrained := describe_random_features(config):
        reporter.log(untrained)
    for finding in plan.data.findings:
        if isinstance(finding, ValidationHeldOut):
            reporter.log(str(finding))
    reporter.log(plan.selection.why)


def _tell(queue: TrialQueue, trial: Trial, ended: SweepTrial, reporter: Reporter) -> None:
    """Store the end of a trial, and log it where there is no bar, or where it is the best so far."""
    before = max((each.score or 0.0 for each in queue.results() if each.state == "complete"), default=-1.0)
    queue.tell(trial, ended)
    best = ended.state == "complete" and (ended.score or 0.0) > before
    if best or ended.state == "failed" or not reporter.draws_bars:
        reporter.log(_line(ended) + (", the best so far" if best else ""))
    reporter.advance()


def _line(ended: SweepTrial) -> str:
    """Return what became of a trial."""
    state = "" if ended.state == "complete" else f" {ended.state}"
    score = "" if ended.score is None else f" score {100 * ended.score:.2f}"
    values = f" ({format_values(ended.values)})" if ended.values else ""
    return f"{trial_name(ended)}:{state}{score}{values}" + (f": {ended.reason}" if ended.reason else "")


def _results(plan: SweepPlan, queue: TrialQueue, auto: TrialQueue, folder: Path, storage: str, data: Dataset) -> Sweep:
    """Return the sweep as the storage has it now, without the importance of settings, which takes a while."""
    config = plan.config
    images = {split.name: len(split) for split in (*plan.data.splits, *((data.test,) if data.test else ()))}
    about = (data.name, images, config.protocol, config.backbone, config.epochs, plan.selection.rule, plan.space)
    where = (queue.total, storage, plan.study_name, plan.identity)
    line = next((replace(each, number=0) for each in auto.results()), None)
    return Sweep(folder, config.method, *about, *where, queue.results(), folds=config.folds, auto=line)


def _importance(study: Study, trials: Sequence[SweepTrial], space: Sequence[Any]) -> dict[str, float]:
    """Return the share of the variance of the scores that each parameter explains (fANOVA)."""
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    scores = [trial.score for trial in trials if trial.state == "complete"]
    if len(scores) < FEW_TRIALS or len(set(scores)) < 2 or len(space) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {name: min(max(float(value), 0.0), 1.0) for name, value in found.items()}


def _train_best(result: Sweep, data: Dataset, plan: SweepPlan, execution: _Execution) -> Sweep:
    """Train the best trial as a run on all splits, which measures test; not again where it is there already."""
    device, workers, reporter = execution
    best = result.best
    if best is None:
        reasons = [trial.reason for trial in result.trials if trial.reason]
        raise RunError(f"no trial was successful. The first of them: {reasons[0] if reasons else 'no score'}")
    folder, request = result.path / BEST_FOLDER, replace(with_values(plan.request, best.values), trace="auto")
    config = plan.resolve(best.values, choose_device(device))
    if is_run_folder(folder) and read_config(folder).model_copy(update=_open_settings(config)) != config:
        shutil.rmtree(folder)
    trained = is_run_folder(folder) and is_trained(open_run(folder))
    reporter.log(f"trial {best.number} is the best: {'its run is' if trained else 'training it as a run'} in {folder}")
    with reporter.bar("best trial", config.epochs):
        run = train_run(data, request, folder, device, workers, lambda _: reporter.advance())
    shutil.rmtree(result.path / TRIALS_FOLDER, ignore_errors=True)
    return replace(result, retrained_score=run_score(run, plan))


def _open_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration that are not compared."""
    return {name: getattr(config, name) for name in ("why", "trace", "precision", "data")}
