"""A data set as a ``datasets.DatasetDict`` of Hugging Face: an image, and a bool per class, null where unknown."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import EncodedImage
from labelgap.data.images import FeatureVectors, ImageSource, StoredImages
from labelgap.labels import PRESENT, UNKNOWN

_SPLITS = {"val": "validation"}  # the names that differ there


def to_huggingface(data: Dataset) -> Any:
    """Return the observed labels and the images of all splits as a ``datasets.DatasetDict``."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise InputError("this needs the package datasets: pip install 'labelgap[huggingface]'.") from None
    if isinstance(data.train.images, FeatureVectors):
        raise InputError(f"{data.name} has feature vectors and no images.")
    image = "image" + "_" * sum(name.rstrip("_") == "image" for name in data.classes)
    classes = dict.fromkeys(data.classes, datasets.Value("bool"))
    features = datasets.Features({image: datasets.Image(), **classes})
    made = datasets.DatasetDict()
    for split in data.splits:
        table = datasets.table.InMemoryTable(_table(split, features.arrow_schema))
        made[_SPLITS.get(split.name, split.name)] = datasets.Dataset(table, datasets.DatasetInfo(features=features))
    return made


def _table(split: Split, schema: pa.Schema) -> pa.Table:
    images = [_image(split.images, row, name) for row, name in enumerate(split.labels.images)]
    columns = [pa.array(images, schema.types[0])]
    for codes in split.labels.to_dense().T:
        columns.append(pa.array(codes == PRESENT, pa.bool_(), mask=codes == UNKNOWN))
    return pa.Table.from_arrays(columns, schema=schema)


def _image(source: ImageSource, row: int, name: str) -> dict[str, Any]:
    """Return the path of an image, or its bytes; one that is only in memory becomes PNG."""
    encoded = source.encoded(row) if isinstance(source, StoredImages) else None
    if isinstance(encoded, Path):
        return {"path": str(encoded.absolute()), "bytes": None}
    if isinstance(encoded, EncodedImage):
        return {"path": name, "bytes": encoded.getvalue()}
    file, pixels = io.BytesIO(), source[row]
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return {"path": f"{name}.png", "bytes": file.getvalue()}
