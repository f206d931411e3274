"""Labels of a data set for other tools, with all three states: CSV, Parquet, COCO, and the tools of their own files."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.files import atomic_path
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.writers import croissant, cvat
from labelgap.data.writers.exchange import image_sizes, merge_splits, write_compact_json
from labelgap.data.writers.fiftyone import write_fiftyone
from labelgap.data.writers.label_studio import LOCAL_FILES, interface_path, write_label_studio
from labelgap.labels import ABSENT, PRESENT, UNKNOWN

MAX_LISTED: Final = 20_000_000  # more unknown labels than this are not listed: a class in no list is unknown anyway

Place = tuple[list[float], bool]  # corners, and whether the object is marked as difficult


def write_coco(data: Dataset, path: Path) -> None:
    """Write the observed labels of all splits as one COCO file; boxes only of classes that are known to be present.

    A present class has an annotation per box, or one for the whole image without a box; crowds and difficult objects
    are ``iscrowd``. A known absent class is in the image's ``neg_category_ids``, an unknown one in its
    ``not_exhaustive_category_ids`` (Gupta, Dollár and Girshick, "LVIS", CVPR 2019), and one in none of them is unknown,
    too.
    """
    exchange = merge_splits(data)
    listed = exchange.table.counts().total[2] <= MAX_LISTED
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for split in data.splits:
        boxes = _boxes_by_label(split)
        for row, (name, size) in enumerate(zip(split.labels.images, image_sizes(split), strict=True)):
            file = exchange.files[len(images)]
            image = {"id": len(images) + 1, "file_name": file, **size, "split": split.name}
            image |= {} if file == name else {"name": name}
            codes = split.labels.batch([row]).numpy()[0]
            image["neg_category_ids"] = (np.flatnonzero(codes == ABSENT) + 1).tolist()
            image["not_exhaustive_category_ids"] = (np.flatnonzero(codes == UNKNOWN) + 1).tolist() if listed else []
            images.append(image)
            for column in np.flatnonzero(codes == PRESENT).tolist():
                for place in boxes.get((row, column), [None]):
                    number = {"id": len(annotations) + 1, "image_id": image["id"], "category_id": column + 1}
                    annotations.append({**number, **_where(place)})
    categories = [{"id": number, "name": name} for number, name in enumerate(data.classes, start=1)]
    states = "a category in neg_category_ids is absent, one in no annotation and not there is unknown"
    info = {"description": f"{data.name}: labels in three states; {states}"}
    write_compact_json(path, {"info": info, "images": images, "annotations": annotations, "categories": categories})


def _boxes_by_label(split: Split) -> dict[tuple[int, int], list[Place | None]]:
    found: dict[tuple[int, int], list[Place | None]] = defaultdict(list)
    boxes = split.boxes
    if boxes is not None:
        difficult = np.zeros(len(boxes.rows), dtype=bool) if boxes.difficult is None else boxes.difficult
        for row, column, *place in zip(
            boxes.rows, boxes.classes, boxes.corners.tolist(), difficult.tolist(), strict=True
        ):
            found[int(row), int(column)].append((place[0], place[1]))
    return found


def _where(place: Place | None) -> dict[str, Any]:
    """Return COCO's x, y, width, height of a box whose edges are inclusive; none for a whole image."""
    if place is None:
        return {"iscrowd": 0}
    (left, top, right, bottom), difficult = place
    width, height = right - left + 1, bottom - top + 1
    return {"bbox": [left, top, width, height], "area": width * height, "iscrowd": int(difficult)}


_TOOLS: Final = {"fiftyone": "FiftyOne", "labelstudio": "Label Studio", "cvat": "CVAT", "croissant": "Croissant"}
"""The formats that name image files, and what opens them."""
_FORMATS: Final = ("csv", "parquet", "coco", *_TOOLS)
_BESIDE: Final = {"labelstudio": interface_path, "cvat": cvat.labels_path, "croissant": croissant.labels_path}
"""Where a format has a second file."""


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
        to: csv, parquet, coco, fiftyone, labelstudio, cvat or croissant.
        out: the file to write.
        prefix: put before every image's name; for FiftyOne, Label Studio and CVAT.
        force: whether an existing file may be replaced.
    """
    if to not in _FORMATS:
        raise UnknownNameError("format", to, _FORMATS)
    path = Path(out)
    for place in (path, *([_BESIDE[to](path)] if to in _BESIDE else [])):
        check_target(data, place, force)
    if prefix is not None and to not in ("fiftyone", "labelstudio", "cvat"):
        raise InputError(f"--prefix is for fiftyone, labelstudio and cvat: {to} names images as they are.")
    if to in _TOOLS and not all(isinstance(split.images, FileImages) for split in data.splits):
        raise InputError(
            f"{data.name} has no image files that {_TOOLS[to]} could open. Convert it to csv, parquet or coco."
        )
    folder = str(data.train.images.root) if isinstance(data.train.images, FileImages) else ""
    if to == "labelstudio":
        interface = write_label_studio(data, path, LOCAL_FILES if prefix is None else prefix)
        hint = f"paste {interface} into the project's labeling interface, then import {path}"
        if prefix is None:
            hint += f"; images come from local storage, LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={folder}"
        return ConversionResult((path, interface), hint)
    if to == "cvat":
        labels = cvat.write_cvat(data, path, prefix or "")
        hint = f"paste {labels} as the raw labels of a new task, then upload {path} as 'CVAT for images 1.1'"
        return ConversionResult((path, labels), hint)
    if to == "croissant":
        labels = croissant.write_croissant(data, path)
        return ConversionResult((path, labels), f"mlcroissant.Dataset({str(path)!r}).records('images')")
    if to == "fiftyone":
        write_fiftyone(data, path, prefix or "")
        relative = "" if prefix else f", rel_dir={folder!r}"
        return ConversionResult((path,), f"fiftyone.Dataset.from_json({str(path)!r}{relative})")
    if to == "coco":
        write_coco(data, path)
        states = "absent is in each image's neg_category_ids, unknown in not_exhaustive_category_ids"
        return ConversionResult((path,), states)
    exchange = merge_splits(data)
    if to == "csv":
        exchange.table.to_csv(path, exchange.splits)
        return ConversionResult((path,))
    with atomic_path(path) as temporary:
        exchange.table.to_parquet(temporary)
        table = pq.read_table(temporary)
        pq.write_table(table.add_column(1, "split", pa.array(exchange.splits, pa.string())), temporary)
    return ConversionResult((path,))


def check_target(data: Dataset, path: Path, force: bool) -> None:
    """Refuse to write to the data itself, to a folder, and to an existing file unless ``force`` is given."""
    options = data.recipe.get("options", {})
    places = (data.recipe.get("path"), options.get("val"), options.get("test"))  # of digits, val is a number
    refuse_overwriting([Path(place) for place in places if isinstance(place, str)], path, force)


def refuse_overwriting(sources: Iterable[Path], path: Path, force: bool) -> None:
    """Refuse to write to files that were read, to a folder, and to an existing file unless ``force`` is given."""
    if path.exists() and any(source.exists() and path.samefile(source) for source in sources):
        raise InputError(f"{path} is the data itself, which is never overwritten. Write to another file.")
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file in it.")
    if path.exists() and not force:
        raise InputError(f"{path} exists already. Write to another file, or replace it with --force.")
