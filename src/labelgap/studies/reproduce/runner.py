"""``reproduce``: fill the cells of a paper's table whose data are given."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import remove_partials
from labelgap.core.lock import lock_folder
from labelgap.core.text import pluralize
from labelgap.core.trust import refuse_links
from labelgap.data.dataset import Dataset
from labelgap.studies.reproduce.linear import (
    damaged_linear_heads,
    evaluate_features,
    linear_groups,
    measure_evaluation,
    measure_head,
    train_linear,
)
from labelgap.studies.reproduce.measures import known_absents, measure_run
from labelgap.studies.reproduce.networks import network_runs, train_networks
from labelgap.studies.reproduce.results import FILE, CellResult, Reproduction, ReproductionSettings, is_reproduction
from labelgap.studies.reproduce.sources import DataSource, data_digest, open_sources, unmet_need
from labelgap.studies.reproduce.tables import Cell, PaperTable, Training, find_table, paper_tables
from labelgap.training import Run
from labelgap.training.devices import choose_device
from labelgap.training.progress import Reporter


@dataclass(frozen=True)
class Plan:
    """What a command has to train.

    Attributes:
        table: of the paper.
        cells: that are asked for and can be filled, by their training.
        missing: why the other cells that are asked for cannot be filled.
        done: how many cells the folder already has.
        damaged: files of stored heads, relative to the folder; cells of their data are filled again.
        sources: the data.
        reproduction: what the folder has.
        seeds: how many.
    """

    table: PaperTable
    cells: Mapping[Training, tuple[Cell, ...]]
    missing: Mapping[str, str]
    done: int
    sources: Mapping[str, DataSource]
    reproduction: Reproduction
    seeds: int
    damaged: tuple[str, ...] = ()

    def data(self, training: Training) -> Dataset:
        """Return the data of a training, with all labels."""
        data, _ = self.sources[training.data].data(training.protocol)
        if data is None:
            raise InputError(f"no data: give --data {training.data}=PATH.")
        return data

    def trainings(self, *protocols: str) -> list[Training]:
        """Return those of some protocols."""
        return [training for training in self.cells if training.protocol in protocols]

    def digest(self, training: Training) -> str:
        """Return a digest of a training, its data, its settings and the number of seeds."""
        parts = [training.key, data_digest(self.data(training)), asdict(self.reproduction.settings)]
        return hashlib.sha256(json.dumps([*parts, self.seeds], sort_keys=True).encode()).hexdigest()[:20]


def plan_reproduction(
    table: str,
    data: Sequence[str],
    *,
    out: str | os.PathLike[str],
    cells: Sequence[str] | None = None,
    seeds: int = 3,
    **settings: Any,
) -> Plan:
    """Check everything, and return what there is to train; writes nothing.

    Raises:
        InputError: no cell that is asked for can be filled, with the reasons.
        RunError: the folder holds something else, or has other settings.
    """
    paper_table, chosen = find_table(table), ReproductionSettings(**settings)
    asked = paper_table.select(cells)
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: at least one is needed.")
    sources = open_sources(data, paper_table)
    needs = {cell.name: unmet_need(cell, sources) for cell in asked}
    missing = {name: need for name, need in needs.items() if need is not None}
    if len(missing) == len(asked):
        reasons = "\n".join(f"  {text}" for text in describe_missing(missing))
        raise InputError(f"{table}: no cell can be filled, nothing was trained\n{reasons}")
    reproduction = _open_folder(Path(out), chosen)
    plan = Plan(paper_table, {}, missing, 0, sources, reproduction, seeds)
    open_cells: dict[Training, tuple[Cell, ...]] = {}
    done = 0
    fillable = [cell for cell in asked if cell.name not in missing]
    _check_data(plan, fillable)
    linear = dict.fromkeys(cell.training.data for cell in fillable if cell.training.protocol == "linear")
    damaged = {name: damaged_linear_heads(name, reproduction.path) for name in linear}
    for cell in fillable:
        stored, training = reproduction.cells.get((table, cell.name)), cell.training
        most = seeds if stored is None else max(seeds, len(stored.values))  # a cell with more seeds is kept
        lost = most == seeds and training.protocol == "linear" and damaged[training.data]
        if stored is not None and stored.training == replace(plan, seeds=most).digest(training) and not lost:
            done += 1
        else:
            open_cells[training] = (*open_cells.get(training, ()), cell)
    return replace(plan, cells=open_cells, done=done, damaged=tuple(chain(*damaged.values())))


def reproduce(
    table: str,
    data: Sequence[str],
    *,
    out: str | os.PathLike[str] = "runs/reproduce",
    cells: Sequence[str] | None = None,
    seeds: int = 3,
    jobs: int = 1,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Reproduction:
    """Train the cells of a table whose data are given, by the protocol of the paper, and measure them.

    A folder takes any number of tables and can be used again: a cell that it has is not trained again, nor a head or
    network that another cell or table needs as well. Results are written after every training.

    Args:
        table: name of a table; see ``paper_tables``.
        data: ``NAME=PATH`` of data sets, as images or as a file of features.
        out: the folder.
        cells: those to fill; see ``PaperTable.select``.
        seeds: how many.
        jobs: networks to train at a time.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        quiet: print nothing.
        **settings: those of ``ReproductionSettings``.
    """
    plan = plan_reproduction(table, data, out=out, cells=cells, seeds=seeds, **settings)
    return fill_cells(plan, jobs=jobs, device=device, workers=workers, quiet=quiet)


def fill_cells(
    plan: Plan, *, jobs: int = 1, device: str = "auto", workers: int | None = None, quiet: bool = False
) -> Reproduction:
    """Train what a plan has to train; the arguments are those of ``reproduce``."""
    check_jobs(jobs)
    folder, reporter = plan.reproduction.path, Reporter(quiet)
    with lock_folder(folder, "reproducing tables"):
        refuse_links(folder)
        remove_partials(folder)
        failed = dict[str, str]()
        reproduction = _open_folder(folder, plan.reproduction.settings)  # another process may have written since
        execution = {"device": device, "workers": workers, "quiet": quiet}
        reproduction.write()
        for results in _train(plan, folder, jobs, execution, failed):
            reproduction = reproduction.add(results)
            reproduction.write()
            reporter.log("; ".join(f"{each.row}/{each.column} {each.mean:.2f}" for each in results))
        return replace(reproduction, missing={**plan.missing, **failed})


def check_jobs(jobs: int) -> None:
    """Refuse a number of networks at a time that trains none."""
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: at least one is needed.")


def describe_missing(missing: Mapping[str, str]) -> Iterator[str]:
    """Yield every reason with its cells."""
    for reason in dict.fromkeys(missing.values()):
        names = [name for name, each in missing.items() if each == reason]
        columns = list(dict.fromkeys(name.partition("/")[2] for name in names))
        shown = names[0] if len(names) == 1 else ", ".join(columns)
        yield f"{pluralize(len(names), 'cell')} ({shown}): {reason}"


def _open_folder(folder: Path, settings: ReproductionSettings) -> Reproduction:
    """Return what a folder has; refuse one that holds something else, or was filled with other settings."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another --out.")
    if is_reproduction(folder):
        found = Reproduction.open(folder)
        if found.settings != settings:
            raise RunError(
                f"{folder / FILE}: it was made with {found.settings.describe()}, and this command asks for "
                f"{settings.describe()}. Repeat the settings, or choose another --out."
            )
        return found
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise RunError(f"{folder} holds something else than tables of papers: choose another --out.")
    return Reproduction(folder, settings)


def _check_data(plan: Plan, cells: Sequence[Cell]) -> None:
    """Refuse data that differ from those of the folder's cells: numbers beside each other are of the same images.

    Tables of papers that used another version of a data set, which other options load, are not compared.
    """
    given = {(each.column.protocol, each.column.data): data_digest(plan.data(each.training)) for each in cells}
    for (table, name), stored in plan.reproduction.cells.items():
        protocol, _, data = stored.column.partition(":")
        data = data.partition(":")[0]
        options = paper_tables().get(table, plan.table).data_options.get(data)
        same_version = options == plan.table.data_options.get(data)
        if same_version and stored.data != given.get((protocol, data), stored.data):
            raise RunError(
                f"{plan.reproduction.path / FILE}: {name} of {table} was trained on other data than --data {data}=… "
                "now has. Give those, or choose another --out."
            )


def _train(
    plan: Plan, folder: Path, jobs: int, execution: Mapping[str, Any], failed: dict[str, str]
) -> Iterator[list[CellResult]]:
    """Train everything, and yield the results of each training; ``failed`` gets the cells of those that fail."""
    settings, seeds = plan.reproduction.settings, plan.seeds
    for group in linear_groups(plan.trainings("linear"), settings):
        try:
            rows = train_linear(group, plan.data(group[0]), folder, settings, seeds, **execution)
        except LabelGapError as error:
            _fail(plan, group, error, failed)
            continue
        for training, row in rows.items():
            about = {"lr": row.lr, "batch_size": row.batch_size, "options": dict(row.options)}
            epochs = tuple(seed.epoch for seed in row.seeds)
            values = {
                cell: [measure_head(seed, cell.column.metric) for seed in row.seeds] for cell in plan.cells[training]
            }
            yield _results(plan, training, values, about, epochs, row.settings_tried, row.seconds, execution, failed)
    for training in plan.trainings("linear-eval"):
        try:
            found = evaluate_features(training, plan.data(training), folder, settings, **execution)
        except LabelGapError as error:
            _fail(plan, [training], error, failed)
            continue
        about = {"penalty": found.chosen.penalty, "options": {}}
        values = {cell: [measure_evaluation(found, cell.column.metric)] for cell in plan.cells[training]}
        yield _results(plan, training, values, about, (), len(found.results), found.seconds, execution, failed)
    yield from _train_networks(plan, folder, jobs, execution, failed)


def _train_networks(
    plan: Plan, folder: Path, jobs: int, execution: Mapping[str, Any], failed: dict[str, str]
) -> Iterator[list[CellResult]]:
    """Train the networks, and yield the results of each training as soon as its last one has ended."""
    trainings = plan.trainings("end-to-end", "linear-init")
    grids = {each: network_runs(each, plan.data(each), folder, plan.reproduction.settings) for each in trainings}
    for trained in train_networks(grids, plan.seeds, jobs=jobs, **execution):
        training, chosen = trained.training, trained.chosen
        runs = [run for run in trained.seeds if isinstance(run, Run)]
        try:
            if chosen is None or len(runs) < len(trained.seeds):
                raise next(run for run in trained.seeds if not isinstance(run, Run))
            values = {
                cell: [measure_run(cell, run, chosen.data, execution["device"]) for run in runs]
                for cell in plan.cells[training]
            }
        except LabelGapError as error:
            _fail(plan, [training], error, failed)
            continue
        epochs, tried = tuple(run.metrics["best_epoch"] for run in runs), len(trained.tried)
        made = _results(plan, training, values, chosen.setting, epochs, tried, trained.seconds, execution, failed)
        scores = tuple(
            tuple(each["score"] for each in run.history if each["epoch"] and "score" in each) for run in runs
        )
        rule = runs[0].config.select
        yield [replace(each, scores=scores if all(scores) else (), rule=rule) for each in made]


def _results(
    plan: Plan,
    training: Training,
    values: Mapping[Cell, Sequence[float | None]],
    setting: Mapping[str, Any],
    epochs: tuple[int, ...],
    tried: int,
    seconds: float,
    execution: Mapping[str, Any],
    failed: dict[str, str],
) -> list[CellResult]:
    device, digest, results = choose_device(execution["device"]).type, plan.digest(training), list[CellResult]()
    images = tuple(len(split) for split in plan.data(training).splits)
    data = data_digest(plan.data(training))
    for cell, measured in values.items():
        known = [value for value in measured if value is not None]
        if len(known) < len(measured):
            failed[cell.name] = "the labels do not support this measure"
            continue
        percent = tuple(value if cell.column.metric == "epoch" else 100 * value for value in known)
        name = plan.table.name, cell.row.name, cell.column.name
        result = CellResult(*name, percent, epochs, setting, tried, digest, seconds, device, images, data)
        results.append(replace(result, known_absent=known_absents(cell.column.metric, plan.data(training))))
    return results


def _fail(plan: Plan, trainings: Iterable[Training], error: Exception, failed: dict[str, str]) -> None:
    failed |= {cell.name: str(error) for training in trainings for cell in plan.cells[training]}
