"""The data sets and the patterns of known labels of auto_method.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from benchmarks.harness import DEVKIT, FEATURES
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

import labelgap as lg
from labelgap.core.seeds import numpy_generator
from labelgap.data.images import FeatureVectors
from labelgap.labels import LabelTable

SOURCES = ("voc", "photos", "digits", "cells")
ALL, ALL_PRESENT = "all", "all present"
FIXED = (ALL, ALL_PRESENT)
"""Patterns in which nothing is drawn."""
Draw = Callable[[lg.Dataset, int], lg.Dataset]


def keep_share(share: float) -> Draw:
    """Return a draw that keeps a share of all labels, whatever they are."""

    def draw(data: lg.Dataset, seed: int) -> lg.Dataset:
        truth = data.train.evaluation_labels
        return replace(data, train=replace(data.train, labels=truth.drop(1 - share, seed=seed), truth=truth))

    return draw


PATTERNS: dict[str, Draw] = {
    "1 present": lambda data, seed: data.observe(positives=1, negatives=0, seed=1200 + seed),
    "1 present, 1 absent": lambda data, seed: data.observe(positives=1, negatives=1, seed=1200 + seed),
    ALL_PRESENT: lambda data, seed: data.observe(positives="all", negatives=0, seed=1200 + seed),
    "a tenth": keep_share(0.1),
    "a quarter": keep_share(0.25),
    "half": keep_share(0.5),
    ALL: lambda data, seed: data,
}


def split_rows(
    name: str, features: NDArray[np.float64], labels: NDArray[np.bool_], classes: Sequence[str]
) -> lg.Dataset:
    """Return a data set of vectors; three fifths of the rows are train, a fifth val, a fifth test."""
    order = numpy_generator(0, "table", name).permutation(len(features))
    splits: dict[str, lg.Split] = {}
    cuts = np.split(order, [int(0.6 * len(order)), int(0.8 * len(order))])
    for split, part in zip(("train", "val", "test"), cuts, strict=True):
        ids = [str(row) for row in part]
        table = LabelTable.from_dense(labels[part].astype(np.int8), classes=classes, images=ids)
        splits[split] = lg.Split(split, FeatureVectors(features[part].astype(np.float32), ids), table)
    return lg.Dataset(name, splits["train"], splits["val"], splits["test"], backbone="features", protocol="linear")


def read_table(path: Path) -> lg.Dataset:
    """Read a CSV file of numbers."""
    names = path.read_text(encoding="utf-8").partition("\n")[0].split(",")
    values = np.loadtxt(path, delimiter=",", skiprows=1)
    label = np.array([set(column) <= {0.0, 1.0} for column in values.T])
    classes = [name for name, chosen in zip(names, label, strict=True) if chosen]
    return split_rows(path.stem, values[:, ~label], values[:, label] == 1, classes)


def cells() -> lg.Dataset:
    """Return the classes made of the breast cancer data."""
    bunch = load_breast_cancer()
    worst = bunch.data[:, 20:]
    labels = np.column_stack([bunch.target == 0, worst > np.quantile(worst, 0.75, axis=0)])
    return split_rows("cells", bunch.data[:, :20], labels, ["malignant", *bunch.feature_names[20:]])


def load(name: str, tables: Sequence[Path], images: Path | None) -> lg.Dataset:
    """Return a data set with all of its labels; ``images`` is the folder of any other name than those of SOURCES."""
    if name == "voc":
        return lg.load("features", FEATURES).reveal()
    if name == "photos":
        return replace(lg.load("voc2012", DEVKIT), backbone="efficientnet-lite0")
    if name == "digits":
        return lg.load("digits").reveal()
    if name == "cells":
        return cells()
    table = next((path for path in tables if path.stem == name), None)
    if table is not None:
        return read_table(table)
    if images is None:
        raise FileNotFoundError(f"{name}: give --images")
    return lg.load("voc2012", images)
