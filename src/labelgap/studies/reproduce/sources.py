"""The data that the user gives for the data sets of a table, and what a cell cannot be filled without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError, UnknownNameError, describe_missing_path
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES
from labelgap.data.identity import DataIdentity
from labelgap.data.opening import open_data
from labelgap.data.readers.features import is_feature_file
from labelgap.data.registry import dataset_names, describe_dataset, load
from labelgap.studies.compare.label_views import LabelView, LabelViews, label_view_for
from labelgap.studies.compare.results import SkippedMethod
from labelgap.studies.reproduce.tables import Cell, PaperTable, Training, paper_tables

LABEL_SEED: Final = 1200
"""Of the papers' draw of one positive label per image."""
SPML: Final = "spml"
"""The reader of the single-positive papers' arrays: Cole's NUS-WIDE exists only so."""
HEAD_PROTOCOLS: Final = ("linear", "linear-eval")
"""Those that train a head on fixed features."""
_MAX_CACHED: Final = 64
"""Draws of labels and digests of data that are kept: the cells of a table share them."""


@dataclass(frozen=True, eq=False)
class DataSource:
    """A data set as it was given: as feature vectors, as images, or both; with the paths."""

    features: Dataset | None = None
    images: Dataset | None = None
    features_path: str = ""
    images_path: str = ""

    def data(self, protocol: str) -> tuple[Dataset | None, str]:
        """Return the data that a protocol is trained on, and their path; features, if both will do."""
        if protocol in HEAD_PROTOCOLS and self.features is not None:
            return self.features, self.features_path
        return self.images, self.images_path


def open_sources(given: Sequence[str], table: PaperTable) -> dict[str, DataSource]:
    """Open the data of ``NAME=PATH`` texts; a name may be given twice, for its images and for a file of features.

    A folder is read as the data set of that name. Where labelgap has no reader of that name, or the path is a file of
    another kind, it is recognized: a CSV of all labels will do. Names that belong to another table are left out.
    """
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
        source, features = sources.get(name, DataSource()), is_feature_file(path)
        if before := source.features_path if features else source.images_path:
            kind = "features" if features else "images"
            raise InputError(f"--data {text}: the {kind} of {name} are given already, {before}. Leave one out.")
        if features:
            sources[name] = replace(source, features=load(FEATURES, path), features_path=place)
        else:
            data = _open_images(name, path, table.data_options.get(name, {}))
            sources[name] = replace(source, images=data, images_path=place)
    return sources


def _open_images(name: str, path: Path, options: Mapping[str, str]) -> Dataset:
    """Open a folder as the data set of that name, or as the papers' arrays; other files by what they are."""
    if name not in dataset_names() or describe_dataset(SPML).recognizes(path):
        return open_data(path)
    return load(name, path, **options) if path.is_dir() or describe_dataset(name).recognizes(path) else open_data(path)


def unmet_need(cell: Cell, sources: Mapping[str, DataSource]) -> str | None:
    """Return what a cell cannot be filled without: data that was not given, or a part that it lacks; else None."""
    training, name = cell.training, cell.column.data
    source = sources.get(name)
    if source is None:
        kind = (
            "" if name in dataset_names() else ", a CSV or a file of features (labelgap has no reader of the original)"
        )
        return f"no data: give --data {name}=PATH{kind}"
    data, path = source.data(training.protocol)
    if data is None:
        return (
            f"{source.features_path} holds features, and {training.protocol} trains on images: add a second --data "
            f"{name}=PATH, of the images"
        )
    for split in ("val", "test"):
        if getattr(data, split) is None and not (split == "val" and training.protocol == "linear-eval"):
            return f"{path} has no {split} images"
    if training.labels != "as-given" and not data.train.evaluation_labels.complete:
        return f"{path}: not every label of train is known, and the labels that training sees are drawn from all"
    if data.test is not None and cell.column.metric == "pointing" and data.test.boxes is None:
        return f"{path} has no boxes (Annotations), and the pointing game needs them"
    view = shown_labels(training, data)
    return view.reason if isinstance(view, SkippedMethod) else None


def shown_labels(training: Training, data: Dataset) -> LabelView | SkippedMethod:
    """Return the labels that a method sees in its paper, or why it cannot run."""
    return _shown_labels(training.method, training.labels, data)


def observed(training: Training, data: Dataset) -> Dataset:
    """Return the data with the labels of the paper: one positive of each image, all, or those that there are."""
    return _observed(training.labels, data)


@lru_cache(maxsize=_MAX_CACHED)
def data_digest(data: Dataset) -> str:
    """Return a digest of images and labels."""
    return DataIdentity.of(data).digest()


@lru_cache(maxsize=_MAX_CACHED)
def _shown_labels(method: str, labels: str, data: Dataset) -> LabelView | SkippedMethod:
    return label_view_for(method, LabelViews(_observed(labels, data), 1, None, LABEL_SEED))


@lru_cache(maxsize=_MAX_CACHED)
def _observed(labels: str, data: Dataset) -> Dataset:
    if labels == "single-positive":
        return data.observe(positives=1, negatives=0, seed=LABEL_SEED)
    return data.reveal() if labels == "all" else data
