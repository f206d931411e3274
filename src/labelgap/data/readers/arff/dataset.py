"""Multi-label tables in ARFF: numbers and nominal values as features, and labels of three states; no pixels.

Mulan: ``NAME-train.arff``, ``NAME-test.arff`` and ``NAME.xml``, which names the labels. MEKA: the relation counts them,
``NAME: -C 6`` for the first six attributes and ``-C -6`` for the last six.

References: Tsoumakas et al., "Mulan: A Java Library for Multi-Label Learning", JMLR 2011; Read et al., "MEKA: A
Multi-label/Multi-target Extension to WEKA", JMLR 2016.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError, describe_missing_path
from labelgap.core.findings import Finding, Note
from labelgap.core.text import pluralize, truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.findings import LabelsCounted, describe_splits
from labelgap.data.readers.arff.labels import find_labels, label_states
from labelgap.data.readers.arff.parser import ArffFile, Attribute, parse_arff
from labelgap.data.readers.features import feature_dataset
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.layout import DatasetLayout, RequiredFile
from labelgap.labels import UNKNOWN, LabelTable
from labelgap.labels.io.problems import ProblemList

_SUFFIX: Final = ".arff"
_TRAIN: Final = "-train"
_MAX_BYTES: Final = 16 << 30
"""Bytes of the features of a file: they are dense in memory, whatever the file is."""


def load_arff(
    path: str | os.PathLike[str],
    *,
    val: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Read ARFF of Mulan or MEKA: ``?`` in a label is unknown.

    A numeric attribute is one feature; a nominal one of two values is one (0 for the first, 1 for the second), of more
    values one for each of them. A missing feature is the mean over train; a missing nominal one has none of its values.

    Args:
        path: an ``.arff`` file, or the folder of ``NAME-train.arff``.
        val: a file of val rows, with the same attributes.
        test: a file of test rows; ``NAME-test.arff`` beside ``NAME-train.arff`` when not given.
    """
    refuse_url(path, "tables")
    train = find_arff(Path(path))
    if train is None:
        raise InputError(_describe_missing(Path(path)))
    paths = {"train": train, "val": None if val is None else Path(val), "test": None if test is None else Path(test)}
    beside = train.with_name(train.stem.removesuffix(_TRAIN) + "-test" + train.suffix)
    if test is None and train.stem.endswith(_TRAIN) and beside.is_file():
        paths["test"] = beside
    problems = ProblemList(Path(path), unit="")
    files = {split: _parse(place, problems) for split, place in paths.items() if place is not None}
    problems.refuse()
    labels = find_labels(files["train"], problems)
    problems.refuse()
    _check(files, labels, problems)
    problems.refuse()
    return _dataset(train, files, labels)


def find_arff(path: Path) -> Path | None:
    """Return the training file that a path leads to: itself, or the only one of a folder, NAME-train.arff first."""
    if not path.is_dir():
        return path if path.is_file() and path.suffix.lower() == _SUFFIX else None
    with os.scandir(path) as entries:  # of which there may be a million, of another kind
        found = sorted(path / entry.name for entry in entries if entry.name.lower().endswith(_SUFFIX))
    train = [child for child in found if child.stem.endswith(_TRAIN)] or found
    return train[0] if len(train) == 1 else None


def _describe_missing(path: Path) -> str:
    if not path.exists():
        return describe_missing_path(path)
    if path.is_file():
        return f"{path} is no .arff file."
    names = ", ".join(child.name for child in sorted(path.glob(f"*{_SUFFIX}"))[:5])
    return f"{path} holds several tables ({names}): name one of them." if names else f"{path} holds no .arff file."


def _parse(path: Path, problems: ProblemList) -> ArffFile:
    def report(line: int, message: str) -> None:
        place = f"{path.name}, line {line}" if line else path.name
        problems.append(f"{place}: {message}")

    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise IsADirectoryError(0, "it is not a file")
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return parse_arff(path, file, report)
    except FileNotFoundError:
        report(0, "it does not exist")
    except OSError as error:
        report(0, f"it cannot be read ({error.strerror or error})")
    return ArffFile(path)


def _check(files: Mapping[str, ArffFile], labels: Sequence[int], problems: ProblemList) -> None:
    """Report attributes that differ between files, labels that are no states, and a table without features."""
    train = files["train"]
    for number in labels:
        attribute = train.attributes[number]
        if label_states(attribute) is None:
            values = truncate_text(", ".join(attribute.values) or attribute.kind, 80)
            rule = "a label has the values 0 and 1 (or false and true, no and yes)"
            where = f"{train.path.name}, line {attribute.line}"
            problems.append(f"{where}: the label '{truncate_text(attribute.name)}' is {values}: {rule}")
    for file in files.values():
        if file.attributes != train.attributes:
            problems.append(_describe_difference(file, train))
            continue
        numeric = [number for number in labels if train.attributes[number].kind == "numeric"]
        columns, cells = np.asarray(file.columns), np.asarray(file.cells)
        for place in np.flatnonzero(
            np.isin(columns, numeric) & ~np.isnan(cells) & (cells != 0) & (cells != 1)
        ).tolist():
            line = file.lines[int(np.searchsorted(np.asarray(file.ends), place, side="right"))]
            name = truncate_text(train.attributes[columns[place]].name)
            problems.append(f"{file.path.name}, line {line}: {cells[place]:g} under {name}: a label is 0 or 1")
    features = [each for n, each in enumerate(train.attributes) if n not in {*labels} and each.kind != "text"]
    if not features:
        problems.add(0, f"{train.path.name}: all of its attributes are labels or text, there is no feature")
    size = 4 * sum(map(_width, features)) * max(len(file.lines) for file in files.values())
    if size > _MAX_BYTES:
        problems.add(0, f"{train.path.name}: its features would take {size / 2**30:.0f} GiB of memory")


def _describe_difference(file: ArffFile, train: ArffFile) -> str:
    for one, other in zip(file.attributes, train.attributes, strict=False):
        if one != other:
            here, there = (f"'{truncate_text(each.name)}' ({each.kind})" for each in (one, other))
            instead = f"line {other.line} of {train.path.name} has {there}"
            return f"{file.path.name}, line {one.line}: {here}, where {instead}, or other values of it"
    counts = f"{len(file.attributes)} attributes, and {train.path.name} {len(train.attributes)}"
    return f"{file.path.name}: it has {counts}"


def _width(attribute: Attribute) -> int:
    """Return the number of features that an attribute becomes."""
    return len(attribute.values) if len(attribute.values) > 2 else 1


def _dataset(path: Path, files: Mapping[str, ArffFile], labels: Sequence[int]) -> Dataset:
    attributes = files["train"].attributes
    used = [n for n, each in enumerate(attributes) if n not in {*labels} and each.kind != "text"]
    text = len(attributes) - len(used) - len(labels)
    means = np.empty(0)
    parts, missing = {}, 0
    for split, file in files.items():
        vectors, gaps = _features(file, used)
        if split == "train":
            counts = len(vectors) - np.bincount(gaps[1], minlength=vectors.shape[1])
            means = vectors.sum(axis=0, dtype=np.float64) / np.maximum(counts, 1)
        vectors[gaps] = means[gaps[1]]
        missing += len(gaps[0])
        names = [f"{file.path.name}:{line}" for line in file.lines]
        table = LabelTable.from_dense(_codes(file, labels), [attributes[n].name for n in labels], names)
        parts[split] = Split(split, FeatureVectors(vectors, names), table)
    findings: list[Finding] = [
        Note(
            f"{pluralize(len(used), 'attribute')} as {pluralize(len(means), 'feature')}; "
            "labels: 1 = present, 0 = absent, ? = unknown"
        )
    ]
    if text:
        findings.append(Note(f"{pluralize(text, 'attribute')} of text or dates left out", "source"))
    if missing:
        findings.append(Note(f"{missing:,} missing features are the means of train", "source"))
    sizes = {split: len(part) for split, part in parts.items()}
    findings += [LabelsCounted.of([part.labels for part in parts.values()]), *describe_splits(sizes, len(sizes) > 1)]
    return feature_dataset(path.name, parts, findings)


def _entries(file: ArffFile) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Return the row, the column and the value of all cells that are not 0."""
    ends = np.asarray(file.ends, dtype=np.int64)
    rows = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    return rows, np.asarray(file.columns, dtype=np.int32), np.asarray(file.cells, dtype=np.float32)


def _features(
    file: ArffFile, used: Sequence[int]
) -> tuple[NDArray[np.float32], tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the features of all rows, and the places of the missing ones, which are 0 in them."""
    attributes = file.attributes
    widths = np.zeros(len(attributes), dtype=np.int64)
    widths[used] = [_width(attributes[n]) for n in used]
    first = np.cumsum(widths) - widths
    vectors = np.zeros((len(file.lines), int(widths.sum())), dtype=np.float32)
    vectors[:, first[widths > 1]] = 1  # the first value, until a cell says otherwise
    rows, columns, cells = _entries(file)
    kept = widths[columns] > 0
    rows, columns, cells = rows[kept], columns[kept], cells[kept]
    several, gap = widths[columns] > 1, np.isnan(cells)
    vectors[rows[several], first[columns[several]]] = 0
    known = several & ~gap
    vectors[rows[known], first[columns[known]] + cells[known].astype(np.int64)] = 1
    single = ~several & ~gap
    vectors[rows[single], first[columns[single]]] = cells[single]
    missing = ~several & gap
    return vectors, (rows[missing], first[columns[missing]])


def _codes(file: ArffFile, labels: Sequence[int]) -> NDArray[np.int8]:
    """Return the states of all labels."""
    place = np.full(len(file.attributes), -1, dtype=np.int64)
    place[list(labels)] = np.arange(len(labels))
    states = [label_states(file.attributes[n]) or [] for n in labels]
    padded = np.array([(each * 2)[:2] for each in states], dtype=np.int8)
    codes = np.tile(padded[:, 0], (len(file.lines), 1))
    rows, columns, cells = _entries(file)
    kept = place[columns] >= 0
    rows, numbers, cells = rows[kept], place[columns[kept]], cells[kept]
    values = np.nan_to_num(cells, nan=0.0).astype(np.int64)
    codes[rows, numbers] = np.where(np.isnan(cells), UNKNOWN, padded[numbers, values])
    return codes


ARFF_LAYOUT: Final = DatasetLayout(
    "Mulan (mulan.sourceforge.net/datasets-mlc.html), MEKA (waikato.github.io/meka/datasets), OpenML",
    "of each data set its own; the pages name it",
    "NAME/",
    (
        RequiredFile("*-train.arff", "rows of train", ("*.arff",)),
        RequiredFile("*-test.arff", "rows of test", optional=True),
        RequiredFile(
            "*.xml", "the names of the labels (Mulan); without it the relation counts them (MEKA: -C 6)", optional=True
        ),
    ),
    lambda path: None if (file := find_arff(path)) is None else file.parent,
    ("No images: features for a linear head, in train, compare and linear-eval.",),
    tried=False,
)
