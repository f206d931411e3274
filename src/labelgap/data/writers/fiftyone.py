"""Labels as FiftyOne's JSON: what its ``Dataset.from_json`` reads.

    dataset = fiftyone.Dataset.from_json("tags.json", rel_dir="photos/")

As FiftyOne keeps Open Images: ``positive_labels`` are known to be present, ``negative_labels`` known to be absent, and
a class in neither is unknown. The split is a tag of the sample; ``name`` is an image's name in the table
where it differs from its file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset
from labelgap.data.writers.exchange import ExchangeTable, known_class_names, merge_splits, read_json, write_compact_json
from labelgap.labels import LabelTable
from labelgap.labels.io.table_file import SPLITS

_FIELDS: Final = ("positive_labels", "negative_labels")
_TEXT: Final = "fiftyone.core.fields.StringField"
_LISTS: Final = "fiftyone.core.fields.EmbeddedDocumentField(fiftyone.core.labels.Classifications)"


def write_fiftyone(data: Dataset, path: Path, prefix: str = "") -> None:
    """Write the observed labels of all splits; without a prefix names are relative, to FiftyOne's ``rel_dir``."""
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
        present, absent = ([_names(sample.get(field)) for sample in file["samples"]] for field in _FIELDS)
        tags = [[tag for tag in sample.get("tags", ()) if tag in SPLITS] for sample in file["samples"]]
        classes = [str(name) for name in file.get("default_classes") or ()] or None
    except (KeyError, TypeError, AttributeError) as error:
        what = truncate_text(str(error), 200)
        raise InputError(f"{path} is not a FiftyOne data set: a sample lacks {what}.") from None
    try:
        table = LabelTable.from_lists(present, absent, classes=classes, images=images)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    named = all(len(found) == 1 for found in tags)
    return ExchangeTable(table, tuple(found[0] for found in tags) if named else None)


def _classifications(names: list[str]) -> dict[str, Any]:
    labels = [{"_cls": "Classification", "label": name} for name in names]
    return {"_cls": "Classifications", "classifications": labels}


def _names(field: dict[str, Any] | None) -> list[str]:
    return [] if field is None else [label["label"] for label in field["classifications"]]
