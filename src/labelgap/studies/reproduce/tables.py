"""The tables of the papers: their cells, what a cell trains, what the paper printed, and the data they need."""

from __future__ import annotations

import csv
import fnmatch
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from labelgap.core.errors import InputError, UnknownNameError, describe_missing_path, nearest
from labelgap.data.dataset import Dataset
from labelgap.data.identity import DataIdentity
from labelgap.data.images import FEATURES
from labelgap.data.readers.features import is_feature_file
from labelgap.data.registry import dataset_names, describe_dataset, load
from labelgap.studies.compare.results import SkippedMethod
from labelgap.studies.compare.settings import (
    ALL_LABELS,
    KIM_RATES,
    NEED_ABSENT,
    OPTION_GRIDS,
    LabelView,
    LabelViews,
    label_view_for,
)

LABEL_SEED: Final = 1200  # of the papers' draw of one positive label per image
SPML: Final = "spml"  # the reader of the single-positive papers' arrays: Cole's NUS-WIDE exists only so
TRANSFER: Final = "transfer"
"""The protocol of rows whose features are computed by a network that was trained with the loss of the row."""
EVALUATIONS: Final = ("linear-eval", TRANSFER)
"""The protocols that fit linear classifiers with each of the paper's penalties."""
_MAX_CACHED: Final = 64  # draws of labels and digests of data that are kept: the cells of a table share them

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


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a table."""

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)  # over those of its paper for the data set
    protocol: str | None = None  # instead of end-to-end; such a row has no cells in linear columns
    metrics: tuple[str, ...] = ()  # that the row has cells for; all where empty
    data: tuple[str, ...] = ()  # sets that the row has cells for; all where empty
    best_of: tuple[str, ...] = ()  # rows of which it is the best, as the paper takes it: by the highest number
    search: Mapping[str, Sequence[float]] = field(default_factory=dict)  # options that the paper searched
    threshold: float = 0.5  # of F1
    head: str = "auto"  # one that its paper does not have: an extra row


@dataclass(frozen=True)
class Training:
    """What the cells of one training share, whichever table they are in: equal trainings are trained once."""

    data: str  # name of the data set
    protocol: str  # "linear", "linear-eval", "transfer", "end-to-end" or "linear-init"
    method: str
    options: Mapping[str, Any]  # over those of the paper for the data set
    labels: Labels  # which are shown
    preset: str  # settings of the paper
    learning_rates: tuple[float, ...]  # to choose from on val; empty for that of the preset
    batch_sizes: tuple[int, ...]  # likewise
    search: Mapping[str, Sequence[float]]  # options to choose from
    searched: Mapping[str, Sequence[float]]  # rates of the backbone and options, whose choice the authors stated
    traced: bool  # whether the losses of all training labels are recorded
    train_share: float  # of the training images
    head: str

    @property
    def key(self) -> str:
        """All of it as text."""
        return json.dumps(vars(self), sort_keys=True)

    @property
    def extra_labels(self) -> bool:
        """Whether it sees more labels than most rows of its table."""
        return self.labels == "single-positive" and self.method in ALL_LABELS | NEED_ABSENT | {"iun"}

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
    """A table of a paper."""

    name: str  # of the command
    title: str
    paper: str  # where it stands
    cells: tuple[Cell, ...]  # row by row
    note: str = ""  # what differs from the paper
    data_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Name of a data set → options of its reader that give the paper's version."""

    @property
    def datasets(self) -> list[str]:
        """The data sets of its columns, in their order."""
        return list(dict.fromkeys(cell.column.data for cell in self.cells))

    @property
    def rows(self) -> list[str]:
        """The names of its rows."""
        return list(dict.fromkeys(cell.row.name for cell in self.cells))

    def parts(self, cell: Cell) -> list[Cell]:
        """Return the cells that a cell is the best of; of any other, itself."""
        rows = cell.row.best_of or (cell.row.name,)
        return [each for each in self.cells if each.row.name in rows and each.column == cell.column]

    def select(self, patterns: Sequence[str] | None) -> list[Cell]:
        """Return the cells that a pattern names: a row, a column, ``row/column``, each with ``*`` for any text."""
        if patterns is None:
            return list(self.cells)
        if not patterns:
            raise InputError(f"--cells names no cell. Rows of {self.name}: {', '.join(self.rows)}.")
        names = {cell: (cell.row.name, cell.column.name, cell.name) for cell in self.cells}
        chosen = set[Cell]()
        for pattern in patterns:
            found = [cell for cell, own in names.items() if any(fnmatch.fnmatchcase(text, pattern) for text in own)]
            if not found:
                near = nearest(pattern, sorted({text for own in names.values() for text in own}))
                hint = f"Did you mean '{near}'?" if near else f"Rows: {', '.join(self.rows)}."
                if "," in pattern:
                    hint = "Several are separated by ';'."
                raise InputError(f"--cells {pattern}: {self.name} has no such row, column or cell. {hint}")
            chosen.update(found)
        return [cell for cell in self.cells if cell in chosen]


@cache
def paper_tables() -> dict[str, PaperTable]:
    """Return all tables by their names."""
    text = (files(__package__) / "published.csv").read_text(encoding="utf-8")
    published = {
        (line["table"], line["row"], line["column"]): Published(float(line["value"]), line["source"])
        for line in csv.DictReader(text.splitlines())
    }
    stored = _read_definitions()
    return {name: _table(name, published, **stored[name]) for name in stored if name != "images"}


def paper_images(data: str, preset: str = "") -> tuple[int, ...]:
    """Return how many images the splits of a data set have in the papers, or in that of a preset; or an empty tuple."""
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
    searched: bool = False,
    train_shares: Sequence[float] = (),
    **about: str,
) -> PaperTable:
    cells = []
    for definition, share in itertools.product(rows, train_shares or (None,)):
        own = {"name": definition["method"], **definition}
        in_paper = own.pop("searched", searched)
        row = Row(**own) if share is None else Row(**{**own, "name": f"{own['name']},share={share:g}"})
        for column in (Column(*text.split(":")) for text in columns):
            if (row.metrics and column.metric not in row.metrics) or (row.data and column.data not in row.data):
                continue
            if row.protocol and column.protocol == "linear":
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
                searched={"lr": KIM_RATES, **OPTION_GRIDS.get(row.method, {})} if in_paper else {},
                traced=column.metric.startswith("warmup"),
                train_share=1.0 if share is None else share,
                head=row.head,
            )
            cells.append(Cell(row, column, training, published.get((name, row.name, column.name))))
    return PaperTable(name, cells=tuple(cells), data_options=data_options or {}, **about)


DataSource = dict[str, tuple[Dataset, str]]
"""A data set as it was given: as "features", as "images", or both; each with its path."""


def source_data(source: DataSource, protocol: str) -> tuple[Dataset, str] | None:
    """Return the data that a protocol is trained on, and their path; features, if both will do."""
    heads = protocol in ("linear", "linear-eval") and "features" in source
    return source.get("features" if heads else "images")


def open_sources(given: Sequence[str], table: PaperTable) -> dict[str, DataSource]:
    """Open the data of ``NAME=PATH`` texts that a table has; twice a name means its images and a file of features."""
    sources: dict[str, DataSource] = {}
    known = list(dict.fromkeys(name for each in paper_tables().values() for name in each.datasets))
    for text in given:
        name, equals, place = text.partition("=")
        if not equals or not place:
            raise InputError(f"--data {text}: write NAME=PATH, e.g. --data {table.datasets[0]}=path/to/it.")
        if name not in known:
            raise UnknownNameError(f"data set of {table.name} called", name, table.datasets)
        path = Path(place).expanduser()
        if not path.exists():
            raise InputError(f"--data {text}: {describe_missing_path(path)}")
        if name not in table.datasets:
            continue
        source, kind = sources.setdefault(name, {}), "features" if is_feature_file(path) else "images"
        if kind in source:
            before = source[kind][1]
            raise InputError(f"--data {text}: the {kind} of {name} are given already, {before}. Leave one out.")
        options = table.data_options.get(name, {})
        source[kind] = load(FEATURES, path) if kind == "features" else _open_images(name, path, options), place
    return sources


def _open_images(name: str, path: Path, options: Mapping[str, str]) -> Dataset:
    if name not in dataset_names() or describe_dataset(SPML).recognizes(path):
        return load(path)
    return load(name, path, **options) if path.is_dir() or describe_dataset(name).recognizes(path) else load(path)


def unmet_need(cell: Cell, sources: Mapping[str, DataSource], pretrained: Mapping[str, Any]) -> str | None:
    """Return what a cell cannot be filled without: data or a network not given, or a part that it lacks; else None."""
    training, name = cell.training, cell.column.data
    source = sources.get(name)
    if source is None:
        return f"no data: give --data {name}=PATH"
    if training.protocol == TRANSFER and training.method not in pretrained:
        return f"no network trained with this loss: give --pretrained {training.method}=RUN"
    if (found := source_data(source, training.protocol)) is None:
        given = f"{source['features'][1]} holds features, and {training.protocol} trains on images"
        return f"{given}: add a second --data {name}=PATH, of the images"
    data, path = found
    for split in ("val", "test"):
        if getattr(data, split) is None and not (split == "val" and training.protocol in EVALUATIONS):
            return f"{path} has no {split} images"
    if training.labels != "as-given" and not data.train.evaluation_labels.complete:
        return f"{path}: not every label of train is known, and the labels that training sees are drawn from all"
    if data.test is not None and cell.column.metric == "pointing" and data.test.boxes is None:
        return f"{path} has no boxes (Annotations), and the pointing game needs them"
    view = shown_labels(training.method, training.labels, data)
    return view.reason if isinstance(view, SkippedMethod) else None


@lru_cache(maxsize=_MAX_CACHED)
def data_digest(data: Dataset) -> str:
    """Return a digest of images and labels."""
    return DataIdentity.of(data).digest()


@lru_cache(maxsize=_MAX_CACHED)
def shown_labels(method: str, labels: Labels, data: Dataset) -> LabelView | SkippedMethod:
    """Return the labels that a method sees in its paper, or why it cannot run."""
    return label_view_for(method, LabelViews(observed(labels, data), 1, None, LABEL_SEED))


@lru_cache(maxsize=_MAX_CACHED)
def observed(labels: Labels, data: Dataset) -> Dataset:
    """Return the data with the labels of the paper: one positive of each image, all, or those that there are."""
    if labels == "single-positive":
        return data.observe(positives=1, negatives=0, seed=LABEL_SEED)
    return data.reveal() if labels == "all" else data


@lru_cache(maxsize=_MAX_CACHED)
def shown_images(data: Dataset, share: float) -> Dataset:
    """Return the data with a share of the training images, drawn once as their labels are."""
    return data if share == 1 else data.sample(share, LABEL_SEED)
