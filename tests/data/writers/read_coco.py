"""A reader of the COCO files that labelgap writes, to test that all three states survive."""

from __future__ import annotations

import json
from pathlib import Path

from labelgap.data.writers.exchange import ExchangeTable
from labelgap.labels import ABSENT, PRESENT, LabelTable


def read_coco(path: Path) -> ExchangeTable:
    """Read a file of ``write_coco``: a class in no annotation and in no list is unknown."""
    file = json.loads(path.read_text(encoding="utf-8"))
    column = {category["id"]: number for number, category in enumerate(file["categories"])}
    row = {image["id"]: number for number, image in enumerate(file["images"])}
    present = {(row[entry["image_id"]], column[entry["category_id"]]) for entry in file["annotations"]}
    absent = {(row[image["id"]], column[each]) for image in file["images"] for each in image["neg_category_ids"]}
    entries = [(*place, state) for state, found in ((PRESENT, present), (ABSENT, absent)) for place in sorted(found)]
    rows, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
    names = [image.get("name", image["file_name"]) for image in file["images"]]
    classes = [category["name"] for category in file["categories"]]
    table = LabelTable.from_entries(rows, columns, values, classes, names)
    return ExchangeTable(table, tuple(image["split"] for image in file["images"]))
