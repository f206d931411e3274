"""The formats that labels are written in for other tools, with all three states."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.files import atomic_path
from labelgap.data.dataset import Dataset
from labelgap.data.images import FileImages
from labelgap.data.writers.coco import write_coco
from labelgap.data.writers.exchange import merge_splits
from labelgap.data.writers.fiftyone import write_fiftyone
from labelgap.data.writers.label_studio import LOCAL_FILES, interface_path, write_label_studio


@dataclass(frozen=True)
class ConversionResult:
    """The file that was written, what was written beside it, and how to open it in the other tool."""

    paths: tuple[Path, ...]
    hint: str = ""


def convert(
    data: Dataset, to: str, out: str | os.PathLike[str], *, prefix: str | None = None, force: bool = False
) -> ConversionResult:
    """Write the observed labels of all splits in another format, atomically.

    Args:
        data: the data set; images are not copied, and a hidden truth is not written.
        to: csv, parquet, coco, fiftyone or labelstudio.
        out: the file to write.
        prefix: put before every image's name; for FiftyOne and Label Studio.
        force: whether an existing file may be replaced.
    """
    if to not in _FORMATS:
        raise UnknownNameError("format", to, _FORMATS)
    path = Path(out)
    for place in (path, *([interface_path(path)] if to == "labelstudio" else [])):
        check_target(data, place, force)
    if prefix is not None and to not in _IMAGE_TOOLS:
        raise InputError(f"--prefix is for {' and '.join(sorted(_IMAGE_TOOLS))}: {to} names images as they are.")
    if to in _IMAGE_TOOLS and not all(isinstance(split.images, FileImages) for split in data.splits):
        raise InputError(
            f"{data.name} has no image files that {_IMAGE_TOOLS[to]} could open. Convert it to csv, parquet or coco."
        )
    return _FORMATS[to](data, path, prefix)


def check_target(data: Dataset, path: Path, force: bool) -> None:
    """Refuse to write to the data itself, to a folder, and to an existing file unless ``force`` is given."""
    options = data.recipe.get("options", {})
    places = (data.recipe.get("path"), options.get("val"), options.get("test"))  # of digits, val is a number
    sources = [Path(place) for place in places if isinstance(place, str)]
    if path.exists() and any(source.exists() and path.samefile(source) for source in sources):
        raise InputError(f"{path} is the data itself, which is never overwritten. Write to another file.")
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file in it.")
    if path.exists() and not force:
        raise InputError(f"{path} exists already. Write to another file, or replace it with --force.")


def _csv(data: Dataset, path: Path, prefix: str | None) -> ConversionResult:
    exchange = merge_splits(data)
    exchange.table.to_csv(path, exchange.splits)
    return ConversionResult((path,))


def _parquet(data: Dataset, path: Path, prefix: str | None) -> ConversionResult:
    exchange = merge_splits(data)
    with atomic_path(path) as temporary:
        exchange.table.to_parquet(temporary)
        table = pq.read_table(temporary)
        pq.write_table(table.add_column(1, "split", pa.array(exchange.splits, pa.string())), temporary)
    return ConversionResult((path,))


def _coco(data: Dataset, path: Path, prefix: str | None) -> ConversionResult:
    write_coco(data, path)
    return ConversionResult(
        (path,), "absent is in each image's neg_category_ids, unknown in not_exhaustive_category_ids"
    )


def _fiftyone(data: Dataset, path: Path, prefix: str | None) -> ConversionResult:
    write_fiftyone(data, path, prefix or "")
    folder = "" if prefix else f", rel_dir={_folder(data)!r}"
    return ConversionResult((path,), f"fiftyone.Dataset.from_json({str(path)!r}{folder})")


def _labelstudio(data: Dataset, path: Path, prefix: str | None) -> ConversionResult:
    interface = write_label_studio(data, path, LOCAL_FILES if prefix is None else prefix)
    hint = f"paste {interface} into the project's labeling interface, then import {path}"
    if prefix is None:
        hint += f"; images come from local storage, LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={_folder(data)}"
    return ConversionResult((path, interface), hint)


def _folder(data: Dataset) -> str:
    images = data.train.images
    return str(images.root) if isinstance(images, FileImages) else ""


_FORMATS: dict[str, Callable[[Dataset, Path, str | None], ConversionResult]] = {
    "csv": _csv,
    "parquet": _parquet,
    "coco": _coco,
    "fiftyone": _fiftyone,
    "labelstudio": _labelstudio,
}
_IMAGE_TOOLS = {"fiftyone": "FiftyOne", "labelstudio": "Label Studio"}
