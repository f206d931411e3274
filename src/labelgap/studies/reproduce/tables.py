"""The tables of the papers: which cells they have, what a cell trains, and the number that the paper printed.

``tables.toml`` defines the tables, ``published.csv`` has the numbers with their sources. A cell whose number is not
known has none.
"""

from __future__ import annotations

import csv
import fnmatch
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

from labelgap.core.errors import InputError, UnknownNameError, nearest

METRICS: Final = {
    "map": "test mAP",
    "val_map": "val mAP",
    "train_map": "train mAP",
    "map_samples": "test mAP per image",
    "f1_micro": "micro-F1",
    "f1_macro": "macro-F1",
    "epoch": "best epoch",
    "pointing": "pointing game",
    "accuracy": "test accuracy",
    "best_accuracy": "test accuracy, the best of all penalties",
    "positive_precision": "precision of positive pseudo-labels",
    **{f"g{number}": f"test mAP of group {number}" for number in range(1, 6)},
    **{f"warmup_{label}": f"highest loss in epoch 1, {label.upper()}" for label in ("tp", "tn", "fn")},
}
"""What a cell can measure, with its name in reports."""

Labels = Literal["single-positive", "all", "as-given"]


@dataclass(frozen=True)
class Published:
    """A number of a paper, in percent except for epochs, and where it stands."""

    value: float
    source: str


@dataclass(frozen=True)
class Column:
    """A column of a table: how to train, on what, and what to measure."""

    protocol: str
    data: str
    metric: str = "map"

    @property
    def name(self) -> str:
        """``PROTOCOL:DATA``, and ``:METRIC`` if it is not the test mAP."""
        return ":".join([self.protocol, self.data, *([] if self.metric == "map" else [self.metric])])

    @classmethod
    def parse(cls, text: str) -> Column:
        """Return the column of a name."""
        return cls(*text.split(":"))


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a table.

    Attributes:
        name: in the table.
        method: that is trained.
        options: of the method, over those of its paper for the data set.
        protocol: instead of end-to-end; such a row has no cells in linear columns.
        metrics: that the row has cells for; all where empty.
        search: options that the paper searched, with their values.
        threshold: of F1.
    """

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    protocol: str | None = None
    metrics: tuple[str, ...] = ()
    search: Mapping[str, Sequence[float]] = field(default_factory=dict)
    threshold: float = 0.5


@dataclass(frozen=True)
class Training:
    """What the cells of one training share, whichever table they are in: equal trainings are trained once.

    Attributes:
        data: name of the data set.
        protocol: "linear", "linear-eval", "end-to-end" or "linear-init".
        method: its name.
        options: over those of the paper for the data set.
        labels: which labels are shown.
        preset: settings of the paper.
        learning_rates: to choose from on val; empty for that of the preset.
        batch_sizes: likewise.
        search: options to choose from.
        traced: whether the losses of all training labels are recorded.
    """

    data: str
    protocol: str
    method: str
    options: Mapping[str, Any]
    labels: Labels
    preset: str
    learning_rates: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    search: Mapping[str, Sequence[float]]
    traced: bool

    @property
    def key(self) -> str:
        """All of it as text."""
        return json.dumps(vars(self), sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, eq=False)
class Cell:
    """One number of a table: a row, a column, how it is trained, and what the paper has there, if that is known."""

    row: Row
    column: Column
    training: Training
    published: Published | None

    @property
    def name(self) -> str:
        """``ROW/COLUMN``."""
        return f"{self.row.name}/{self.column.name}"


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper.

    Attributes:
        name: of the command.
        title: what it shows.
        paper: where it stands.
        cells: row by row.
        note: what differs from the paper.
        data_options: options of the readers that give the paper's version of a data set, by its name.
    """

    name: str
    title: str
    paper: str
    cells: tuple[Cell, ...]
    note: str = ""
    data_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def datasets(self) -> list[str]:
        """The data sets of its columns, in their order."""
        return list(dict.fromkeys(cell.column.data for cell in self.cells))

    def select(self, patterns: Sequence[str] | None) -> list[Cell]:
        """Return the cells that a pattern names: a row, a column, ``row/column``, each with ``*`` for any text.

        Example:
            >>> [cell.name for cell in find_table("cole-table2").select(["role"])][:2]
            ['role/linear:voc2012:train_map', 'role/linear:coco2014:train_map']
            >>> len(find_table("cole-table1").select(["*/linear:voc2012"]))
            9
        """
        if patterns is None:
            return list(self.cells)
        if not patterns:
            raise InputError(f"--cells names no cell. Rows of {self.name}: {', '.join(self.rows)}.")
        chosen: dict[str, Cell] = {}
        for pattern in patterns:
            found = [cell for cell in self.cells if _matches(cell, pattern)]
            if not found:
                names = {part for cell in self.cells for part in (cell.row.name, cell.column.name, cell.name)}
                near = nearest(pattern, sorted(names))
                hint = f"Did you mean '{near}'?" if near else f"Rows: {', '.join(self.rows)}."
                if "," in pattern:
                    hint = "Several are separated by ';'."
                raise InputError(f"--cells {pattern}: {self.name} has no such row, column or cell. {hint}")
            chosen |= {cell.name: cell for cell in found}
        return [cell for cell in self.cells if cell.name in chosen]

    @property
    def rows(self) -> list[str]:
        """The names of its rows."""
        return list(dict.fromkeys(cell.row.name for cell in self.cells))


def _matches(cell: Cell, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for text in (cell.row.name, cell.column.name, cell.name))


@cache
def paper_tables() -> dict[str, PaperTable]:
    """Return all tables by their names.

    Example:
        >>> list(paper_tables())[:3]
        ['cole-table1', 'cole-table2', 'cole-coco-role']
    """
    published, stored = _read_published(), _read_definitions()
    return {name: _table(name, published, **stored[name]) for name in stored if name != "images"}


def paper_images(data: str, preset: str = "") -> tuple[int, ...]:
    """Return how many images the splits of a data set have in the papers, or in that of a preset; or an empty tuple.

    Example:
        >>> paper_images("voc2012"), paper_images("nuswide", "kobayashi2023")
        ((4574, 1143, 5823), (125448, 83898))
    """
    images = _read_definitions()["images"]
    return tuple(images.get(f"{data}:{preset}", images.get(data, ())))


def find_table(name: str) -> PaperTable:
    """Return a table; an unknown name is an error that names the nearest."""
    tables = paper_tables()
    if name not in tables:
        raise UnknownNameError("table", name, tables, "`labelgap reproduce` lists all tables.")
    return tables[name]


@cache
def _read_definitions() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "tables.toml").read_text(encoding="utf-8"))


def _read_published() -> dict[tuple[str, str, str], Published]:
    text = (files(__package__) / "published.csv").read_text(encoding="utf-8")
    lines = csv.DictReader(text.splitlines())
    return {
        (line["table"], line["row"], line["column"]): Published(float(line["value"]), line["source"]) for line in lines
    }


def _table(
    name: str,
    published: Mapping[tuple[str, str, str], Published],
    *,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    preset: str,
    labels: Labels = "single-positive",
    learning_rates: Sequence[float] = (),
    batch_sizes: Sequence[int] = (),
    data_options: Mapping[str, Mapping[str, str]] | None = None,
    **about: str,
) -> PaperTable:
    cells = []
    for definition in rows:
        row = Row(**{"name": definition["method"], **definition})
        for column in map(Column.parse, columns):
            if (row.metrics and column.metric not in row.metrics) or (row.protocol and column.protocol == "linear"):
                continue
            training = Training(
                data=column.data,
                protocol=row.protocol or column.protocol,
                method=row.method,
                options=dict(row.options),
                labels="as-given" if column.data == "openimages" else labels,
                preset=preset,
                learning_rates=tuple(learning_rates),
                batch_sizes=tuple(batch_sizes),
                search=dict(row.search),
                traced=column.metric.startswith("warmup"),
            )
            cells.append(Cell(row, column, training, published.get((name, row.name, column.name))))
    return PaperTable(name, cells=tuple(cells), data_options=data_options or {}, **about)
