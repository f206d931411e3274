"""Labels as one COCO JSON file, with LVIS's two lists for what plain COCO cannot express.

A class that is present in an image has annotations: one per box where boxes are known (``iscrowd`` where an object is
a crowd or marked as difficult), else one for the whole image without a box. A known absent class is in the image's
``neg_category_ids``, an unknown one in its ``not_exhaustive_category_ids`` (Gupta, Dollár and Girshick, "LVIS", CVPR
2019: tools that know these lists ignore what they find of such a class). A class in none of the
three is unknown as well. The split of an image is its ``split``, which other tools ignore.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from labelgap.data.dataset import Dataset, Split
from labelgap.data.decoding import open_image
from labelgap.data.images import ArrayImages, StoredImages
from labelgap.data.writers.exchange import merge_splits, write_compact_json
from labelgap.labels import ABSENT, PRESENT, UNKNOWN

MAX_LISTED: Final = 20_000_000
"""More unknown labels than this are not listed: a class in no list is unknown anyway."""

Place = tuple[list[float], bool]  # corners, and whether the object is marked as difficult


def write_coco(data: Dataset, path: Path) -> None:
    """Write the observed labels of all splits; boxes only of classes that are known to be present."""
    exchange = merge_splits(data)
    listed = exchange.table.counts().total[2] <= MAX_LISTED
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for split in data.splits:
        boxes = _boxes(split)
        for row, name in enumerate(split.labels.images):
            file = exchange.files[len(images)]
            image = {"id": len(images) + 1, "file_name": file, **_size(split, row), "split": split.name}
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


def _boxes(split: Split) -> dict[tuple[int, int], list[Place | None]]:
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


def _size(split: Split, row: int) -> dict[str, int]:
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
