"""The results of the papers' tables in a folder: ``reproduce.json``, and ``results.csv`` with the papers' numbers."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from labelgap.core.errors import InputError
from labelgap.core.files import write_json, write_text
from labelgap.studies.compare.results import STRICT, Count, Seconds, Share, Text
from labelgap.studies.reproduce.tables import Cell, paper_tables
from labelgap.studies.result_files import csv_text, read_result, writing_results

FILE: Final = "reproduce.json"
TABLE: Final = "results.csv"
FILES: Final = (FILE, TABLE)
FORMAT: Final = 1
GRIDS: Final = ("paper", "preset")


@dataclass(frozen=True)
class ReproductionSettings:
    """Where a reproduction differs from the papers: the same for all cells of a folder.

    Attributes:
        grid: "paper": what the paper searched, chosen on val; "preset": the one setting of its preset.
        backbone: instead of the paper's network.
        weights: a file of its weights.
        epochs: instead of the paper's, of every phase.
        size: of the images, instead of the paper's.
        lr: of head and backbone where a whole network is trained, instead of the paper's.
        batch_size: where a whole network is trained, instead of the paper's.
    """

    __pydantic_config__ = STRICT

    grid: Literal["paper", "preset"] = "paper"
    backbone: Text | None = None
    weights: Text | None = None
    epochs: Annotated[int, Field(ge=1)] | None = None
    size: Annotated[int, Field(ge=1)] | None = None
    lr: Annotated[float, Field(gt=0)] | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.grid not in GRIDS:
            raise InputError(f"--grid {self.grid}: it is {' or '.join(GRIDS)}.")
        if self.lr is not None and not self.lr > 0:
            raise InputError(f"--lr {self.lr}: it is a number above 0.")
        for name in ("epochs", "size", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} {value}: it is a number from 1.")

    @property
    def changed(self) -> dict[str, Any]:
        """What differs from the papers."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value not in (None, "paper")}

    def describe(self) -> str:
        """Return what differs from the papers in words."""
        return ", ".join(f"{name} {value}" for name, value in self.changed.items()) or "the papers' settings"


@dataclass(frozen=True)
class CellResult:
    """Our numbers of one cell.

    Attributes:
        table: its name.
        row: its name.
        column: its name.
        values: one for each seed, in percent except for epochs.
        epochs: the epoch that was kept, for each seed.
        setting: learning rate, batch size and options, at the chosen setting.
        settings_tried: how many val chose from.
        training: digest of what was trained on which data, with how many seeds: the same is not trained again.
        seconds: of the training, shared with other cells of it.
        device: "cpu", "cuda" or "mps".
        images: of train, val and test; val is left out where there is none.
        data: digest of images and labels.
        known_absent: known absent labels of the classes that the mAP is over; None where every label is known.
        scores: of val after each epoch of a network, 0 to 1, for each seed; empty where val was not scored.
        rule: that selected the epoch of a network; see ``training.selection``.
    """

    __pydantic_config__ = STRICT

    table: Text
    row: Text
    column: Text
    values: Annotated[tuple[float, ...], Field(min_length=1, max_length=10_000)]
    epochs: tuple[Count, ...]
    setting: Mapping[str, Any]
    settings_tried: Count
    training: Text
    seconds: Seconds
    device: Text
    images: tuple[Count, ...]
    data: Text
    known_absent: Count | None = None
    scores: tuple[tuple[Share, ...], ...] = ()
    rule: Text = ""

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


class _Stored(BaseModel):
    """``reproduce.json``."""

    model_config = STRICT

    format: Literal[1]
    settings: ReproductionSettings
    cells: tuple[CellResult, ...]


@dataclass(frozen=True)
class Reproduction:
    """Tables of papers in a folder, as far as they are filled.

    Attributes:
        path: the folder.
        settings: where they differ from the papers.
        cells: our numbers, by table and cell.
        missing: why cells of the last command are empty; it is not stored.
    """

    path: Path
    settings: ReproductionSettings = field(default_factory=ReproductionSettings)
    cells: Mapping[tuple[str, str], CellResult] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> list[str]:
        """The tables that have results, in the order of the papers."""
        filled = {table for table, _ in self.cells}
        return [name for name in paper_tables() if name in filled]

    def results(self, table: str) -> list[tuple[Cell, CellResult]]:
        """Return the filled cells of a table, column by column."""
        found = [(cell, self.cells.get((table, cell.name))) for cell in paper_tables()[table].cells]
        columns = list(dict.fromkeys(cell.column for cell, _ in found))
        filled = [(cell, result) for cell, result in found if result is not None]
        return sorted(filled, key=lambda pair: columns.index(pair[0].column))

    def add(self, results: list[CellResult]) -> Reproduction:
        """Return it with more results."""
        return replace(self, cells={**self.cells, **{result.name: result for result in results}})

    def write(self) -> None:
        """Write ``reproduce.json``, ``results.csv`` and the manifest."""
        stored = {"settings": asdict(self.settings), "cells": [asdict(cell) for cell in self.cells.values()]}
        rows = [_csv_row(cell, result) for table in self.tables for cell, result in self.results(table)]
        with writing_results(self.path, FILES):
            write_json(self.path / FILE, {"format": FORMAT, **stored})
            write_text(self.path / TABLE, csv_text(_HEADERS, rows))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Reproduction:
        """Read the folder of a reproduction."""
        folder = Path(path)
        about = {"what": "a folder of papers' tables", "remedy": "Choose another --out."}
        stored = read_result(folder / FILE, _Stored, format=FORMAT, **about)
        return cls(folder, stored.settings, {cell.name: cell for cell in stored.cells})


_HEADERS: Final = (
    *("table", "row", "data", "protocol", "metric", "ours", "std", "seeds", "paper", "difference", "source"),
    *("lr", "batch_size", "options", "settings_tried", "epochs", "values", "device", "seconds", "images"),
    "known_absent",
)


def _csv_row(cell: Cell, result: CellResult) -> list[object]:
    published = cell.published
    return [
        *(result.table, result.row, cell.column.data, cell.training.protocol, cell.column.metric),
        *(f"{result.mean:.2f}", "" if result.deviation is None else f"{result.deviation:.2f}", len(result.values)),
        *(("", "", "") if published is None else (f"{published.value:g}", _signed(result, cell), published.source)),
        *(result.setting.get("lr", ""), result.setting.get("batch_size", "")),
        *(json.dumps(result.setting["options"]), result.settings_tried, " ".join(map(str, result.epochs))),
        *(
            " ".join(f"{value:.2f}" for value in result.values),
            result.device,
            f"{result.seconds:.0f}",
            format_images(result.images),
        ),
        "" if result.known_absent is None else result.known_absent,
    ]


def _signed(result: CellResult, cell: Cell) -> str:
    return "" if cell.published is None else f"{round(result.mean - cell.published.value, 2) + 0.0:.2f}"


def format_images(images: Sequence[int]) -> str:
    """Return numbers of images of the splits.

    Example:
        >>> format_images((4574, 1143, 5823))
        '4,574/1,143/5,823'
    """
    return "/".join(f"{count:,}" for count in images)


def is_reproduction(folder: Path) -> bool:
    """Return whether a folder holds tables of papers."""
    return (folder / FILE).is_file()
