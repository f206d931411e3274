"""Where images and labels come from: your own CSV, and digits that come with the package."""

from labelgap.data.catalogue import Description, dataset_names, describe_datasets, load, open_data, reopen
from labelgap.data.csv import load_csv
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.digits import load_digits
from labelgap.data.images import ArrayImages, FileImages, ImageSource
from labelgap.data.splitting import stratified_split

__all__ = [
    "ArrayImages",
    "Boxes",
    "Dataset",
    "Description",
    "FileImages",
    "ImageSource",
    "Split",
    "dataset_names",
    "describe_datasets",
    "load",
    "load_csv",
    "load_digits",
    "open_data",
    "reopen",
    "stratified_split",
]
