"""Exchange with Label Studio and FiftyOne: candidates out, decisions back; as files, and with FiftyOne also live.

Images with undecided candidates are exported with their known labels. Every label of an import that differs from what
is known here becomes a decision.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from labelgap.audit.candidates import Audit
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.writers.exchange import ExchangeTable, merge_splits, read_json, write_compact_json
from labelgap.data.writers.fiftyone import live_name, read_fiftyone, read_fiftyone_decisions, write_fiftyone_candidates
from labelgap.data.writers.formats import ConversionResult, convert
from labelgap.data.writers.label_studio import read_label_studio
from labelgap.labels import LabelTable
from labelgap.labels.codes import UNKNOWN
from labelgap.review.session import Review
from labelgap.review.store import Decision, LabelKey

TOOLS: Final = ("labelstudio", "fiftyone")


@dataclass(frozen=True)
class ImportResult:
    """What an import brought."""

    images: int  # how many
    decided: int  # labels that were unknown or different here and are decided now
    same: int  # labels that agree with what is known here
    withdrawn: int  # labels that are known here and missing from the file; they are ignored


def export_candidates(
    review: Review, to: str, out: Path, *, prefix: str | None = None, force: bool = False
) -> ConversionResult:
    """Write the images that have undecided candidates, and these candidates, for one of ``TOOLS``."""
    if to not in TOOLS:
        raise UnknownNameError("tool", to, TOOLS)
    score = review.candidates.columns.score
    review.current.refresh()
    audited = review.candidates.columns.class_number < len(review.folder.classes)
    undecided = np.flatnonzero(review.is_open() & audited)
    if not len(undecided):
        raise InputError(f"every candidate of {review.path} is decided: there is nothing to export.")
    suggested: dict[str, list[tuple[str, float]]] = {}
    for number in undecided[np.argsort(-np.nan_to_num(score[undecided]), kind="stable")].tolist():
        key = review.candidates.key(number)
        suggested.setdefault(key.image, []).append((key.class_name, float(score[number])))
    data = _select_images(review.folder.data, set(suggested))
    written = convert(data, to, out, prefix=prefix, force=force)
    images = merge_splits(data).table.images
    add = _add_predictions if to == "labelstudio" else _add_field
    method = review.candidates.metadata.get("method", "labelgap")
    write_compact_json(out, add(read_json(out), images, suggested, method))
    return written


def fiftyone_view(samples: Any, audit: Audit) -> Any:
    """Return a view of a live FiftyOne data set, the most probable candidates first, to be tagged by a person."""
    table = audit.of_kind("missing")
    found: dict[str, list[tuple[str, float]]] = {}
    for image, name, score in zip(*(table[column].to_pylist() for column in ("image", "class", "score")), strict=True):
        found.setdefault(image, []).append((name, score))
    return write_fiftyone_candidates(samples, found)


def import_decisions(review: Review, source: str, path: Any, reviewer: str) -> ImportResult:
    """Store what was labeled with one of ``TOOLS``, where it is new here, as decisions of a reviewer.

    ``path`` is the file that the tool wrote; or a live FiftyOne data set whose ``candidates`` have tags.
    """
    if source not in TOOLS:
        raise UnknownNameError("tool", source, TOOLS)
    is_file = isinstance(path, Path)
    if not is_file:
        exchange = read_fiftyone_decisions(path, review.candidates.classes, review.folder.data)
    else:
        exchange = read_label_studio(path) if source == "labelstudio" else read_fiftyone(path)
    result = store_labels(review, exchange, reviewer, path if is_file else Path(live_name(path)))
    return result if is_file else replace(result, withdrawn=0)  # tags of a live data set are of candidates alone


def store_labels(
    review: Review, exchange: ExchangeTable, reviewer: str, path: Path, client: str | None = None
) -> ImportResult:
    """Store the labels of a table that are new in a review as decisions; ``path`` is where they are from."""
    unknown = next((name for name in exchange.table.classes if name not in review.candidates.classes), None)
    if unknown is not None:
        raise InputError(f"{path} has the class {unknown!r}, which {review.path} does not have.")
    new: list[Decision] = []
    same = withdrawn = 0
    locations = _locate(review.folder.data, exchange, path)
    for row, (split, position) in enumerate(locations):
        imported = _known_codes(exchange.table, row)
        known = _known_codes(split.labels, position)
        for name, observed in known.items():
            withdrawn += name not in imported
            same += imported.get(name) == observed
        for name, value in imported.items():
            key = LabelKey(split.name, split.labels.images[position], name)
            current = review.store.current_for(key)
            if value == (known.get(name) if current is None else current.value):
                same += name not in known
                continue
            version, number = 0 if current is None else current.id, review.candidates.number_of(key)
            made = (value, uuid.uuid4().hex, version)
            new.append(Decision(key, *made) if number is None else review.decision(number, *made))
    review.store.append(new, reviewer=reviewer, client=client or f"import-{uuid.uuid4().hex[:12]}")
    return ImportResult(len(locations), len(new), same, withdrawn)


def _known_codes(table: LabelTable, row: int) -> dict[str, int]:
    entries = slice(int(table.starts[row]), int(table.starts[row + 1]))
    pairs = zip(table.columns[entries].tolist(), table.values[entries].tolist(), strict=True)
    return {table.classes[column]: value for column, value in pairs if value != UNKNOWN}


def _locate(data: Dataset, exchange: ExchangeTable, path: Path) -> list[tuple[Split, int]]:
    locations = {name: (split, row) for split in data.splits for row, name in enumerate(split.labels.images)}
    lost = next((name for name in exchange.table.images if name not in locations), None)
    if lost is not None:
        raise InputError(f"{path} has the image {lost}, which the data do not have.")
    return [locations[name] for name in exchange.table.images]


def _select_images(data: Dataset, names: set[str]) -> Dataset:
    splits = {}
    for split in data.splits:
        rows = [row for row, name in enumerate(split.labels.images) if name in names]
        splits[split.name] = Split(split.name, split.images.select(rows), split.labels.select(rows))
    return replace(data, **splits)  # type: ignore[arg-type]


def _add_predictions(
    tasks: Any, names: tuple[str, ...], suggested: dict[str, list[tuple[str, float]]], method: str
) -> Any:
    for task, name in zip(tasks, names, strict=True):
        choices = [class_name for class_name, _ in suggested[name]]
        scores = [score for _, score in suggested[name] if not np.isnan(score)]
        result = {"id": "candidates", "from_name": "present", "to_name": "image", "type": "choices"}
        prediction: dict[str, Any] = {
            "model_version": f"labelgap {method}",
            "result": [{**result, "value": {"choices": choices}}],
        }
        task["predictions"] = [prediction | ({"score": max(scores)} if scores else {})]
    return tasks


def _add_field(file: Any, names: tuple[str, ...], suggested: dict[str, list[tuple[str, float]]], method: str) -> Any:
    for sample, name in zip(file["samples"], names, strict=True):
        labels = [
            {"_cls": "Classification", "label": class_name} | ({} if np.isnan(score) else {"confidence": score})
            for class_name, score in suggested[name]
        ]
        sample["candidates"] = {"_cls": "Classifications", "classifications": labels}
    file["sample_fields"]["candidates"] = file["sample_fields"]["positive_labels"]
    file["info"]["candidates"] = f"labels that may be missing, by labelgap {method}"
    return file
