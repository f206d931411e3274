"""Labels of a data set for other tools, with all three states: CSV, Parquet, COCO, FiftyOne and Label Studio."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.files import atomic_path, write_text
from labelgap.core.stored import parse_json, parse_xml
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import open_image
from labelgap.data.images import ArrayImages, FileImages, StoredImages
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.io.table_file import SPLITS


@dataclass(frozen=True, eq=False)
class ExchangeTable:
    """The labels of all images, their splits if the file has any, and their paths (or names) below their folder."""

    table: LabelTable
    splits: tuple[str, ...] | None
    files: tuple[str, ...] = ()


def merge_splits(data: Dataset) -> ExchangeTable:
    """Concatenate the splits of a data set: the observed labels, never a hidden truth."""
    try:
        table = LabelTable.concatenate([split.labels for split in data.splits])
    except InputError as error:
        raise InputError(f"{data.name} cannot be written as one table: {error}") from None
    splits = tuple(split.name for split in data.splits for _ in range(len(split)))
    return ExchangeTable(table, splits, tuple(file for split in data.splits for file in _files_below(split)))


def _files_below(split: Split) -> Iterable[str]:
    source = split.images
    if not isinstance(source, FileImages):
        return split.labels.images
    below = (Path(os.path.relpath(source.path(row), source.root)) for row in range(len(source)))
    return (path.as_posix() for path in below)


def known_class_names(table: LabelTable, row: int) -> tuple[list[str], list[str]]:
    """Return the names of the classes known to be present, and of those known to be absent, in an image."""
    entries = slice(int(table.starts[row]), int(table.starts[row + 1]))
    columns, values = table.columns[entries], table.values[entries]
    present, absent = ([table.classes[column] for column in columns[values == state]] for state in (PRESENT, ABSENT))
    return present, absent


def read_json(path: Path, what: str = "", keys: Iterable[str] = ()) -> Any:
    """Read a JSON file; where ``keys`` are given, check that it is an object that has them."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file.")
    try:
        value = parse_json(path.read_bytes(), limit=None)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as JSON: {truncate_text(str(error), 200)}.") from None
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing:
        raise InputError(f"{path} is not {what}: it has no '{missing[0]}'.")
    return value


def write_compact_json(path: Path, value: Any) -> None:
    """Write JSON without blanks, atomically: these files are for machines, and have a list per image."""
    write_text(path, json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


MAX_LISTED: Final = 20_000_000
"""More unknown labels than this are not listed: a class in no list is unknown anyway."""

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
        for row, name in enumerate(split.labels.images):
            file = exchange.files[len(images)]
            image = {"id": len(images) + 1, "file_name": file, **_image_size(split, row), "split": split.name}
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
    """Return the boxes of every (image, class)."""
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


def _image_size(split: Split, row: int) -> dict[str, int]:
    """Return the size of an image as it is stored, from its header alone; nothing where that cannot be read."""
    source = split.images
    if isinstance(source, ArrayImages):
        height, width = source.array.shape[1:3]
        return {"width": int(width), "height": int(height)}
    if isinstance(source, StoredImages):
        # whatever is wrong with the file, the labels are written
        with suppress(Exception), open_image(source.encoded(row)) as image:
            return {"width": image.width, "height": image.height}
    return {}


_FIELDS: Final = ("positive_labels", "negative_labels")
_TEXT: Final = "fiftyone.core.fields.StringField"
_LISTS: Final = "fiftyone.core.fields.EmbeddedDocumentField(fiftyone.core.labels.Classifications)"


def write_fiftyone(data: Dataset, path: Path, prefix: str = "") -> None:
    """Write the observed labels as FiftyOne's ``Dataset.from_json`` reads them; names are relative to its ``rel_dir``.

    As FiftyOne keeps Open Images: ``positive_labels`` are present, ``negative_labels`` absent, a class in neither is
    unknown. The split is a tag of the sample; ``name`` is an image's name in the table where it differs from its file.
    """
    exchange = merge_splits(data)
    renamed = exchange.files != exchange.table.images
    samples = []
    for row, (place, split) in enumerate(zip(exchange.files, exchange.splits or (), strict=True)):
        lists = zip(_FIELDS, known_class_names(exchange.table, row), strict=True)
        fields = {field: _classifications(names) for field, names in lists}
        named = {"name": exchange.table.images[row]} if renamed else {}
        samples.append({"filepath": prefix + place, "tags": [split], **named, **fields})
    file = {
        "name": data.name,
        "media_type": "image",
        "sample_fields": ({"name": _TEXT} if renamed else {}) | dict.fromkeys(_FIELDS, _LISTS),
        "info": {"labels": "a class in neither positive_labels nor negative_labels is unknown", "prefix": prefix},
        "default_classes": list(data.classes),
        "samples": samples,
    }
    write_compact_json(path, file)


def read_fiftyone(path: Path) -> ExchangeTable:
    """Read what ``write_fiftyone`` wrote, or what FiftyOne's ``write_json`` makes of it."""
    file = read_json(path, "a FiftyOne data set", ("samples",))
    try:
        prefix = file.get("info", {}).get("prefix", "")
        images = [sample.get("name") or sample["filepath"].removeprefix(prefix) for sample in file["samples"]]
        present, absent = ([_class_names(sample.get(field)) for sample in file["samples"]] for field in _FIELDS)
        tags = [[tag for tag in sample.get("tags", ()) if tag in SPLITS] for sample in file["samples"]]
        classes = [str(name) for name in file.get("default_classes") or ()] or None
    except (KeyError, TypeError, AttributeError) as error:
        what = truncate_text(str(error), 200)
        raise InputError(f"{path} is not a FiftyOne data set: a sample lacks {what}.") from None
    named = all(len(found) == 1 for found in tags)
    return _from_lists(path, present, absent, classes, images, [found[0] for found in tags] if named else None)


def _from_lists(
    path: Path,
    present: list[list[str]],
    absent: list[list[str]],
    classes: list[str] | None,
    images: list[str],
    splits: list[str] | None,
) -> ExchangeTable:
    try:
        table = LabelTable.from_lists(present, absent, classes=classes, images=images)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return ExchangeTable(table, None if splits is None else tuple(splits))


def _classifications(names: list[str]) -> dict[str, Any]:
    labels = [{"_cls": "Classification", "label": name} for name in names]
    return {"_cls": "Classifications", "classifications": labels}


def _class_names(field: dict[str, Any] | None) -> list[str]:
    return [] if field is None else [label["label"] for label in field["classifications"]]


LOCAL_FILES: Final = "/data/local-files/?d="

_STATES: Final = ("present", "absent")
_TITLES: Final = {"present": "There", "absent": "Not there"}


def write_label_studio(data: Dataset, path: Path, prefix: str = LOCAL_FILES) -> Path:
    """Write the observed labels as tasks for Label Studio, and beside them the interface (``.xml``); return its path.

    A task has one annotation with two multiple choices, ``present`` and ``absent``; a class in neither is unknown.
    ``prefix`` begins every image's URL, e.g. ``https://example.org/photos/`` or ``s3://bucket/``; without one images
    come from local storage, below ``LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT``.
    """
    interface = interface_path(path)
    text = _interface(data)
    exchange = merge_splits(data)
    tasks = []
    for row, (name, split) in enumerate(zip(exchange.table.images, exchange.splits or (), strict=True)):
        file = exchange.files[row]
        url = prefix + (file if prefix.partition("://")[0] in ("s3", "gs") else quote(file))
        result = [
            {"id": state, "from_name": state, "to_name": "image", "type": "choices", "value": {"choices": names}}
            for state, names in zip(_STATES, known_class_names(exchange.table, row), strict=True)
            if names
        ]
        task: dict[str, Any] = {"data": {"image": url, "name": name, "split": split}}
        tasks.append(task | ({"annotations": [{"result": result}]} if result else {}))
    write_text(interface, text)
    write_compact_json(path, tasks)
    return interface


def read_label_studio(path: Path) -> ExchangeTable:
    """Read what ``write_label_studio`` wrote, or Label Studio's own export (JSON) of such a project.

    Classes come in the order of the interface where it is beside the tasks, else sorted. Of several annotations of a
    task the last one counts, and cancelled ones do not.
    """
    tasks = read_json(path)
    if not isinstance(tasks, list):
        raise InputError(f"{path} is not a list of Label Studio tasks.")
    try:
        images = [task["data"]["name"] for task in tasks]
        splits = [task["data"].get("split") for task in tasks]
        lists = [_selected(task) for task in tasks]
        if not all(split is None or isinstance(split, str) for split in splits):
            raise TypeError("a split that is a text")
    except (KeyError, TypeError, AttributeError) as error:
        what = truncate_text(str(error), 200)
        raise InputError(f"{path} is not a list of Label Studio tasks: one lacks {what}.") from None
    present, absent = ([selected[state] for selected in lists] for state in _STATES)
    classes = _interface_classes(interface_path(path)) or None
    return _from_lists(path, present, absent, classes, images, None if None in splits else splits)


def interface_path(path: Path) -> Path:
    """Return the path of the interface of a file of tasks."""
    if path.suffix.lower() == ".xml":
        raise InputError(f"{path} would be the interface: give the tasks another suffix, e.g. {path.stem}.json")
    return path.with_suffix(".xml")


def _selected(task: dict[str, Any]) -> dict[str, list[str]]:
    kept = [found for found in task.get("annotations") or () if not found.get("was_cancelled")]
    selected: dict[str, list[str]] = {state: [] for state in _STATES}
    for result in kept[-1]["result"] if kept else ():
        if result["from_name"] in selected:
            selected[result["from_name"]] = list(result["value"]["choices"])
    return selected


def _interface(data: Dataset) -> str:
    """Return the labeling interface: the image, and the classes twice."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name="image", value="$image")
    for state in _STATES:
        ElementTree.SubElement(view, "Header", value=_TITLES[state])
        choices = {"name": state, "toName": "image", "choice": "multiple", "showInline": "true"}
        parent = ElementTree.SubElement(view, "Choices", choices)
        for name in data.classes:
            ElementTree.SubElement(parent, "Choice", value=name)
    ElementTree.indent(view)
    text = ElementTree.tostring(view, encoding="unicode") + "\n"
    try:
        read = [choice.get("value") for choice in ElementTree.fromstring(text).iterfind("Choices/Choice")]
    except ElementTree.ParseError:
        read = []
    if read != 2 * list(data.classes):
        raise InputError(f"{data.name}: a class has a character in its name that Label Studio's interface cannot hold.")
    return text


def _interface_classes(interface: Path) -> list[str]:
    if not interface.exists():
        return []
    try:
        view = parse_xml(interface.read_bytes())
    except (ValueError, OSError) as error:
        raise InputError(f"{interface} is not a labeling interface: {truncate_text(str(error), 200)}.") from None
    return [choice.get("value", "") for choice in view.iterfind("Choices[@name='present']/Choice")]


_FORMATS: Final = {"csv": "", "parquet": "", "coco": "", "fiftyone": "FiftyOne", "labelstudio": "Label Studio"}
"""The formats; of those that name image files the tool that opens them."""


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
    path, tool = Path(out), _FORMATS[to]
    for place in (path, *([interface_path(path)] if to == "labelstudio" else [])):
        check_target(data, place, force)
    if prefix is not None and not tool:
        tools = " and ".join(name for name, tool in _FORMATS.items() if tool)
        raise InputError(f"--prefix is for {tools}: {to} names images as they are.")
    if tool and not all(isinstance(split.images, FileImages) for split in data.splits):
        raise InputError(f"{data.name} has no image files that {tool} could open. Convert it to csv, parquet or coco.")
    folder = str(data.train.images.root) if isinstance(data.train.images, FileImages) else ""
    if to == "labelstudio":
        interface = write_label_studio(data, path, LOCAL_FILES if prefix is None else prefix)
        hint = f"paste {interface} into the project's labeling interface, then import {path}"
        if prefix is None:
            hint += f"; images come from local storage, LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={folder}"
        return ConversionResult((path, interface), hint)
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
