"""The results of the papers' tables: what a cell measures of a run; ``reproduce.json``, and ``results.csv``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import write_text
from labelgap.data.dataset import Dataset
from labelgap.inference.localization import pointing_game
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, Revisions
from labelgap.labels.table import class_groups
from labelgap.metrics import f1, revision_quality
from labelgap.metrics.validation import supports_accuracy
from labelgap.studies.reproduce.tables import Cell, paper_tables
from labelgap.studies.study import Count, Document, Seconds, Share, Stored, Text, csv_text
from labelgap.training import Run
from labelgap.training.run_folder import read_predictions

FILE: Final = "reproduce.json"
TABLE: Final = "results.csv"
FILES: Final = (FILE, TABLE)
GRIDS: Final = ("stated", "paper", "preset")


@dataclass(frozen=True)
class ReproductionSettings(Stored):
    """Where a reproduction differs from the papers: the same for all cells of a folder."""

    grid: Literal["stated", "paper", "preset"] = "stated"
    """What val chooses from: what a paper searched whose choice is not known, all that it searched, or nothing."""
    backbone: Text | None = None
    weights: Text | None = None  # a file of the backbone's weights
    epochs: Annotated[int, Field(ge=1)] | None = None  # of every phase
    size: Annotated[int, Field(ge=1)] | None = None  # of the images
    lr: Annotated[float, Field(gt=0)] | None = None  # of head and backbone where a whole network is trained
    batch_size: Annotated[int, Field(ge=1)] | None = None  # where a whole network is trained

    def __post_init__(self) -> None:
        if self.grid not in GRIDS:
            raise InputError(f"--grid {self.grid}: it must be {', '.join(GRIDS[:-1])} or {GRIDS[-1]}.")
        for name in ("epochs", "size", "lr", "batch_size"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"--{name.replace('_', '-')} {value}: it must be a number above 0.")

    def describe(self) -> str:
        """Return what differs from the papers in words."""
        return ", ".join(f"{name} {value}" for name, value in self.changed.items()) or "the papers' settings"

    @property
    def changed(self) -> dict[str, Any]:
        """What differs from the papers."""
        return {name: value for name, value in vars(self).items() if value not in (None, "stated")}


@dataclass(frozen=True)
class CellResult(Stored):
    """Our numbers of one cell."""

    table: Text
    row: Text
    column: Text
    values: Annotated[tuple[float, ...], Field(min_length=1, max_length=10_000)]  # of the seeds, in percent or epochs
    epochs: tuple[Count, ...]  # that were kept, for each seed
    setting: Mapping[str, Any]  # learning rate, batch size and options that were chosen
    settings_tried: Count  # how many val chose from
    training: Text  # digest of what was trained on which data, with how many seeds: the same is not trained again
    seconds: Seconds  # of the training, shared with other cells of it
    device: Text  # "cpu", "cuda" or "mps"
    images: tuple[Count, ...]  # of train, val and test; val is left out where there is none
    data: Text  # digest of images and labels
    known_absent: Count | None = None  # labels of the classes that the mAP is over; None where every label is known
    scores: tuple[tuple[Share, ...], ...] = ()  # of val after each epoch of a network, for each seed, where val scored
    rule: Text = ""  # that selected the epoch of a network; see ``training.selection``

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds; None with one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def name(self) -> tuple[str, str]:
        """The table, and ``ROW/COLUMN``."""
        return self.table, f"{self.row}/{self.column}"


@dataclass(frozen=True)
class Reproduction(Document):
    """Tables of papers in a folder, as far as they are filled."""

    FILE = FILE
    KIND = "a folder of papers' tables"
    REMEDY = "Choose another --out."
    NOT_STORED = frozenset({"path", "missing"})

    settings: ReproductionSettings = field(default_factory=ReproductionSettings)
    cells: tuple[CellResult, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # why cells of the last command are empty

    @property
    def by_name(self) -> dict[tuple[str, str], CellResult]:
        """The cells, by table and ``ROW/COLUMN``."""
        return {cell.name: cell for cell in self.cells}

    @property
    def tables(self) -> list[str]:
        """The tables that have results, in the order of the papers."""
        filled = {cell.table for cell in self.cells}
        return [name for name in paper_tables() if name in filled]

    def results(self, table: str) -> list[tuple[Cell, CellResult]]:
        """Return the filled cells of a table, column by column."""
        results, cells = self.by_name, paper_tables()[table].cells
        columns = list(dict.fromkeys(cell.column for cell in cells))
        filled = [(cell, results[table, cell.name]) for cell in cells if (table, cell.name) in results]
        return sorted(filled, key=lambda pair: columns.index(pair[0].column))

    def add(self, results: Sequence[CellResult]) -> Reproduction:
        """Return it with more results, and with those of rows that are the best of others."""
        found = {**self.by_name, **{each.name: each for each in results}}
        for table in paper_tables().values():
            for cell in (each for each in table.cells if each.row.best_of):
                parts = [found.get((table.name, part.name)) for part in table.parts(cell)]
                if known := [part for part in parts if part is not None]:
                    best = max(known, key=lambda part: part.mean)
                    setting = {**best.setting, "options": {**best.setting["options"], "method": best.row}}
                    own = replace(best, row=cell.row.name, setting=setting)
                    found |= {own.name: own} if len(known) == len(parts) else {}
        return replace(self, cells=tuple(found.values()))

    def write(self) -> None:
        """Write ``reproduce.json``, ``results.csv`` and the manifest."""
        rows = [_csv_row(cell, result) for table in self.tables for cell, result in self.results(table)]
        with self.writing([TABLE]):
            write_text(self.path / TABLE, csv_text(_HEADERS, rows))


_HEADERS: Final = (
    *("table", "row", "data", "protocol", "metric", "ours", "std", "seeds", "paper", "difference", "source"),
    *("lr", "batch_size", "options", "settings_tried", "epochs", "values", "device", "seconds", "images"),
    "known_absent",
)


def _csv_row(cell: Cell, result: CellResult) -> list[object]:
    published = cell.published
    difference = "" if published is None else f"{round(result.mean - published.value, 2) + 0.0:.2f}"
    return [
        *(result.table, result.row, cell.column.data, cell.training.protocol, cell.column.metric),
        *(f"{result.mean:.2f}", "" if result.deviation is None else f"{result.deviation:.2f}", len(result.values)),
        *(("", "", "") if published is None else (f"{published.value:g}", difference, published.source)),
        *(result.setting.get("lr", ""), result.setting.get("batch_size", "")),
        *(json.dumps(result.setting["options"]), result.settings_tried, " ".join(map(str, result.epochs))),
        *(" ".join(f"{value:.2f}" for value in result.values), result.device, f"{result.seconds:.0f}"),
        format_images(result.images),
        "" if result.known_absent is None else result.known_absent,
    ]


def format_images(images: Sequence[int]) -> str:
    """Return numbers of images of the splits, e.g. "4,574/1,143/5,823"."""
    return "/".join(f"{count:,}" for count in images)


def measure_run(cell: Cell, run: Run, data: Dataset, device: str = "auto") -> float | None:
    """Return the metric of a cell, of a finished run with the data that it has seen; None where they have none."""
    metric, metrics = cell.column.metric, run.metrics
    if metric == "epoch":
        return float(metrics["best_epoch"])
    if metric in ("map", "map_samples"):
        return _value(metrics["test"][metric])
    if metric in ("val_map", "train_map"):
        return _value((metrics.get(metric.removesuffix("_map")) or {}).get("map"))
    if metric.startswith("f1"):
        test, average = data.split("test"), cast(Any, metric.removeprefix("f1_"))
        scores = read_predictions(run.path, "test", test.labels.images, data.classes)
        if scores is None:
            raise RunError(f"{run.path} has no predictions of the test images.")
        return float(f1(scores, test.evaluation_labels.to_dense(), threshold=cell.row.threshold, average=average))
    if metric == "pointing":
        return pointing_game(run, data.split("test"), device=device).hit_rate
    if metric == "observed_labels":
        return float(sum(data.train.labels.counts().total[:2]))
    if metric.endswith("_precision"):  # the share of the positive or negative pseudo-labels that are right
        truth, table = data.train.truth, run.revisions.to_table()
        state = PRESENT if metric == "positive_precision" else ABSENT
        made = Revisions.from_table(table.filter(table["value"].to_numpy() == state))
        return None if truth is None else revision_quality(data.train.labels, truth, made).precision
    if metric.startswith("warmup"):
        return warmup_share(run.trace, metric.removeprefix("warmup_"))
    group = class_groups(data.train.labels)[int(metric.removeprefix("g")) - 1]
    each = [metrics["test"]["average_precision"][data.classes[column]] for column in group.tolist()]
    known = [value for value in each if value is not None]
    return float(np.mean(known)) if known else None


def known_absent(metric: str, data: Dataset) -> int | None:
    """Return how many absent labels are known of the classes that a mAP of test is over; None where all labels are."""
    test, group = data.test, metric.removeprefix("g")
    if test is None or test.evaluation_labels.complete or not (metric == "map" or group.isdigit()):
        return None
    counts = test.evaluation_labels.counts()
    absent = np.where(supports_accuracy(counts.present, counts.absent, len(test)), counts.absent, 0)
    return int((absent[class_groups(data.train.labels)[int(group) - 1]] if group.isdigit() else absent).sum())


def _value(value: Any) -> float | None:
    return None if value is None else float(value)


def warmup_share(trace: dict[str, NDArray[Any]], kind: str) -> float | None:
    """Return the share of labels, "tp", "tn" or "fn", whose highest loss is in epoch 1 (Kim et al. 2022, table 1)."""
    if not trace:
        return None
    observed, truth = trace["observed"], trace["truth"]
    state = {"tp": PRESENT, "tn": ABSENT, "fn": PRESENT}[kind]
    chosen = (observed == (PRESENT if kind == "tp" else UNKNOWN)) & (truth == state)
    return first_epoch_share(trace["loss"][:, chosen])


def first_epoch_share(losses: NDArray[Any]) -> float | None:
    """Return the share of labels whose highest loss ``(E, R)`` is in the first epoch; NaN where it was not seen."""
    losses = losses[:, np.isfinite(losses).any(axis=0)]
    return float((np.nanargmax(losses, axis=0) == 0).mean()) if losses.size else None
