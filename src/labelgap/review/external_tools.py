"""Candidates to other tools, and decisions back from them: Label Studio and FiftyOne.

Only images with something left to decide are passed on. Known labels go as they always do; the candidates go beside
them, as predictions (Label Studio) or in the field ``candidates`` (FiftyOne). What comes back is compared with what is
known here: every label that says something else is a decision.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.writers.exchange import ExchangeTable, merge_splits, read_json, write_compact_json
from labelgap.data.writers.fiftyone import read_fiftyone
from labelgap.data.writers.formats import ConversionResult, convert
from labelgap.data.writers.label_studio import read_label_studio
from labelgap.labels.codes import UNKNOWN
from labelgap.review.candidates import KINDS
from labelgap.review.events import Decision
from labelgap.review.label_key import LabelKey
from labelgap.review.session import Review

__all__ = ["ImportResult", "TOOLS", "export_candidates", "import_decisions"]

TOOLS: Final = ("labelstudio", "fiftyone")


@dataclass(frozen=True)
class ImportResult:
    """What came back.

    Attributes:
        images: how many.
        decided: labels that were not known, or known otherwise, and are decided now.
        same: labels that say what was known already.
        withdrawn: labels that are known here and ticked nowhere there; nothing is made of these.
    """

    images: int
    decided: int
    same: int
    withdrawn: int


def export_candidates(
    review: Review, to: str, out: Path, *, prefix: str | None = None, force: bool = False
) -> ConversionResult:
    """Write the images that have undecided candidates, with these, for another tool.

    Args:
        review: the review.
        to: "labelstudio" or "fiftyone".
        out: the file.
        prefix: before every image's name.
        force: whether a file that is there may be replaced.
    """
    if to not in TOOLS:
        raise UnknownNameError("tool", to, TOOLS)
    columns, standing = review.candidates.columns, review.standing
    standing.refresh()
    open_ones = np.flatnonzero(~standing.decided)
    if not len(open_ones):
        raise InputError(f"every candidate of {review.path} is decided: there is nothing to pass on.")
    suggested: dict[str, list[tuple[str, float]]] = {}
    for number in open_ones[np.argsort(-np.nan_to_num(columns.score[open_ones]), kind="stable")].tolist():
        entry = review.candidates.entry(number)
        suggested.setdefault(entry.image, []).append((entry.class_name, float(columns.score[number])))
    data = _restricted(review.folder.data, set(suggested))
    written = convert(data, to, out, prefix=prefix, force=force)
    named = merge_splits(data).table.images
    add = _add_predictions if to == "labelstudio" else _add_field
    write_compact_json(out, add(read_json(out), named, suggested, review.candidates.about.get("method", "labelgap")))
    return written


def import_decisions(review: Review, source: str, path: Path, reviewer: str) -> ImportResult:
    """Read what another tool says, and keep what is new as decisions of a reviewer.

    Args:
        review: the review.
        source: "labelstudio" or "fiftyone".
        path: the file that the tool wrote.
        reviewer: whose decisions they are.
    """
    if source not in TOOLS:
        raise UnknownNameError("tool", source, TOOLS)
    exchange = read_label_studio(path) if source == "labelstudio" else read_fiftyone(path)
    strange = next((name for name in exchange.table.classes if name not in review.folder.classes), None)
    if strange is not None:
        raise InputError(f"{path} has the class {strange!r}, which {review.path} does not have.")
    made: list[Decision] = []
    same = withdrawn = 0
    places = _places(review.folder.data, exchange, path)
    for row, (split, place) in enumerate(places):
        said = _codes(exchange, row)
        known = _codes(ExchangeTable(split.labels, None), place)
        for name, observed in known.items():
            withdrawn += name not in said
            same += said.get(name) == observed
        for name, value in said.items():
            entry = LabelKey(split.name, split.labels.images[place], name)
            standing = review.store.standing_of(entry)
            if value == (known.get(name) if standing is None else standing.value):
                same += name not in known
                continue
            made.append(_decision(review, entry, value, 0 if standing is None else standing.id))
    review.store.append(made, reviewer=reviewer, client=f"import-{uuid.uuid4().hex[:12]}")
    return ImportResult(len(places), len(made), same, withdrawn)


def _decision(review: Review, entry: LabelKey, value: int, saw: int) -> Decision:
    number = review.candidates.number_of(entry)
    if number is None:
        return Decision(entry, value, uuid.uuid4().hex, saw)
    columns = review.candidates.columns
    score = float(columns.score[number])
    kind = KINDS[columns.kind[number]]
    return Decision(entry, value, uuid.uuid4().hex, saw, kind, None if np.isnan(score) else score)


def _codes(exchange: ExchangeTable, row: int) -> dict[str, int]:
    """Return what is known of an image by class."""
    table = exchange.table
    entries = slice(int(table.starts[row]), int(table.starts[row + 1]))
    pairs = zip(table.columns[entries].tolist(), table.values[entries].tolist(), strict=True)
    return {table.classes[column]: value for column, value in pairs if value != UNKNOWN}


def _places(data: Dataset, exchange: ExchangeTable, path: Path) -> list[tuple[Split, int]]:
    """Return where the images of a file are in the data."""
    wanted = set(exchange.table.images)
    found = {
        name: (split, row) for split in data.splits for row, name in enumerate(split.labels.images) if name in wanted
    }
    lost = next((name for name in exchange.table.images if name not in found), None)
    if lost is not None:
        raise InputError(f"{path} speaks of the image {lost}, which is not among the data.")
    return [found[name] for name in exchange.table.images]


def _restricted(data: Dataset, names: set[str]) -> Dataset:
    """Return the data with some images alone."""
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
