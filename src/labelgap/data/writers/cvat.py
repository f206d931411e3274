"""CVAT: its XML for images (version 1.1); a tag or shape without the attribute ``state`` is a present class."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from labelgap.core.errors import InputError
from labelgap.core.files import write_text
from labelgap.core.stored import parse_xml
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset
from labelgap.data.writers.exchange import (
    ExchangeTable,
    from_lists,
    image_sizes,
    known_class_names,
    merge_splits,
    write_compact_json,
)

_STATES: Final = ("present", "absent")
_ATTRIBUTE: Final[dict[str, Any]] = {
    "name": "state",
    "mutable": False,
    "input_type": "select",
    "default_value": "present",
    "values": list(_STATES),
}


def labels_path(path: Path) -> Path:
    """Return the path of the labels of a project, which are written beside its annotations."""
    if path.suffix.lower() == ".json":
        raise InputError(f"{path} would be the labels: give the annotations another suffix, e.g. {path.stem}.xml")
    return path.with_suffix(".json")


def write_cvat(data: Dataset, path: Path, prefix: str = "") -> Path:
    """Write the observed labels as annotations, and the labels of the project beside them; return their path."""
    exchange = merge_splits(data)
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    labels = ElementTree.SubElement(ElementTree.SubElement(ElementTree.SubElement(root, "meta"), "task"), "labels")
    for name in data.classes:
        label = ElementTree.SubElement(labels, "label")
        ElementTree.SubElement(label, "name").text = name
        ElementTree.SubElement(label, "type").text = "tag"
        attribute = ElementTree.SubElement(ElementTree.SubElement(label, "attributes"), "attribute")
        for key, value in _ATTRIBUTE.items():
            text = "\n".join(value) if isinstance(value, list) else str(value)
            ElementTree.SubElement(attribute, key).text = text
    sizes = [size for split in data.splits for size in image_sizes(split)]
    for row, (file, split) in enumerate(zip(exchange.files, exchange.splits or (), strict=True)):
        size = {key: str(value) for key, value in sizes[row].items()}
        image = ElementTree.SubElement(root, "image", {"id": str(row), "name": prefix + file, "subset": split, **size})
        for state, names in zip(_STATES, known_class_names(exchange.table, row), strict=True):
            for name in names:
                tag = ElementTree.SubElement(image, "tag", label=name, source="manual")
                ElementTree.SubElement(tag, "attribute", name="state").text = state
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    try:
        ElementTree.fromstring(text)
    except ElementTree.ParseError:
        raise InputError(
            f"{data.name}: a class or an image has a character in its name that XML cannot hold."
        ) from None
    labels_file = labels_path(path)
    write_compact_json(
        labels_file, [{"name": name, "type": "tag", "attributes": [_ATTRIBUTE]} for name in data.classes]
    )
    write_text(path, '<?xml version="1.0" encoding="utf-8"?>\n' + text + "\n")
    return labels_file


def read_cvat(path: Path, unlisted: str = "unknown") -> ExchangeTable:
    """Read what ``write_cvat`` wrote, or CVAT's own export "CVAT for images" of tags, boxes and other shapes."""
    try:
        root = parse_xml(path.read_bytes())
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as XML: {truncate_text(str(error), 200)}.") from None
    images = root.findall("image")
    if root.tag != "annotations" or not images:
        raise InputError(f"{path} has no images in 'annotations': export the task from CVAT as 'CVAT for images 1.1'.")
    unnamed = next((number for number, image in enumerate(images, start=1) if not image.get("name")), None)
    if unnamed is not None:
        raise InputError(f"{path}: image {unnamed} has no name.")
    lists = [_labels_of(image) for image in images]
    present, absent = ([found[state] for found in lists] for state in _STATES)
    classes = list(dict.fromkeys(name.text or "" for name in root.iterfind("meta//labels/label/name")))
    tags = [[image.get("subset", "")] for image in images]
    # an image without any label may be one that nobody opened
    complete = None if unlisted == "unknown" else [bool(here or out) for here, out in zip(present, absent, strict=True)]
    return from_lists(
        path, present, absent, classes or None, [image.get("name", "") for image in images], tags, complete
    )


def _labels_of(image: ElementTree.Element) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {state: [] for state in _STATES}
    for shape in image.iterfind("*[@label]"):
        states = [(each.text or "").strip().lower() for each in shape.iterfind("attribute[@name='state']")]
        listed = found["absent" if states == ["absent"] else "present"]
        if (name := shape.get("label", "")) not in listed:
            listed.append(name)
    return found
