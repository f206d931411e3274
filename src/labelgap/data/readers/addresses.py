"""Images by their addresses, a path or a URL: what an audit of images in a bucket writes for the review."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa

from labelgap.core.findings import Note
from labelgap.core.stored import damaged, parse_json, read_table, reading
from labelgap.data.addresses import EncodedImages
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import count_labels
from labelgap.labels import LabelTable
from labelgap.labels.io.formats import CLASSES_KEY

ADDRESSES: Final = "addresses"
_REMEDY: Final = "Audit the predictions again."
_LISTS: Final = {"present": pa.list_(pa.string()), "absent": pa.list_(pa.string())}


def load_addresses(path: str | os.PathLike[str]) -> Dataset:
    """Read a Parquet file of ``image``, an address, ``present`` and ``absent``; images are fetched when they are shown.

    Args:
        path: the file, with the names of the classes as JSON in its metadata, ``labelgap.classes``.
    """
    path = Path(path)
    table = read_table(path, {"image": pa.string(), **_LISTS}, remedy=_REMEDY)
    with reading(path, _REMEDY):
        classes = parse_json((table.schema.metadata or {})[CLASSES_KEY])
        names, present, absent = (table[name].to_pylist() for name in ("image", *_LISTS))
        if not isinstance(classes, list) or None in names or None in present or None in absent:
            raise damaged(path, "a cell is empty", _REMEDY)
        labels = LabelTable.from_lists(present, absent, classes=[str(name) for name in classes], images=names)
    note = Note("images by their addresses, fetched when they are needed", "images")
    return Dataset(
        path.name, Split("train", EncodedImages(names), labels), None, None, findings=(note, count_labels([labels]))
    )
