"""Images and labels: your own tables and folders, the papers' data sets, features, and digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.images import FEATURES, ArrayImages, FeatureVectors, FileImages, ImageSource
from labelgap.data.readers.common import DatasetLayout, RequiredFile
from labelgap.data.readers.cub import read_cub_certainty
from labelgap.data.registry import (
    DatasetReader,
    dataset_names,
    describe_dataset,
    describe_datasets,
    load,
    load_from_recipe,
    load_moved,
    load_stored,
    register_dataset,
)
from labelgap.data.summary import DatasetSummary, summarize

if TYPE_CHECKING:
    from labelgap.data.transforms import CenterCrop, RandomResizedCrop, Resize, Transform

__all__ = [
    "ArrayImages",
    "Boxes",
    "CenterCrop",
    "Dataset",
    "DatasetLayout",
    "DatasetReader",
    "DatasetSummary",
    "FEATURES",
    "FeatureVectors",
    "FileImages",
    "ImageSource",
    "RandomResizedCrop",
    "RequiredFile",
    "Resize",
    "Split",
    "Transform",
    "dataset_names",
    "describe_dataset",
    "describe_datasets",
    "load",
    "load_from_recipe",
    "load_moved",
    "load_stored",
    "read_cub_certainty",
    "register_dataset",
    "summarize",
]

__getattr__ = lazy_names(__name__, "transforms")
