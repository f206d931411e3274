"""``sweep``: try settings of one method, each as ``fit`` would train it, and train the best one as a run."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import make_folder
from labelgap.core.lock import lock_folder
from labelgap.core.manifest import replacing
from labelgap.core.tensors import read_tensors
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset
from labelgap.data.findings import ValidationHeldOut
from labelgap.losses import method_options
from labelgap.studies.compare.statistics import DIVERGED
from labelgap.studies.jobs import is_trained, train_run
from labelgap.studies.study import check_contents
from labelgap.studies.sweep.results import (
    AUTO_FOLDER,
    BEST_FOLDER,
    DATABASE,
    Sweep,
    SweepTrial,
    format_values,
    trial_name,
)
from labelgap.studies.sweep.search_space import Search, SweepPlan, check_sweep, make_request, plan_sweep, with_values
from labelgap.training.config import RunConfig, read_config
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.fit import linear_features
from labelgap.training.folds import FoldTask, assign_folds, fold_groups, out_of_fold_logits, train_configs
from labelgap.training.history import finite
from labelgap.training.loop.trainer import TrainingContext
from labelgap.training.network import initial_network
from labelgap.training.plan import TrainingRequest, describe_random_features
from labelgap.training.progress import Reporter
from labelgap.training.run import Run
from labelgap.training.run_files import LAST, SEARCH_FILE
from labelgap.training.run_folder import is_run_folder
from labelgap.training.search import selection_score

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import RDBStorage

    from labelgap.studies.sweep.trial_queue import TrialQueue

HEADS: Final = 8  # linear heads that are trained at once; the next ones are chosen by their scores
TRIALS_FOLDER: Final = "trials"  # where networks are trained, each in a folder of its own until it has ended
FEW_TRIALS: Final = 8  # with fewer complete trials the importance of a setting is not estimated
_WAIT: Final = 86400.0  # seconds to wait for another process that trains the best settings in the same folder
_NOT_OF_NEWTON: Final = {"lr", "batch_size"}  # settings that say nothing beside those of another optimizer
_OF_FEATURES: Final = ("size", "average_flips")  # settings of the linear protocol that change the features
_NOT_COMPARED: Final = ("why", "trace", "precision", "data")
"""Settings in which an earlier run of the best trial may differ."""

HeadInputs = tuple[Mapping[str, Tensor], NDArray[np.int64] | None]


class _Execution(NamedTuple):
    """Where and how trials are trained, which does not change them."""

    device: str
    workers: int | None
    reporter: Reporter

    def train(self, data: Dataset, request: TrainingRequest, folder: Path, **more: Any) -> Run:
        """Train a run in a folder, or resume the one that is there; a Ctrl-C that stops it stops the sweep."""
        run = train_run(data, request, folder, device=self.device, workers=self.workers, quiet=True, **more)
        if not is_trained(folder):
            raise KeyboardInterrupt
        return run


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
    that of ``fit`` without settings in ``out/auto``, the line to beat. A sweep that was stopped there is resumed.

    Args:
        data: the data set.
        method: one of ``methods()``; "auto" chooses by the label states.
        search: name of a setting or option → its range ("1e-5..1e-2:log") or values (``[8, 16]``), instead of what is
            searched by default (docs/sweep.md).
        trials: how many, over all processes; those that the storage has are not repeated.
        storage: URL of a database, for processes on several machines; by default a file in ``out``.
        **settings: further arguments of ``fit``, as are all others; what is given is not searched.
    """
    request, given, folder = make_request(method, settings), dict(search or {}), Path(out)
    check_sweep(request, given, trials)
    check_optuna()
    execution = _Execution(device, workers, Reporter(quiet))
    plan = plan_sweep(data, request, given, choose_device(device), execution.reporter.log)
    _check_folder(folder, plan)
    result = _run_trials(data, plan, trials, storage, folder, execution)
    with execution.reporter.resumable(), lock_folder(folder, "finishing a sweep", wait=_WAIT):
        if result.finished:
            result = _train_best(result, data, plan, execution)
        elif (stored := Sweep.open(folder)).retrained_score is not None and stored.asked >= result.asked:
            return stored  # another process has finished the sweep in the meantime
        result.write()
    return result


def check_optuna() -> None:
    """Raise an error with the command that installs optuna where it is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise InputError(f"a sweep needs the package {error.name}: pip install 'labelgap[sweep]'.") from None


def _check_folder(folder: Path, plan: SweepPlan) -> None:
    check_contents(folder, "a sweep", ("sweep.*", TRIALS_FOLDER, AUTO_FOLDER, BEST_FOLDER))
    if not Sweep.is_in(folder):
        return
    stored = Sweep.open(folder).identity
    for name, text in plan.identity.items():
        before = str(stored.get(name))
        if before != text:
            shown = f" ({before}, now {text})" if name in ("method", "search space") else ""
            other = f"other {name}" if name in ("data", "settings") else f"another {name}"
            raise RunError(f"{folder} holds a sweep with {other}{shown}: choose another --out.")


def _run_trials(
    data: Dataset, plan: SweepPlan, trials: int, url: str | None, folder: Path, execution: _Execution
) -> Sweep:
    from labelgap.studies.sweep.trial_queue import TrialQueue, hide_password, open_storage, quiet_optuna

    if url is None:
        make_folder(folder)
    with replacing(folder, [DATABASE]), quiet_optuna(), open_storage(url, folder) as storage:
        queue = TrialQueue(_open_study(storage, plan), plan.space, trials)
        auto = TrialQueue(_open_study(storage, plan, " auto"), (), 1)
        results = partial(_results, plan, queue, auto, folder, hide_password(storage.url), data)
        with lock_folder(folder, "starting a sweep", wait=60):
            _check_folder(folder, plan)
            if not Sweep.is_in(folder):
                results().write()
        queue.suggest(plan.first)

        def has_trained() -> bool:
            ended = any(trial.state != "running" for trial in queue.results())
            return ended or any((folder / TRIALS_FOLDER).glob(f"*/{LAST}"))

        trained = closing(_train(queue, auto, data, plan, folder, execution))
        with execution.reporter.resumable(has_trained, "trial"), queue, auto, trained as ended:
            for _ in ended:  # nothing is written while another process finishes the sweep here, which writes it
                with suppress(RunError), lock_folder(folder, "storing trials", wait=1):
                    results().write()
        found = results()
        return replace(found, importance=_importance(queue, found.trials))


def _open_study(storage: RDBStorage, plan: SweepPlan, part: str = "") -> Study:
    import optuna

    study = optuna.create_study(
        study_name=f"{plan.study_name}{part}",
        direction="maximize",
        storage=storage,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=max(plan.config.epochs // 3, 1)),
        load_if_exists=True,
    )
    study.sampler = optuna.samplers.TPESampler(seed=plan.request.seed + len(study.get_trials(deepcopy=False)))
    return study


def _train(
    queue: TrialQueue, auto: TrialQueue, data: Dataset, plan: SweepPlan, folder: Path, execution: _Execution
) -> Generator[None, None, None]:
    """Train ``auto`` and as many trials as asked for; yield each time some have ended."""
    reporter, config = execution.reporter, plan.config
    inputs: HeadInputs | None = None
    same_features = not any(parameter.name in _OF_FEATURES for parameter in plan.space) and not config.average_flips
    heads = same_features and config.protocol == "linear" and config.head == "linear"  # many can be trained at once
    done = sum(trial.state != "running" for trial in queue.results())  # those of a killed process are run again
    by = ", newton" if config.optimizer == "newton" else ""
    held_out = [str(finding) for finding in plan.data.findings if isinstance(finding, ValidationHeldOut)]
    searched = f"{config.method}, {config.protocol}{by}: {'; '.join(map(str, plan.space))}"
    for line in (searched, describe_random_features(config), *held_out, plan.selection.why):
        if line:
            reporter.log(line)
    reporter.log(pluralize(queue.total, "trial") + (f", {done:,} of them done already" if done else ""))
    with reporter.bar("trials", queue.total, done):
        while True:
            for claimed in auto.ask(1):
                reporter.log("auto: what `labelgap train` does without settings is trained first, as the line to beat")
                ended = train_auto(data, plan, folder / AUTO_FOLDER, execution)
                auto.tell(claimed, ended)
                reporter.log(_line(ended))
                yield
            asked = {queue.number(trial): trial for trial in queue.ask(HEADS if heads else 1)}
            if not asked:
                return
            if heads:
                inputs = inputs or load_inputs(plan, execution)
                for ended in train_head_trials(asked, plan, inputs, execution):
                    _tell(queue, asked[ended.number], ended, reporter)
            else:
                for number, trial in asked.items():
                    out = folder / TRIALS_FOLDER / f"{trial.number:04d}"
                    _tell(queue, trial, train_network_trial(number, trial, plan, out, execution), reporter)
            yield


def _tell(queue: TrialQueue, trial: Trial, ended: SweepTrial, reporter: Reporter) -> None:
    before = max((each.score or 0.0 for each in queue.results() if each.state == "complete"), default=-1.0)
    queue.tell(trial, ended)
    best = ended.state == "complete" and (ended.score or 0.0) > before
    if best or ended.state == "failed" or not reporter.draws_bars:
        reporter.log(_line(ended) + (", the best so far" if best else ""))
    reporter.advance()


def _line(ended: SweepTrial) -> str:
    state = "" if ended.state == "complete" else f" {ended.state}"
    score = "" if ended.score is None else f" score {100 * ended.score:.2f}"
    values = f" ({format_values(ended.values)})" if ended.values else ""
    return f"{trial_name(ended)}:{state}{score}{values}" + (f": {ended.reason}" if ended.reason else "")


def _results(plan: SweepPlan, queue: TrialQueue, auto: TrialQueue, folder: Path, storage: str, data: Dataset) -> Sweep:
    """Return the sweep as the storage has it now, without the importance of settings, which takes a while."""
    same = {name: getattr(plan.config, name) for name in ("method", "protocol", "backbone", "epochs", "folds")}
    return Sweep(
        folder,
        **same,
        data=data.name,
        images={split.name: len(split) for split in (*plan.data.splits, *((data.test,) if data.test else ()))},
        rule=plan.selection.rule,
        space=plan.space,
        asked=queue.total,
        storage=storage,
        study=plan.study_name,
        identity=plan.identity,
        trials=queue.results(),
        auto=next((replace(each, number=0) for each in auto.results()), None),
    )


def _importance(queue: TrialQueue, trials: Sequence[SweepTrial]) -> dict[str, float]:
    """Return the share of the variance of the scores that each parameter explains (fANOVA)."""
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    scores = [trial.score for trial in trials if trial.state == "complete"]
    if len(scores) < FEW_TRIALS or len(set(scores)) < 2 or len(queue.space) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = get_param_importances(queue.study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {name: min(max(float(value), 0.0), 1.0) for name, value in found.items()}


def _train_best(result: Sweep, data: Dataset, plan: SweepPlan, execution: _Execution) -> Sweep:
    """Train the best trial as a run on all splits, which measures test; not again where it is there already."""
    best, reporter = result.best, execution.reporter
    if best is None:
        reasons = [trial.reason for trial in result.trials if trial.reason]
        raise RunError(f"no trial was successful. The first of them: {reasons[0] if reasons else 'no score'}")
    folder, request = result.path / BEST_FOLDER, replace(with_values(plan.request, best.values), trace="auto")
    config = plan.resolve(best.values, choose_device(execution.device))
    same = {name: getattr(config, name) for name in _NOT_COMPARED}
    if is_run_folder(folder) and read_config(folder).model_copy(update=same) != config:
        shutil.rmtree(folder)
    where = "its run is" if is_trained(folder) else "training it as a run"
    reporter.log(f"trial {best.number} is the best: {where} in {folder}")
    with reporter.bar("best trial", config.epochs):
        run = execution.train(data, request, folder, on_epoch=lambda _: reporter.advance())
    shutil.rmtree(result.path / TRIALS_FOLDER, ignore_errors=True)
    return replace(result, retrained_score=run_score(run, plan))


def load_inputs(plan: SweepPlan, execution: _Execution) -> HeadInputs:
    """Return the features of each split as ``fit`` computes them and, without val, the fold of every training image."""
    device, config = choose_device(execution.device), plan.config
    shared = (config, plan.selection, initial_network(config, plan.data, device), device)
    where = (choose_workers(execution.workers, device), execution.reporter)
    features = linear_features(TrainingContext(Path(), plan.data, *shared, *where))
    if not config.folds:
        return features, None
    groups = fold_groups(plan.data, "train", features["train"].cpu().numpy())
    return features, assign_folds(plan.data.train.labels, config.folds, config.seed, groups)


def train_head_trials(
    trials: Mapping[int, Trial], plan: SweepPlan, inputs: HeadInputs, execution: _Execution
) -> Iterator[SweepTrial]:
    """Train heads at once, as far as they have batches and epochs in common; val, or folds, score each."""
    device, configs, labels = choose_device(execution.device), dict[int, RunConfig](), plan.data.train.labels
    features, fold = inputs
    for number, trial in trials.items():
        try:
            configs[number] = plan.resolve(trial.params, device)
        except LabelGapError as error:
            yield SweepTrial(number, dict(trial.params), "failed", reason=str(error))
    if not configs:
        return
    note = pluralize(len(configs), "head") + (f" in {plan.config.folds} folds" if plan.config.folds else "")
    execution.reporter.advance(0, note=lambda: note)
    started, chosen = time.perf_counter(), list(configs.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about single settings of the space
        if fold is None:
            heads = train_configs(features, labels, chosen, plan.selection, order_seed=plan.config.seed, device=device)
            ended = [(each.best_score, each.best_epoch, len(each.history), each.failed or "") for each in heads]
        else:
            tasks, ended = [FoldTask(config, labels, fold) for config in chosen], []
            for task, logits in zip(tasks, out_of_fold_logits(features["train"], tasks, device), strict=True):
                score, count = finite(selection_score(plan.selection, logits)), task.config.epochs
                ended.append((None, 0, count, DIVERGED) if score is None else (score, count, count, ""))
    seconds = (time.perf_counter() - started) / len(chosen)
    for number, (score, epoch, count, failed) in zip(configs, ended, strict=True):
        values, state = dict(trials[number].params), "failed" if failed else "complete"
        yield SweepTrial(number, values, state, score, epoch, count, seconds, failed)  # type: ignore[arg-type]


def train_network_trial(number: int, trial: Trial, plan: SweepPlan, folder: Path, execution: _Execution) -> SweepTrial:
    """Train a network as a run in a folder, resumed if killed and removed when ended; optuna may stop it."""
    from optuna import TrialPruned

    values, history = dict(trial.params), list[Mapping[str, Any]]()

    def report(records: Sequence[Mapping[str, Any]]) -> None:
        for record in records[len(history) :]:
            history.append(record)
            if record["epoch"] and "score" in record:
                trial.report(record["score"], record["epoch"])
        note = f"trial {number}: epoch {records[-1]['epoch']}/{plan.config.epochs}"
        execution.reporter.advance(0, note=lambda: note)
        if trial.should_prune():
            raise TrialPruned

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            run = execution.train(plan.data, with_values(plan.request, values), folder, on_epoch=report)
        ended = SweepTrial(number, values, "complete", run_score(run, plan), run.metrics["best_epoch"])
        history[:] = run.history
    except TrialPruned:
        scores = {record["epoch"]: record["score"] for record in history if "score" in record}
        best = max(scores, key=lambda epoch: scores[epoch])
        ended = SweepTrial(number, values, "pruned", scores[best], best)
    except LabelGapError as error:
        ended = SweepTrial(number, values, "failed", reason=str(error))
    shutil.rmtree(folder, ignore_errors=True)
    trained = [record for record in history if record["epoch"]]
    return replace(ended, epochs=len(trained), seconds=float(sum(record["seconds"] for record in trained)))


def train_auto(data: Dataset, plan: SweepPlan, folder: Path, execution: _Execution) -> SweepTrial:
    """Train what ``fit`` does without a method and settings, as a run that is kept, and score it as the trials are."""
    started = time.perf_counter()
    try:
        run = execution.train(data, plan.auto_request, folder)
    except LabelGapError as error:
        return SweepTrial(0, {}, "failed", reason=str(error))
    config, measured = run.config, run.metrics
    options = {**method_options(config.method), **config.options} if config.method == plan.config.method else {}
    settings = {**config.model_dump(exclude=_NOT_OF_NEWTON if config.optimizer == "newton" else None), **options}
    names = [each.name for each in plan.space if settings.get(each.name) is not None]
    values = {"method": config.method, **{name: settings[name] for name in names}}
    about = (run_score(run, plan), measured["best_epoch"], measured["epochs"], time.perf_counter() - started)
    return SweepTrial(0, values, "complete", *about)


def run_score(run: Run, plan: SweepPlan) -> float | None:
    """Return the score of a run by which it is compared with the trials; None where it has none."""
    score: float | None = run.metrics["score"]
    if run.config.folds:
        tensors, _ = read_tensors(run.path / SEARCH_FILE)
        score = finite(selection_score(plan.selection, tensors["logits"].numpy()))
    return score
