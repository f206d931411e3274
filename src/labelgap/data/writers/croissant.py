"""Croissant: the metadata of a data set as ML Commons defines them (version 1.0), with the labels in Parquet beside."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError
from labelgap.core.files import atomic_path
from labelgap.data.dataset import Dataset
from labelgap.data.images import FileImages
from labelgap.data.writers.exchange import known_class_names, merge_splits, write_compact_json

_TERMS: Final = (
    "citeAs column conformsTo data dataType equivalentProperty examples extract field fileProperty fileObject fileSet "
    "format includes isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace "
    "samplingRate separator source subField transform"
)
_CONTEXT: Final[dict[str, Any]] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{name: f"cr:{name}" for name in _TERMS.split()},
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
}
_STATES: Final = "a class in neither 'present' nor 'absent' is unknown"


def labels_path(path: Path) -> Path:
    """Return the path of the labels, which are written beside the metadata."""
    return path.with_suffix(".parquet")


def write_croissant(data: Dataset, path: Path) -> Path:
    """Write the metadata of a data set's images and observed labels, and the labels beside; return their path."""
    images = data.train.images
    root = images.root.resolve() if isinstance(images, FileImages) else Path()
    folder = path.absolute().parent.resolve()
    if not root.is_relative_to(folder):
        raise InputError(f"Croissant names files below its own folder: write to {root / path.name}, not to {path}.")
    below = PurePosixPath(root.relative_to(folder).as_posix())
    exchange = merge_splits(data)
    lists = [known_class_names(exchange.table, row) for row in range(len(exchange.table))]
    names = pa.list_(pa.string())
    files = [str(below / file) for file in exchange.files]
    columns = {
        "image": pa.array(files, pa.string()),
        "split": pa.array(exchange.splits, pa.string()),
        "present": pa.array([present for present, _ in lists], names),
        "absent": pa.array([absent for _, absent in lists], names),
    }
    labels = labels_path(path)
    with atomic_path(labels) as temporary:
        pq.write_table(pa.table(columns), temporary)
    suffixes = sorted({PurePosixPath(file).suffix for file in files})
    patterns = [str(below / part) + suffix for suffix in suffixes for part in ("*", "**/*")]
    write_compact_json(path, _metadata(data, labels, patterns, list(columns)))
    return labels


def _metadata(data: Dataset, labels: Path, patterns: list[str], columns: list[str]) -> dict[str, Any]:
    def field(identifier: str, kind: str, source: dict[str, Any], **more: Any) -> dict[str, Any]:
        named = {"@type": "cr:Field", "@id": identifier, "name": identifier, "dataType": kind, "source": source}
        return named | more

    def record_set(name: str, description: str, *fields: dict[str, Any]) -> dict[str, Any]:
        about = {"@type": "cr:RecordSet", "@id": name, "name": name, "description": description}
        return about | {"key": {"@id": fields[0]["@id"]}, "field": list(fields)}

    def of_file(what: str) -> dict[str, Any]:
        return {"fileSet": {"@id": "files"}, "extract": {"fileProperty": what}}

    table = {
        name: field(
            f"images/{name}",
            "sc:Text",
            {"fileObject": {"@id": "labels"}, "extract": {"column": name}},
            **({"repeated": True} if name in ("present", "absent") else {}),
        )
        for name in columns
    }
    table["image"]["references"] = {"field": {"@id": "photos/path"}}
    kinds = sorted({mimetypes.guess_type(pattern)[0] or "image/*" for pattern in patterns})
    content = {"field": {"@id": "photos/content"}}
    distribution = [
        {
            "@type": "cr:FileObject",
            "@id": "labels",
            "name": "labels",
            "contentUrl": labels.name,
            "encodingFormat": "application/x-parquet",
            "sha256": hashlib.sha256(labels.read_bytes()).hexdigest(),
        },
        {"@type": "cr:FileSet", "@id": "files", "name": "files", "encodingFormat": kinds, "includes": patterns},
    ]
    photos = record_set(
        "photos",
        "the image files",
        field("photos/path", "sc:Text", of_file("fullpath")),
        field("photos/content", "sc:ImageObject", of_file("content")),
    )
    records = record_set("images", _STATES, *table.values(), field("images/content", "sc:ImageObject", content))
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": re.sub(r"[^\w.-]+", "-", os.fspath(data.name)),
        "description": f"{data.name}: images with several labels each; {_STATES}. Classes: {', '.join(data.classes)}",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "distribution": distribution,
        "recordSet": [photos, records],
    }
