"""Images and labels: your own tables and folders, the papers' data sets, features, and digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.images import FEATURES, ArrayImages, FeatureVectors, FileImages, ImageSource
from labelgap.data.readers.arff import load_arff
from labelgap.data.readers.chexpert import load_chexpert
from labelgap.data.readers.coco import load_coco2014, load_coco2017
from labelgap.data.readers.common import DatasetLayout, RequiredFile
from labelgap.data.readers.cub import load_cub, read_cub_certainty
from labelgap.data.readers.digits import load_digits
from labelgap.data.readers.features import load_features
from labelgap.data.readers.folder import load_folder
from labelgap.data.readers.huggingface import load_huggingface
from labelgap.data.readers.nuswide import load_nuswide
from labelgap.data.readers.openimages import load_openimages
from labelgap.data.readers.shards import load_shards
from labelgap.data.readers.spml import load_spml
from labelgap.data.readers.table import load_table
from labelgap.data.readers.voc import load_voc2007, load_voc2012
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
    "load_arff",
    "load_chexpert",
    "load_coco2014",
    "load_coco2017",
    "load_cub",
    "load_digits",
    "load_features",
    "load_folder",
    "load_from_recipe",
    "load_huggingface",
    "load_moved",
    "load_nuswide",
    "load_openimages",
    "load_shards",
    "load_spml",
    "load_stored",
    "load_table",
    "load_voc2007",
    "load_voc2012",
    "read_cub_certainty",
    "register_dataset",
    "summarize",
]

__getattr__ = lazy_names(__name__, "transforms")
