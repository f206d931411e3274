"""Where images and labels come from: your own tables and folders, the papers' data sets, features, and digits."""

from labelgap.data.catalogue import Description, dataset_names, describe_datasets, load, open_data, reopen
from labelgap.data.coco import load_coco2014, load_coco2017
from labelgap.data.csv import load_csv
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.digits import load_digits
from labelgap.data.features import FEATURES, FeatureVectors, load_features
from labelgap.data.folder import load_folder
from labelgap.data.images import ArrayImages, FileImages, ImageSource
from labelgap.data.parquet import load_parquet
from labelgap.data.splitting import stratified_split
from labelgap.data.summary import Summary, summarise
from labelgap.data.transforms import CentreCrop, RandomCrop, Squash, Transform
from labelgap.data.voc import load_voc2007, load_voc2012

__all__ = [
    "ArrayImages",
    "Boxes",
    "CentreCrop",
    "Dataset",
    "Description",
    "FEATURES",
    "FeatureVectors",
    "FileImages",
    "ImageSource",
    "RandomCrop",
    "Split",
    "Squash",
    "Summary",
    "Transform",
    "dataset_names",
    "describe_datasets",
    "load",
    "load_coco2014",
    "load_coco2017",
    "load_csv",
    "load_digits",
    "load_features",
    "load_folder",
    "load_parquet",
    "load_voc2007",
    "load_voc2012",
    "open_data",
    "reopen",
    "stratified_split",
    "summarise",
]
