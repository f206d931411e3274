"""Labels that are evidence and no observation: of a teacher, a language model, an older classifier, or other people.

Each source says of some labels how probable it thinks that they are present. What it says is kept beside the observed
labels with its name, and how much it is worth is asked of the known labels (``PriorSource``, ``audit.calibration``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.core.errors import InputError, describe_missing_path, nearest
from labelgap.core.findings import Finding, Note
from labelgap.core.special import logit
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.readers.image_paths import match_name, normalize_name, without_suffix
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.io.dialect import detect_dialect, open_text, read_records
from labelgap.labels.io.parse import LIST_SYNONYMS
from labelgap.labels.io.table_file import ProblemList

SUFFIXES: Final = (".csv", ".parquet", ".jsonl")
_NAMES: Final = ("source", "image", "class")
_ROLES: Final = (*_NAMES, "probability", "score", "present", "absent", "split")
_SYNONYMS: Final = {"annotator": "source"}
_BLANK: Final = ("", "na", "n/a", "nan", "null")
_LOWEST: Final = 1e-3
"""A probability below it, or as near to 1, counts as this: a source is never certain."""
_MAX_DEVIATION: Final = 8.0
_LEAST_DEVIATION: Final = 1e-4
"""Of the log-odds of a class; a source that says one number of all images deviates by rounding alone."""
_MIN_ABSENTS: Final = 10
"""With as many known absent labels a source is compared on these, else on the unknown ones."""


@dataclass(frozen=True)
class PriorSource(Finding, topic="labels"):
    """What a source says of the known labels: whether it is worth anything."""

    source: str
    images: int  # of these data, of which it says something
    classes: int
    present: float  # share of the known present labels that it calls present; NaN where it says nothing of any
    absent: float  # the same of the known absent ones
    unknown: float
    ranked: float  # how often it gives a known present label a higher score than another one; 0.5 is chance
    error: float  # standard error of that

    @property
    def is_informative(self) -> bool:
        """Whether it ranks known present labels higher than chance does."""
        return self.ranked - 1.96 * self.error > 0.5

    def __str__(self) -> str:
        if not self.images:
            return f"prior {self.source}: it says nothing of these data"
        said = [("present", self.present), ("absent", self.absent), ("unknown", self.unknown)]
        shares = ", ".join(f"{share:.0%} of the {what}" for what, share in said if not math.isnan(share))
        worth = f"ranks known present labels above others in {self.ranked:.0%}"
        if math.isnan(self.ranked):
            worth = (
                "no class has a known present label and another one that it scores, so nothing tells what it is worth"
            )
        elif not self.is_informative:
            worth += ": it says nothing, as far as the known labels tell"
        size = f"{pluralize(self.images, 'image')}, {pluralize(self.classes, 'class', 'classes')}"
        return f"prior {self.source}: {size}; it calls {shares} labels present; {worth}"


@dataclass(frozen=True, eq=False)
class Prior:
    """M statements: a source gives a probability that a class is present in an image.

    Attributes:
        sources: their names.
        images: image name → number.
        classes: those of the data.
        source, image, column: ``(M,)`` numbers.
        probability: ``(M,)`` from 0 to 1.
    """

    sources: tuple[str, ...]
    images: Mapping[str, int]
    classes: tuple[str, ...]
    source: NDArray[np.int64]
    image: NDArray[np.int64]
    column: NDArray[np.int64]
    probability: NDArray[np.float32]

    def digest(self) -> str:
        """Return a digest of everything that is said, by which a run to resume recognizes it."""
        names = "\0".join([*self.sources, "", *self.images, "", *self.classes])
        digest = hashlib.sha256(names.encode("utf-8", "surrogatepass"))
        for part in (self.source, self.image, self.column, self.probability):
            digest.update(part.tobytes())
        return digest.hexdigest()

    @cached_property
    def _labels(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The statements in the order of their labels: the labels as ``image · K + class``, and the statements."""
        label = self.image * len(self.classes) + self.column
        order = np.argsort(label, kind="stable")
        return label[order], order

    def of_label(self, image: str, class_name: str) -> dict[str, float]:
        """Return which source says what of a label."""
        if image not in self.images or class_name not in self.classes:
            return {}
        labels, order = self._labels
        label = self.images[image] * len(self.classes) + self.classes.index(class_name)
        own = order[slice(*np.searchsorted(labels, [label, label + 1]))]
        return {self.sources[self.source[each]]: float(self.probability[each]) for each in own}

    def of_table(self, source: str, table: LabelTable) -> NDArray[np.float32]:
        """Return what a source says of the images of a table, ``(N, K)``; NaN where it says nothing."""
        place = np.full(len(self.images), -1)
        for row, name in enumerate(table.images):
            if name in self.images:
                place[self.images[name]] = row
        result = np.full((len(table), len(self.classes)), np.nan, dtype=np.float32)
        mine = (self.source == self.sources.index(source)) & (place[self.image] >= 0)
        result[place[self.image[mine]], self.column[mine]] = self.probability[mine]
        return result

    def standardized(self, source: str, tables: Mapping[str, LabelTable]) -> dict[str, NDArray[np.float32]]:
        """Return the log-odds of a source per split, less the mean of each class and in its deviations; 0 for none.

        Between classes they are not comparable: a teacher knows some names better than others.
        """
        said = {name: self.of_table(source, table) for name, table in tables.items()}
        odds = {name: logit(np.clip(each, _LOWEST, 1 - _LOWEST)) for name, each in said.items()}
        whole = np.concatenate(list(odds.values()))
        count = np.maximum((~np.isnan(whole)).sum(axis=0), 1)
        mean = np.nansum(whole, axis=0) / count
        deviation = np.sqrt(np.nansum((whole - mean) ** 2, axis=0) / count)
        scale = np.where(deviation > _LEAST_DEVIATION, deviation, np.inf)
        return {
            name: np.clip(np.nan_to_num((each - mean) / scale), -_MAX_DEVIATION, _MAX_DEVIATION).astype(np.float32)
            for name, each in odds.items()
        }

    def findings(self, table: LabelTable) -> Iterator[Finding]:
        """Yield what each source is worth on the labels of a table, and how far sources agree."""
        from labelgap.metrics.classification import cohen_kappa

        said = {name: self.of_table(name, table) for name in self.sources}
        codes = table.to_dense()
        for name, probability in said.items():
            yield _describe_source(name, probability, codes)
        for one, other in combinations(self.sources, 2):
            both = ~np.isnan(said[one]) & ~np.isnan(said[other])
            if both.any():
                said_both = 2 * (said[one][both] >= 0.5) + (said[other][both] >= 0.5)
                counts = np.bincount(said_both, minlength=4).reshape(2, 2)
                kappa = cohen_kappa(counts)
                shown = "always of one opinion" if kappa is None else f"κ {kappa:.2f}"
                agree = np.trace(counts) / counts.sum()
                yield Note(f"prior {one} and {other} agree in {agree:.0%} of {counts.sum():,} labels ({shown})")


def _describe_source(name: str, probability: NDArray[np.float32], codes: NDArray[np.int8]) -> PriorSource:
    from scipy.stats import rankdata  # slow to import

    is_said = ~np.isnan(probability)
    of_state = [probability[is_said & (codes == state)] for state in (PRESENT, ABSENT, UNKNOWN)]
    present, absent, unknown = (float(np.mean(each >= 0.5)) if len(each) else math.nan for each in of_state)
    other = ABSENT if (is_said & (codes == ABSENT)).sum() >= _MIN_ABSENTS else UNKNOWN
    wins = pairs = variance = 0.0
    for column in range(codes.shape[1]):  # within a class: sources differ in how often they say each
        values, states = (each[is_said[:, column], column] for each in (probability, codes))
        n, m = np.sum(states == PRESENT), np.sum(states == other)
        if n and m:
            ranks = rankdata(np.concatenate([values[states == PRESENT], values[states == other]]))
            wins += ranks[:n].sum() - n * (n + 1) / 2
            pairs, variance = pairs + n * m, variance + n * m * (n + m + 1) / 12
    images, classes = int(is_said.any(axis=1).sum()), int(is_said.any(axis=0).sum())
    ranked, error = (wins / pairs, math.sqrt(variance) / pairs) if pairs else (math.nan, math.nan)
    return PriorSource(name, images, classes, present, absent, unknown, float(ranked), float(error))


def read_prior(path: Path, classes: Sequence[str], images: Collection[str]) -> tuple[Prior, list[Finding]]:
    """Read what sources say: a file, or a folder of them; all problems of a file are in one error.

    A file is CSV, Parquet or JSON lines. Long: ``image, class, probability``. Wide: ``image`` and a column of
    probabilities per class; blank: the source says nothing. Tags: ``image, present[, absent]``, lists of names; without
    ``absent`` the tags that the source uses and did not give to an image have the probability 0. In each form a column
    ``source`` (or ``annotator``) names the sources; else the file's name does. What ``labelgap predict`` writes in rows
    per label is read as well: its score counts where it has no probability.

    Args:
        path: the file or the folder.
        classes: those of the data; others are left out, and that is said.
        images: the names in the data; a longer path that ends in one of them is that image, also without its suffix.
    """
    if not path.exists():
        raise InputError(describe_missing_path(path))
    files = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no file of labels: {', '.join(SUFFIXES)} are read.")
    table = pa.concat_tables([_read_file(file) for file in files]).sort_by("source")
    (source_names, source), (image_names, image), (class_names, column) = (
        _encoded(table[name]) for name in ("source", "image", "class")
    )
    columns = np.array([classes.index(name) if name in classes else -1 for name in class_names], dtype=np.int64)
    found = _find_images(image_names, images)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(name for name in found if name))}
    rows = np.array([numbers.get(name, -1) for name in found], dtype=np.int64)
    row, column = rows[image], columns[column]
    kept = (row >= 0) & (column >= 0)
    if not kept.any():
        if not len(table):
            raise InputError(f"{path} says nothing: no row has a probability or a tag.")
        what, named = ("class", class_names) if numbers else ("image", image_names)
        raise InputError(f"{path} says nothing of these data: it has no {what} that they have, but {named[0]}.")
    notes: list[Finding] = []
    if len(class_names) > (columns >= 0).sum():
        others = [name for name, number in zip(class_names, columns, strict=True) if number < 0]
        near = [f"{name} ({close}?)" for name in others[:3] if (close := nearest(name, classes))]
        what = pluralize(len(others), "class", "classes")
        names = f": {', '.join(near)}" if near else ""
        notes.append(Note(f"prior: left out: {what} that the data do not have{names}"))
    if lost := found.count(""):
        notes.append(Note(f"prior: left out: {pluralize(lost, 'image')} that the data do not have"))
    order = np.lexsort((column[kept], row[kept], source[kept]))
    key = np.stack([source[kept], row[kept], column[kept]])[:, order]
    twice = np.flatnonzero((np.diff(key, axis=1) == 0).all(axis=0))
    if len(twice):
        which, of, at = key[:, twice[0]]
        label = f"{list(numbers)[of]}, {classes[at]}"
        raise InputError(
            f"{path}: {source_names[which]} says something of {len(twice):,} labels twice, e.g. of {label}. Keep one "
            "row of an image (and class), or tell the two apart by a column 'source'."
        )
    probability = table["probability"].to_numpy().astype(np.float32)[kept]
    prior = Prior(tuple(source_names), numbers, tuple(classes), source[kept], row[kept], column[kept], probability)
    return prior, notes


def _find_images(names: Iterable[str], images: Collection[str]) -> list[str]:
    """Return for each name the image of the data that it means, "" for none: as a table's names mean files.

    Case, the form of accents, and a suffix that it does not have, count only where several images are meant.
    """
    loose: dict[str, str] = {}
    for image in images:
        whole = normalize_name(image)
        for key in {whole, without_suffix(whole)}:
            loose[key] = image if key not in loose else ""
    found = []
    for name in names:
        exact = match_name(name, images)
        near = None if exact else match_name(normalize_name(name), loose)
        found.append(exact or ("" if near is None else loose[near]))
    return found


def _encoded(column: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts of a column, and the number of each row's."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _read_file(file: Path) -> pa.Table:
    """Return ``source, image, class, probability`` of a file."""
    table = _open(file)
    columns = [_role(name) for name in table.column_names]
    if "probability" not in columns:
        columns = ["probability" if name == "score" and "class" in columns else name for name in columns]
    if "present" not in columns and not {"class", "probability"} <= {*columns}:
        listed = [at for at, name in enumerate(columns) if name.lower() in LIST_SYNONYMS and _holds_names(table[at])]
        columns = ["present" if listed == [at] else name for at, name in enumerate(columns)]
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{file} has the column '{twice}' twice.")
    if "image" not in columns:
        raise InputError(f"{file} has no column 'image', but {', '.join(columns[:5])}.")
    table = table.rename_columns(columns)
    if "source" not in columns:
        table = table.append_column("source", pa.array([file.stem] * len(table), pa.string()))
    table = table.append_column("line", pa.array(np.arange(len(table)) + (2 if file.suffix.lower() == ".csv" else 1)))
    problems = ProblemList(file, "line" if file.suffix.lower() != ".parquet" else "row")
    problems.fixable = False
    if {"class", "probability"} <= {*columns}:
        values = _numbers(table["probability"], table["class"], table["line"], problems)
        if "score" in columns:  # ``labelgap predict`` writes both, and knows the probability of some classes only
            scores = _numbers(table["score"], table["class"], table["line"], problems)
            values = np.where(np.isnan(values), scores, values)
        table = _with_values(table, table["class"], values)
    elif "present" in columns:
        table = _from_tags(table, problems)
    else:
        others = [name for name in columns if name not in ("image", "source", "split")]
        if not others:
            raise InputError(f"{file} has no labels: class and probability, present, or a column per class.")
        names = (pa.chunked_array([pa.array([name] * len(table), pa.string())]) for name in others)
        parts = [
            _with_values(table, name, _numbers(table[column], name, table["line"], problems))
            for column, name in zip(others, names, strict=True)
        ]
        table = pa.concat_tables(parts)
    for name in _NAMES:
        if pa.types.is_nested(table[name].type):
            raise InputError(f"{file}: the column '{name}' has lists; a row is of one {name}.")
        texts = table[name].cast(pa.string()).fill_null("")
        table = table.set_column(table.column_names.index(name), name, texts)
        for at in np.flatnonzero(pc.equal(texts, "").to_numpy()).tolist():
            problems.add(table["line"][at].as_py(), f"there is no {name}")
    problems.refuse("nothing was read")
    return table.select([*_NAMES, "probability"])


def _role(name: str) -> str:
    """Return what a column is; its name where that is a class."""
    lower = name.strip().lower()
    return _SYNONYMS.get(lower, lower if lower in _ROLES else name)


def _holds_names(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_list(column.type))


def _with_values(table: pa.Table, names: pa.ChunkedArray, values: NDArray[np.float64]) -> pa.Table:
    """Return the rows of a table that have a value, with their classes."""
    rows = pa.table({**{name: table[name] for name in ("source", "image", "line")}, "class": names})
    return rows.append_column("probability", pa.array(values)).filter(pa.array(~np.isnan(values)))


def _open(file: Path) -> pa.Table:
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{file}: labels of a source are read from {', '.join(SUFFIXES)}.")
    import pyarrow.json

    try:
        if suffix == ".parquet":
            return pq.read_table(file)
        return _open_csv(file) if suffix == ".csv" else pyarrow.json.read_json(file)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InputError(f"{file} cannot be read: {truncate_text(str(error), 200)}.") from None


def _open_csv(file: Path) -> pa.Table:
    """Return the cells of a CSV; a name stays a text, whatever its digits look like."""
    import pyarrow.csv

    dialect = detect_dialect(file, None, None, lambda cells: "image" in map(_role, cells))
    with open_text(file, dialect.encoding) as text:
        _, header, _ = next(read_records(text, dialect.delimiter, dialect.skip, ProblemList(file)), (0, [], []))
    texts = {name: pa.string() for name in header if _role(name) in (*_NAMES, "present", "absent")}
    return pyarrow.csv.read_csv(
        file,
        pyarrow.csv.ReadOptions(encoding=dialect.encoding.removesuffix("-sig"), skip_rows=dialect.skip),
        pyarrow.csv.ParseOptions(delimiter=dialect.delimiter),
        pyarrow.csv.ConvertOptions(column_types=texts),
    )


def _numbers(
    column: pa.ChunkedArray, names: pa.ChunkedArray, lines: pa.ChunkedArray, problems: ProblemList
) -> NDArray[np.float64]:
    """Return the probabilities of a column, NaN where a cell is blank; add what is none to the problems."""
    try:
        if pa.types.is_string(column.type):
            values = np.array([_number(cell or "") for cell in column.to_pylist()], dtype=np.float64)
        else:
            values = np.array(column.cast(pa.float64()).fill_null(math.nan).to_numpy())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        values = np.full(len(column), math.inf)
    for at in np.flatnonzero((values < 0) | (values > 1)).tolist():
        cell = truncate_text(repr(column[at].as_py()), 40)
        problems.add(lines[at].as_py(), f"{names[at]}: {cell} is no probability from 0 to 1")
    return values


def _number(cell: str) -> float:
    """Return the number of a cell; NaN where it is blank, infinity where it has something else."""
    try:
        return math.nan if cell.strip().lower() in _BLANK else float(cell)
    except ValueError:
        return math.inf


def _from_tags(table: pa.Table, problems: ProblemList) -> pa.Table:
    """Return rows of ``class`` and ``probability`` for lists of tags, given by a list or a text with ``;``."""
    rows = table.to_pylist()
    has_absent = "absent" in table.column_names
    used: dict[str, dict[str, None]] = {}
    for row in rows:
        for name in ("present", "absent"):
            listed = row.get(name)
            names = listed if isinstance(listed, list) else [] if listed is None else str(listed).split(";")
            row[name] = [str(each).strip() for each in names if each is not None]
        used.setdefault(row["source"], {}).update(dict.fromkeys(filter(None, row["present"])))
    found: dict[str, list[Any]] = {name: [] for name in ("image", "source", "line", "class", "probability")}
    for row in rows:
        said = {name: 1.0 for name in row["present"] if name}
        for name in filter(said.__contains__, row["absent"]):
            problems.add(row["line"], f"'{name}' is both under present and under absent")
        absent = row["absent"] if has_absent else used[row["source"]]
        said |= {name: 0.0 for name in absent if name and name not in said}
        for name, value in said.items():
            for key in ("image", "source", "line"):
                found[key].append(row[key])
            found["class"].append(name)
            found["probability"].append(value)
    return pa.table(found | {"probability": pa.array(found["probability"], pa.float64())})
