"""FiftyOne: its JSON files, and live data sets; ``positive_labels`` are present, ``negative_labels`` absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import match_name
from labelgap.data.writers.exchange import (
    ExchangeTable,
    from_lists,
    known_class_names,
    merge_splits,
    read_json,
    write_compact_json,
)

_FIELDS: Final = ("positive_labels", "negative_labels")
_TEXT: Final = "fiftyone.core.fields.StringField"
_LISTS: Final = "fiftyone.core.fields.EmbeddedDocumentField(fiftyone.core.labels.Classifications)"


def write_fiftyone(data: Dataset, path: Path, prefix: str = "") -> None:
    """Write the observed labels as FiftyOne's ``Dataset.from_json`` reads them; the split is a tag of the sample."""
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
        tags = [sample.get("tags", ()) for sample in file["samples"]]
        classes = [str(name) for name in file.get("default_classes") or ()] or None
    except (KeyError, TypeError, AttributeError) as error:
        what = truncate_text(str(error), 200)
        raise InputError(f"{path} is not a FiftyOne data set: a sample lacks {what}.") from None
    return from_lists(path, present, absent, classes, images, tags)


def to_fiftyone(data: Dataset, name: str | None = None) -> Any:
    """Return a live ``fiftyone.Dataset`` of the observed labels; ``name`` is its name in FiftyOne's database."""
    try:
        import fiftyone
    except ImportError as error:
        raise InputError(f"FiftyOne cannot be imported ({error}): pip install fiftyone.") from None
    images = data.train.images
    if not isinstance(images, FileImages):
        raise InputError(f"{data.name} has no image files that FiftyOne could open.")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "samples.json")
        write_fiftyone(data, file)
        return fiftyone.Dataset.from_json(str(file), name=name, rel_dir=str(images.root))


def live_name(samples: Any) -> str:
    """Return the name of a data set, or of that of a view."""
    return str(samples.name if hasattr(samples, "persistent") else samples.dataset_name)


def read_live_fiftyone(samples: Any, field: str | None = None, unlisted: str = "unknown") -> tuple[Path, ExchangeTable]:
    """Return the folder of the images, and the labels, of a live data set or view; see ``load_live_fiftyone``."""
    paths, name = samples.values("filepath"), live_name(samples)
    if not paths:
        raise InputError(f"the FiftyOne data set {name} has no samples.")
    root = Path(os.path.commonpath([Path(path).parent for path in paths]))
    kinds = samples.get_field_schema()
    fields = _FIELDS if field is None and _FIELDS[0] in kinds else (field or _only_field(samples, kinds),)
    values = [_field_values(samples, kinds, each) for each in fields if each in kinds or field is not None]
    empty: list[list[str] | None] = [None] * len(paths)
    present, absent = [*values, empty][:2]
    complete = None if unlisted == "unknown" else [each is not None for each in present]
    names = [os.path.relpath(path, root) for path in paths]
    classes = samples.classes.get(fields[0]) or samples.default_classes or None
    lists = [each or [] for each in present], [each or [] for each in absent]
    table = from_lists(Path(name), *lists, classes, names, samples.values("tags"), complete)
    return root, table


_LABELS: Final = {
    "Classifications": "classifications.label",
    "Detections": "detections.label",
    "Classification": "label",
}
"""FiftyOne's kinds of labels that say what an image shows, and where they have the names."""


def _kind(field: Any) -> str:
    return str(getattr(getattr(field, "document_type", None), "__name__", ""))


def _only_field(samples: Any, kinds: Any) -> str:
    found: list[str] = [name for name, field in kinds.items() if _kind(field) in _LABELS]
    if len(found) != 1:
        has = f"the fields {', '.join(found)}: say which has the labels, field=…" if found else "no field of labels."
        raise InputError(f"the FiftyOne data set {live_name(samples)} has {has}")
    return found[0]


def _field_values(samples: Any, kinds: Any, name: str) -> list[list[str] | None]:
    """Return the names of a field's labels, each once, for every sample; None where the field has no value."""
    if _kind(kinds.get(name)) not in _LABELS:
        raise InputError(f"the FiftyOne data set {live_name(samples)} has no field {name!r} of {', '.join(_LABELS)}.")
    values: Sequence[str | list[str] | None] = samples.values(f"{name}.{_LABELS[_kind(kinds[name])]}")
    return [None if each is None else list(dict.fromkeys([each] if isinstance(each, str) else each)) for each in values]


def write_fiftyone_candidates(samples: Any, candidates: Mapping[str, Sequence[tuple[str, float]]]) -> Any:
    """Write candidates, (class, probability) by image, to fields of a live data set; return a view of them."""
    import fiftyone

    names = _names_of(samples, candidates)
    found: list[Sequence[tuple[str, float]]] = [candidates.get(name, ()) for name in names]
    labels = [
        fiftyone.Classifications(
            classifications=[fiftyone.Classification(label=name, confidence=score) for name, score in each]
        )
        for each in found
    ]
    samples.set_values("candidates", labels)
    samples.set_values("candidate_probability", [max((score for _, score in each), default=None) for each in found])
    view = samples.match(fiftyone.ViewField("candidate_probability") > 0)
    return view.sort_by("candidate_probability", reverse=True)


def read_fiftyone_decisions(samples: Any, classes: Sequence[str], data: Dataset) -> ExchangeTable:
    """Read the candidates of a live data set that a person tagged ``present`` or ``absent``."""
    names = _names_of(samples, {name for split in data.splits for name in split.labels.images})
    labels, tags = (samples.values(f"candidates.classifications.{each}") for each in ("label", "tags"))
    lists: dict[str, list[list[str]]] = {"present": [], "absent": []}
    for here, tagged in zip(labels, tags, strict=True):
        for state, rows in lists.items():
            rows.append([name for name, given in zip(here or (), tagged or (), strict=True) if state in given])
    kept = [row for row in range(len(names)) if lists["present"][row] or lists["absent"][row]]
    present, absent = ([rows[row] for row in kept] for rows in lists.values())
    place = Path(live_name(samples))
    return from_lists(place, present, absent, classes, [names[row] for row in kept], [()] * len(kept))


def _names_of(samples: Any, known: Container[str]) -> list[str]:
    """Return the name of every sample's image: the end of its path that is a known name, else its path."""
    return [match_name(path, known) or path for path in samples.values("filepath")]


def _classifications(names: list[str]) -> dict[str, Any]:
    labels = [{"_cls": "Classification", "label": name} for name in names]
    return {"_cls": "Classifications", "classifications": labels}


def _class_names(field: dict[str, Any] | None) -> list[str]:
    return [] if field is None else [label["label"] for label in field["classifications"]]
