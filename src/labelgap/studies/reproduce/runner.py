"""``reproduce``: fill the cells of a paper's table whose data are given, and estimate before what it will cost."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, LabelGapError, RunError, UnknownNameError
from labelgap.core.files import file_digest, remove_partials
from labelgap.core.lock import lock_folder
from labelgap.core.text import DAY, format_duration, pluralize
from labelgap.data.dataset import Dataset
from labelgap.data.images import FEATURES
from labelgap.losses.base.registry import published_options
from labelgap.models import create_backbone
from labelgap.models.info import NO_WEIGHTS
from labelgap.models.weight_files import UnavailableWeightsError
from labelgap.studies.compare.heads import damaged_heads
from labelgap.studies.compare.results import SeedResult
from labelgap.studies.compare.runner import compare, estimate_comparison
from labelgap.studies.linear_eval import linear_eval
from labelgap.studies.reproduce import tables
from labelgap.studies.reproduce.networks import NetworkRun, TrainedNetworks, count_left, network_runs, train_networks
from labelgap.studies.reproduce.results import CellResult, Reproduction, ReproductionSettings, known_absent, measure_run
from labelgap.studies.reproduce.tables import Cell, DataSource, PaperTable, Training, data_digest
from labelgap.studies.study import check_contents
from labelgap.training import Run, open_run
from labelgap.training.devices import choose_device
from labelgap.training.fit import dry_run
from labelgap.training.presets import preset
from labelgap.training.progress import Reporter
from labelgap.training.run_files import BEST

LINEAR_FOLDER: Final = "linear"
EVALUATION_FOLDER: Final = "linear-eval"
NETWORKS: Final = ("end-to-end", "linear-init")


@dataclass(frozen=True)
class Plan:
    """What a command has to train."""

    table: PaperTable
    cells: Mapping[Training, tuple[Cell, ...]]  # that are asked for and can be filled, by their training
    missing: Mapping[str, str]  # why the other cells that are asked for cannot be filled
    done: int  # how many cells the folder already has
    sources: Mapping[str, DataSource]
    reproduction: Reproduction  # what the folder has
    seeds: int
    jobs: int = 1  # networks to train at a time
    damaged: tuple[str, ...] = ()  # files of stored heads, relative to the folder; cells of their data are filled again
    pretrained: Mapping[str, Run] = field(default_factory=dict)  # loss → the network whose features are evaluated

    def data(self, training: Training) -> Dataset:
        """Return the data of a training, with all labels."""
        found = tables.source_data(self.sources[training.data], training.protocol)
        assert found is not None  # else its cells are missing
        return found[0]

    def trainings(self, *protocols: str) -> list[Training]:
        """Return those of some protocols."""
        return [training for training in self.cells if training.protocol in protocols]

    def digest(self, training: Training) -> str:
        """Return a digest of a training, its data, its settings and the number of seeds."""
        parts = [training.key, data_digest(self.data(training)), asdict(self.reproduction.settings)]
        if training.protocol == tables.TRANSFER:
            parts.append(file_digest(self.pretrained[training.method].path / BEST).hex())
        return hashlib.sha256(json.dumps([*parts, self.seeds], sort_keys=True).encode()).hexdigest()[:20]


def plan_reproduction(
    table: str,
    data: Sequence[str],
    *,
    out: str | os.PathLike[str],
    cells: Sequence[str] | None = None,
    seeds: int = 3,
    jobs: int = 1,
    pretrained: Mapping[str, str | os.PathLike[str]] | None = None,
    **settings: Any,
) -> Plan:
    """Check everything, and return what there is to train; writes nothing."""
    paper_table, chosen = tables.find_table(table), ReproductionSettings(**settings)
    asked = list(dict.fromkeys(part for cell in paper_table.select(cells) for part in paper_table.parts(cell)))
    for name, count in (("seeds", seeds), ("jobs", jobs)):
        if count < 1:
            raise InputError(f"--{name} {count}: at least one is needed.")
    sources, runs = tables.open_sources(data, paper_table), _open_pretrained(paper_table, pretrained or {})
    needs = {cell.name: tables.unmet_need(cell, sources, runs) for cell in asked}
    missing = {name: need for name, need in needs.items() if need is not None}
    if len(missing) == len(asked):
        reasons = "\n".join(f"  {text}" for text in describe_missing(missing))
        raise InputError(f"{table}: no cell can be filled, nothing was trained\n{reasons}")
    reproduction = _open_folder(Path(out), chosen)
    plan = Plan(paper_table, {}, missing, 0, sources, reproduction, seeds, jobs, pretrained=runs)
    fillable = [cell for cell in asked if cell.name not in missing]
    _check_data(plan, fillable)
    linear = {cell.training.data for cell in fillable if cell.training.protocol == "linear"}
    damaged = {name: damaged_heads(reproduction.path / LINEAR_FOLDER / name) for name in sorted(linear)}
    open_cells, done, filled = dict[Training, tuple[Cell, ...]](), 0, reproduction.by_name
    for cell in fillable:
        stored, training = filled.get((table, cell.name)), cell.training
        most = seeds if stored is None else max(seeds, len(stored.values))  # a cell with more seeds is kept
        lost = most == seeds and training.protocol == "linear" and damaged[training.data]
        if stored is not None and stored.training == replace(plan, seeds=most).digest(training) and not lost:
            done += 1
        else:
            open_cells[training] = (*open_cells.get(training, ()), cell)
    files = (f"{LINEAR_FOLDER}/{name}/{file}" for name, files in damaged.items() for file in files)
    return replace(plan, cells=open_cells, done=done, damaged=tuple(files))


def reproduce(
    table: str,
    data: Sequence[str],
    *,
    out: str | os.PathLike[str] = "runs/reproduce",
    cells: Sequence[str] | None = None,
    seeds: int = 3,
    jobs: int = 1,
    pretrained: Mapping[str, str | os.PathLike[str]] | None = None,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Reproduction:
    """Train the cells of a table whose data are given, by the protocol of the paper, and measure them.

    A folder takes any number of tables: a cell, head or network that it has is not trained again. ``data`` are texts
    ``NAME=PATH``; for ``cells`` see ``PaperTable.select``, for ``settings`` ``ReproductionSettings``. ``pretrained``
    are the runs, by their loss, whose networks compute the features of "two-way-transfer".
    """
    given: dict[str, Any] = {"cells": cells, "seeds": seeds, "jobs": jobs, "pretrained": pretrained}
    plan = plan_reproduction(table, data, out=out, **given, **settings)
    return fill_cells(plan, device=device, workers=workers, quiet=quiet)


def fill_cells(plan: Plan, *, device: str = "auto", workers: int | None = None, quiet: bool = False) -> Reproduction:
    """Train what a plan has to train; the arguments are those of ``reproduce``."""
    folder, reporter = plan.reproduction.path, Reporter(quiet)
    with lock_folder(folder, "reproducing tables"):
        remove_partials(folder)
        reproduction = _open_folder(folder, plan.reproduction.settings)  # another process may have written since
        execution, failed = {"device": device, "workers": workers, "quiet": quiet}, dict[str, str]()
        reproduction = reproduction.add([])
        reproduction.write()
        for results in _train(plan, execution, failed):
            reproduction = reproduction.add(results)
            reproduction.write()
            reporter.log("; ".join(f"{each.row}/{each.column} {each.mean:.2f}" for each in results))
        return replace(reproduction, missing={**plan.missing, **failed})


def describe_missing(missing: Mapping[str, str]) -> Iterator[str]:
    """Yield every reason with its cells."""
    for reason in dict.fromkeys(missing.values()):
        names = [name for name, each in missing.items() if each == reason]
        columns = list(dict.fromkeys(name.partition("/")[2] for name in names))
        shown = names[0] if len(names) == 1 else ", ".join(columns)
        yield f"{pluralize(len(names), 'cell')} ({shown}): {reason}"


def _open_folder(folder: Path, settings: ReproductionSettings) -> Reproduction:
    """Return what a folder has; refuse one that holds something else, or was filled with other settings."""
    check_contents(folder, "tables of papers", [Reproduction.FILE])
    found = Reproduction.open(folder) if Reproduction.is_in(folder) else Reproduction(folder, settings)
    if found.settings != settings:
        raise RunError(
            f"{folder} was made with {found.settings.describe()}, and this command asks for {settings.describe()}. "
            "Repeat the settings, or choose another --out."
        )
    return found


def _open_pretrained(table: PaperTable, given: Mapping[str, str | os.PathLike[str]]) -> dict[str, Run]:
    """Open the runs whose networks compute features, by their loss."""
    losses = dict.fromkeys(cell.row.method for cell in table.cells if cell.training.protocol == tables.TRANSFER)
    for name in given:
        if name not in losses:
            raise UnknownNameError(f"pretraining loss of {table.name} called", name, list(losses))
    runs = {name: open_run(path) for name, path in given.items()}
    for name, run in runs.items():
        if run.config.method != name or run.config.protocol not in NETWORKS or not (run.path / BEST).is_file():
            found = f"{run.config.method}, {run.config.protocol}{'' if run.finished else ', not finished'}"
            raise InputError(f"--pretrained {name}={run.path}: give a network trained with {name}; this is {found}.")
    return runs


def _check_data(plan: Plan, cells: Sequence[Cell]) -> None:
    """Refuse data that differ from those of the folder's cells: numbers beside each other are of the same images."""
    frozen = {cell.name for cell in plan.table.cells if cell.training.protocol == tables.TRANSFER}
    compared = [each for each in cells if each.name not in frozen]
    given = {(each.column.protocol, each.column.data): data_digest(plan.data(each.training)) for each in compared}
    for (table, name), stored in plan.reproduction.by_name.items():
        if table == plan.table.name and name in frozen:
            continue
        protocol, data = stored.column.split(":")[:2]
        options = tables.paper_tables().get(table, plan.table).data_options.get(data)
        same_version = options == plan.table.data_options.get(data)  # other options load another version of the data
        if same_version and stored.data != given.get((protocol, data), stored.data):
            raise RunError(
                f"{plan.reproduction.path}: {name} of {table} was trained on other data than --data {data}=… now has. "
                "Give those, or choose another --out."
            )


@dataclass(frozen=True)
class _Trained:
    """What a training gave: the values of its cells, of every seed, and what the results of all cells tell."""

    training: Training
    values: Mapping[Cell, Sequence[float | None]]
    about: Mapping[str, Any]


def _train(plan: Plan, execution: Mapping[str, Any], failed: dict[str, str]) -> Iterator[list[CellResult]]:
    device = choose_device(execution["device"]).type
    for trainings, train in _trainings(plan, execution):
        try:
            trained = train()
        except LabelGapError as error:
            failed |= {cell.name: str(error) for training in trainings for cell in plan.cells[training]}
            continue
        for each in trained:
            data, results = plan.data(each.training), list[CellResult]()
            shared: dict[str, Any] = {**each.about, "table": plan.table.name, "training": plan.digest(each.training)}
            shared |= {"data": data_digest(data), "images": tuple(map(len, data.splits)), "device": device}
            for cell, measured in each.values.items():
                known, metric = [value for value in measured if value is not None], cell.column.metric
                if len(known) < len(measured):
                    failed[cell.name] = "the labels do not support this measure"
                    continue
                values = tuple(value if metric in ("epoch", "observed_labels") else 100 * value for value in known)
                own: dict[str, Any] = {"values": values, "known_absent": known_absent(metric, data)}
                results.append(CellResult(row=cell.row.name, column=cell.column.name, **own, **shared))
            yield results


def _trainings(
    plan: Plan, execution: Mapping[str, Any]
) -> Iterator[tuple[Sequence[Training], Callable[[], list[_Trained]]]]:
    """Yield trainings, and what trains or measures them: heads, classifiers on features, and networks as they end."""
    folder, settings = plan.reproduction.path, plan.reproduction.settings
    for group in linear_groups(plan.trainings("linear"), settings):
        yield group, partial(_train_heads, plan, group, execution)
    for training in plan.trainings(*tables.EVALUATIONS):
        yield [training], partial(_evaluate_features, plan, training, execution)
    grids = {each: network_runs(each, plan.data(each), folder, settings) for each in plan.trainings(*NETWORKS)}
    for networks in train_networks(grids, plan.seeds, jobs=plan.jobs, **execution):
        yield [networks.training], partial(_measure_networks, plan, networks, execution["device"])


def _train_heads(plan: Plan, group: Sequence[Training], execution: Mapping[str, Any]) -> list[_Trained]:
    comparison, trained = compare(**_comparison(plan, group), **execution), list[_Trained]()
    if comparison.skipped:
        raise RunError(f"{comparison.skipped[0].method}: {comparison.skipped[0].reason}")
    rows = {row.method: row for row in comparison.methods}
    for training in group:
        row, cells = rows[training.method], plan.cells[training]
        values = {cell: [_measure_head(seed, cell.column.metric) for seed in row.seeds] for cell in cells}
        setting = {"lr": row.lr, "batch_size": row.batch_size, "options": dict(row.options)}
        about = {"setting": setting, "settings_tried": row.settings_tried, "seconds": row.seconds}
        trained.append(_Trained(training, values, {**about, "epochs": tuple(seed.epoch for seed in row.seeds)}))
    return trained


def _evaluate_features(plan: Plan, training: Training, execution: Mapping[str, Any]) -> list[_Trained]:
    settings, data, name = plan.reproduction.settings, plan.data(training), training.data
    network: dict[str, Any] = {"backbone": settings.backbone, "weights": settings.weights, "size": settings.size}
    if training.protocol == tables.TRANSFER:
        run, name = plan.pretrained[training.method], f"{name}-{training.method}"
        network = {"backbone": run.config.backbone, "weights": str(run.path / BEST), "size": run.config.size}
    out = plan.reproduction.path / EVALUATION_FOLDER / name
    found = linear_eval(data, out=out, **(network if data.backbone != FEATURES else {}), **execution)
    results = {"accuracy": found.chosen, "best_accuracy": found.best_on_test}
    values = dict[Cell, Sequence[float | None]]()
    for cell in plan.cells[training]:
        result = results[cell.column.metric] if found.task == "single-label" else None
        values[cell] = [None if result is None else result.test]
    about = {"setting": {"penalty": found.chosen.penalty, "options": {}}, "settings_tried": len(found.results)}
    return [_Trained(training, values, {**about, "seconds": found.seconds, "epochs": ()})]


def _measure_networks(plan: Plan, trained: TrainedNetworks, device: str) -> list[_Trained]:
    """Measure the networks of a training at the setting that val chose; the error of one is that of all."""
    chosen, runs = trained.chosen, [run for run in trained.seeds if isinstance(run, Run)]
    if chosen is None or len(runs) < len(trained.seeds):
        raise next(run for run in trained.seeds if not isinstance(run, Run))
    cells = plan.cells[trained.training]
    values = {cell: [measure_run(cell, run, chosen.data, device) for run in runs] for cell in cells}
    scores = [tuple(each["score"] for each in run.history if each["epoch"] and "score" in each) for run in runs]
    about = {"setting": chosen.setting, "settings_tried": len(trained.tried), "seconds": trained.seconds}
    about |= {"epochs": tuple(run.metrics["best_epoch"] for run in runs), "rule": runs[0].config.select}
    return [_Trained(trained.training, values, {**about, "scores": tuple(scores) if all(scores) else ()})]


def linear_groups(trainings: Sequence[Training], settings: ReproductionSettings) -> list[list[Training]]:
    """Return the trainings that can be compared together: on one data set, with one grid, every method once."""
    groups, seen = dict[tuple[Any, ...], list[Training]](), Counter[tuple[Any, ...]]()
    for training in trainings:
        same = (training.data, training.labels, *_linear_grid(training, settings))
        groups.setdefault((seen[training.method, *same], *same), []).append(training)
        seen[training.method, *same] += 1
    return list(groups.values())


def _comparison(plan: Plan, group: Sequence[Training]) -> dict[str, Any]:
    """Return the arguments of ``compare`` that train a group; all seeds have the labels of the papers."""
    first, settings, data = group[0], plan.reproduction.settings, plan.data(group[0])
    rates, batches = _linear_grid(first, settings)
    network = preset(first.preset, method=first.method, dataset=first.data, protocol="linear")
    own = {"backbone": settings.backbone or network["backbone"], "weights": settings.weights}
    own |= {"size": settings.size or network["size"]}
    return {
        "data": tables.observed(first.labels, data),
        "methods": [training.method for training in group],
        "out": plan.reproduction.path / LINEAR_FOLDER / first.data,
        "seeds": plan.seeds,
        "grid": "full",
        "options": {each.method: {**published_options(each.method, each.data), **each.options} for each in group},
        "learning_rates": rates,
        "batch_sizes": batches,
        "epochs": settings.epochs or network["epochs"],
        "shuffle": True,
        "baseline": False,
        **(own if data.backbone != FEATURES else {}),
    }


def _measure_head(seed: SeedResult, metric: str) -> float | None:
    values = {"epoch": float(seed.epoch), "train_map": seed.train_map, "val_map": seed.score}
    return values[metric] if metric in values else (seed.test or {}).get(metric)


def _linear_grid(training: Training, settings: ReproductionSettings) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the learning rates and the batch sizes that val chooses from."""
    if settings.grid != "preset":
        return training.learning_rates, training.batch_sizes
    stated = preset(training.preset, method=training.method, dataset=training.data, protocol="linear")
    return (stated["lr"],), (stated["batch_size"],)


def describe_cost(
    plan: Plan, *, device: str = "auto", workers: int | None = None, tolerate_missing: bool = False
) -> Iterator[str]:
    """Yield what will be trained, and about how long it takes; missing weights are named, or else an error."""
    settings, execution = plan.reproduction.settings, dict[str, Any](device=device, workers=workers)
    for group in linear_groups(plan.trainings("linear"), settings):
        comparison, data = _comparison(plan, group), plan.data(group[0])
        rates, batches = _linear_grid(group[0], settings)
        heads = pluralize(plan.seeds * len(group) * max(len(rates) * len(batches), 1), "linear head")
        names, sizes = ", ".join(each.method for each in group), " and ".join(map(str, sorted(set(batches))))
        about = ""
        if data.backbone == FEATURES:
            about = f": about {format_duration(estimate_comparison(**comparison, **execution))}"
        yield f"cost      {heads} on {data.name} ({names}; batch {sizes}){about}"
        if tolerate_missing and "backbone" in comparison:
            try:
                create_backbone(comparison["backbone"], weights=comparison["weights"], size=comparison["size"])
            except LabelGapError as error:
                yield f"missing   for {heads}: {error}"
    first, left = dict[tuple[str, str], NetworkRun](), Counter[tuple[str, str]]()
    for training in plan.trainings(*NETWORKS):
        runs = network_runs(training, plan.data(training), plan.reproduction.path, settings)
        if count := count_left(training, runs, plan.seeds):
            first.setdefault((training.data, training.protocol), runs[0])
            left[training.data, training.protocol] += count
    seconds, known, missing, processor = 0.0, 0, Counter[str](), choose_device(device).type
    for kind, count in left.items():
        each, reason = _measure_network(first[kind], execution, tolerate_missing=tolerate_missing)
        seconds, known = seconds + count * (each or 0.0), known + count * (each is not None)
        missing.update({reason: count} if reason else {})
    if known:
        yield f"cost      {pluralize(known, 'network')} to train: about {format_duration(seconds)} if one at a time"
        yield f"          (from a few steps of a network of each protocol, measured on this machine: {processor})"
        if processor == "cpu" and seconds > DAY:
            yield "          Too slow on a CPU: fill fewer cells (--cells) with --seeds 1, or use a machine with a GPU"
    if unknown := left.total() - known:
        yield f"cost      {pluralize(unknown, 'network')} to train: not measured"
    for reason, count in missing.items():
        yield f"missing   for {pluralize(count, 'network')}: {reason}"


def _measure_network(run: NetworkRun, execution: dict[str, Any], *, tolerate_missing: bool) -> tuple[float | None, str]:
    """Return the seconds of a network, from a few steps, and the error of its training, "" if there is none."""
    try:
        return dry_run(run.data, run.request, **execution).seconds, ""
    except LabelGapError as error:
        if not tolerate_missing:
            raise
        if isinstance(error, UnavailableWeightsError):
            with suppress(LabelGapError):
                request = replace(run.request, weights=NO_WEIGHTS)
                return dry_run(run.data, request, **execution).seconds, str(error)
        return None, str(error)
