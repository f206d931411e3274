"""The boxes of PASCAL VOC: a file ``Annotations/NAME.xml`` for each image."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from labelgap.core.errors import InputError, RunError
from labelgap.core.stored import parse_xml, read_bytes
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Boxes
from labelgap.data.images import path_inside
from labelgap.data.readers.image_paths import refuse_url
from labelgap.data.readers.official.lists import FileProblems
from labelgap.data.readers.official.splits import BoxList, Corners, check_corners
from labelgap.labels import LabelTable

ANNOTATIONS: Final = "Annotations"
_MAX_XML_BYTES: Final = 4 << 20


def read_boxes(path: str | os.PathLike[str], table: LabelTable) -> Boxes:
    """Read the boxes of the images of a table: their names are those of the files, without ``.xml``.

    Args:
        path: a folder of annotations, or a devkit with a folder ``Annotations``.
        table: of the images and classes.
    """
    refuse_url(path, "annotations")
    given = Path(path)
    years = [Path(f"VOC{year}", ANNOTATIONS) for year in ("2012", "2007")]
    places = [given / above / inside for above in ("VOCdevkit", "") for inside in years] + [given / ANNOTATIONS]
    folder = next((place for place in places if place.is_dir()), given)
    for image in table.images:
        if Path(image).name != image:
            raise InputError(f"{folder} has no boxes of '{truncate_text(image)}': an image id is the name of a file.")
    if not any((folder / f"{image}.xml").exists() for image in table.images):
        raise InputError(f"{folder} has no file {table.images[0]}.xml, nor one of another image: no box is there.")
    problems = FileProblems(folder)
    boxes = BoxList()
    read_annotations(folder, table.images, table.classes, boxes, problems)
    problems.refuse()
    return boxes.boxes()


def read_annotations(
    folder: Path, images: Sequence[str], classes: Sequence[str], boxes: BoxList, problems: FileProblems
) -> list[str]:
    """Read the objects of every image; the devkit counts pixels from 1. Returned are the files that are not there."""
    number = {name: column for column, name in enumerate(classes)}
    missing = []
    for row, image in enumerate(images):
        file = folder / f"{image}.xml"
        if path_inside(folder, file) is None or not os.path.lexists(file):
            missing.append(file.name)
            continue
        try:
            annotation = parse_xml(read_bytes(file, limit=_MAX_XML_BYTES))
        except (RunError, ValueError) as error:
            problems.add(file, f"cannot be read ({truncate_text(str(error), 200)})")
            continue
        size = _size(annotation)
        for place, each in enumerate(annotation.findall("object"), 1):
            name = (each.findtext("name") or "").strip()
            what = f"object {place} ({truncate_text(name)})"
            if name not in number:
                boxes.leave_out(f"{file.name}, {what}")
                continue
            try:
                difficult = (each.findtext("difficult") or "0").strip() == "1"
                boxes.add(row, number[name], _corners(each), difficult, f"{file.name}, {what}", size)
            except ValueError as error:
                problems.add(file, f"{what}: {truncate_text(str(error), 200)}")
    return missing


def _size(annotation: ElementTree.Element) -> tuple[float, float]:
    """Return the width and the height of an image; infinite where they are not told."""
    width, height = (annotation.findtext(f"size/{name}", "").strip() for name in ("width", "height"))
    return _positive(width), _positive(height)


def _positive(text: str) -> float:
    return (float(text) if text.isdecimal() else 0.0) or math.inf


def _corners(element: ElementTree.Element) -> Corners:
    """Return x0, y0, x1, y1 from 0; parts of an object (a person's head) have boxes of their own further in."""
    box = element.find("bndbox")
    if box is None:
        raise ValueError("it has no bndbox")
    left, top, right, bottom = (_edge(box, edge) for edge in ("xmin", "ymin", "xmax", "ymax"))
    return check_corners((left, top, right, bottom))


def _edge(box: ElementTree.Element, name: str) -> float:
    """Return an edge of a box, from 0."""
    text = box.findtext(name)
    try:
        return float(text or "") - 1.0
    except ValueError:
        raise ValueError(f"{name} is {'missing' if text is None else repr(text)}, not a number") from None
