"""The columns of a prediction file: lists of tags, or the scores, probabilities and labels of all classes.

- **lists**: ``image,present,unsure,absent``, a row per image. ``labelgap train`` reads it; unsure is unknown there.
- **wide**: a row per image with ``score.CLASS``, ``probability.CLASS``, ``label.CLASS`` and ``mark.CLASS``.
- **long**: a row per image and class with ``score``, ``probability``, ``label`` and ``mark``.

The score, the sigmoid of the logit, ranks images; the probability is the calibrated score, of classes with enough known
labels. The label is unsure where the odds (calibrated where the run is) are within a factor of the threshold's: 1.2 for
``measured`` thresholds, 1.3 for ``estimated`` ones (few known labels), 1.5 for ``borrowed`` ones (mostly from other
classes), and always for ``default`` ones (0.5, where the known labels support none).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.special import expit
from labelgap.core.text import quote_formula
from labelgap.labels.io.formats import CLASSES_KEY
from labelgap.metrics import Thresholds
from labelgap.metrics.label_model import PlattCalibration

LABELS: Final = ("absent", "present", "unsure")
LAYOUTS: Final = ("lists", "wide", "long")
UNSURE_WITHIN: Final = {"measured": 1.2, "estimated": 1.3, "borrowed": 1.5, "default": np.inf}
"""A label is unsure where the odds of its score are within this factor of the threshold's."""

_ABSENT, _PRESENT, _UNSURE = range(3)
_LISTS: Final = {"present": _PRESENT, "unsure": _UNSURE, "absent": _ABSENT}
_SEPARATOR: Final = ";"
_TEXT: Final = pa.dictionary(pa.int8(), pa.string())
_TYPES: Final = {"score": pa.float32(), "probability": pa.float32(), "label": _TEXT, "mark": _TEXT}


def labels_from_scores(
    scores: NDArray[np.float32], thresholds: Thresholds, calibration: PlattCalibration | None = None
) -> NDArray[np.int8]:
    """Return the label of every score, ``(N, K)`` indices into ``LABELS``; the module docstring gives the rule.

    Args:
        scores: ``(N, K)`` from 0 to 1.
        thresholds: per class, on scores.
        calibration: the run's, where it has one. It scales the logits of all classes, and so the odds compared.

    Example:
        >>> cuts = Thresholds(np.array([0.5, 0.5, 0.5]), ("measured", "estimated", "default"))
        >>> [LABELS[code] for code in labels_from_scores(np.array([[0.56, 0.56, 0.99]]), cuts)[0]]
        ['present', 'unsure', 'unsure']
    """
    factors = np.array([UNSURE_WITHIN[mark] for mark in thresholds.marks])
    if calibration is not None:
        factors = factors ** (1 / calibration.scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        cuts = thresholds.values / (1 - thresholds.values)
        odds = scores.astype(np.float64) / (1 - scores.astype(np.float64))
        labels = np.where(odds >= cuts * factors, _PRESENT, np.where(odds < cuts / factors, _ABSENT, _UNSURE))
    labels[:, np.isinf(factors)] = _UNSURE
    return labels.astype(np.int8)


def unsure_within() -> dict[str, float | None]:
    """Return ``UNSURE_WITHIN`` for JSON, which has no infinity."""
    return {mark: None if np.isinf(odds) else odds for mark, odds in UNSURE_WITHIN.items()}


@dataclass(frozen=True, eq=False)
class PredictionColumns:
    """The columns of a prediction file."""

    classes: tuple[str, ...]  # in the order of the logits
    thresholds: Thresholds
    calibration: PlattCalibration | None  # classes without a probability have no such column
    layout: str = "lists"

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise InputError(f"layout '{self.layout}': it must be {', '.join(LAYOUTS[:-1])} or {LAYOUTS[-1]}.")

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns; the metadata hold what the labels rest on."""
        fields = [pa.field("image", pa.string())]
        metadata = {b"labelgap": json.dumps(self.to_json(), ensure_ascii=False)}
        if self.layout == "lists":
            fields += [pa.field(name, pa.list_(pa.string())) for name in _LISTS]
            metadata[CLASSES_KEY] = json.dumps(self.classes, ensure_ascii=False)
        elif self.layout == "long":
            fields += [pa.field("class", pa.string())]
            fields += [pa.field(name, _TYPES[name]) for name, columns in self._columns.items() if len(columns)]
        else:
            fields += [
                pa.field(f"{name}.{self.classes[column]}", _TYPES[name])
                for name, columns in self._columns.items()
                for column in columns
            ]
        return pa.schema(fields, metadata=metadata)

    def to_json(self) -> dict[str, Any]:
        """Return what the columns rest on, for the file's metadata."""
        line = self.calibration
        return {
            "classes": list(self.classes),
            "thresholds": self.thresholds.values.tolist(),
            "marks": list(self.thresholds.marks),
            "unsure_within_odds": unsure_within(),
            "calibration": line and {"scale": line.scale, "offset": list(line.offset), "known": line.known},
        }

    def describe(self, logits: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return what logits ``(B, K)`` say, an entry for each class; NaN is an image that cannot be read."""
        scores = expit(logits)
        probability = np.full_like(scores, np.nan)
        if self.calibration is not None:
            calibrated = np.flatnonzero(self.calibration.classes)
            probability[:, calibrated] = self.calibration.probabilities(logits)[:, calibrated]
        labels = labels_from_scores(np.nan_to_num(scores), self.thresholds, self.calibration)
        labels[np.isnan(scores)] = _UNSURE
        return {"logit": logits, "score": scores, "probability": probability, "label": labels}

    def table(self, images: Sequence[str], found: Mapping[str, NDArray[Any]], bad: NDArray[np.bool_]) -> pa.Table:
        """Return the rows of some images, as ``describe`` has them; those of unreadable ones are blank but the name."""
        labels, names = found["label"], pa.array(images, pa.string())
        if self.layout == "lists":
            arrays = [names, *(self._lists((labels == state) & ~bad[:, None]) for state in _LISTS.values())]
            return pa.Table.from_arrays(arrays, schema=self.schema)
        count, classes = labels.shape
        column = np.broadcast_to(np.arange(classes), labels.shape)
        values = {**found, "mark": column}
        if self.layout == "wide":
            cells = ((name, number) for name, columns in self._columns.items() for number in columns)
            arrays = [names, *(self._array(name, values[name][:, number], bad) for name, number in cells)]
        else:
            arrays = [names.take(pa.array(np.repeat(np.arange(count), classes)))]
            arrays += [pa.array(self.classes, pa.string()).take(pa.array(column.ravel()))]
            kinds, mask = [name for name, columns in self._columns.items() if len(columns)], np.repeat(bad, classes)
            arrays += [self._array(name, values[name].ravel(), mask) for name in kinds]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _lists(self, chosen: NDArray[np.bool_]) -> Any:
        starts = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))]).astype(np.int32)
        return pa.ListArray.from_arrays(starts, pa.array(self.classes, pa.string()).take(pa.array(chosen.nonzero()[1])))

    @property
    def _columns(self) -> dict[str, Sequence[int]]:
        every = range(len(self.classes))
        calibrated = [] if self.calibration is None else np.flatnonzero(self.calibration.classes).tolist()
        return {"score": every, "probability": calibrated, "label": every, "mark": every}

    def _array(self, name: str, values: NDArray[Any], mask: NDArray[np.bool_]) -> Any:
        if name in ("score", "probability"):
            return pa.array(values, mask=mask | np.isnan(values))
        texts = LABELS if name == "label" else self.thresholds.marks
        distinct = sorted(set(texts))
        codes = np.array([distinct.index(text) for text in texts], dtype=np.int8)
        return pa.DictionaryArray.from_arrays(pa.array(codes[values], mask=mask), pa.array(distinct, pa.string()))


def csv_schema(columns: PredictionColumns) -> pa.Schema:
    """Return the schema of a CSV, in which a list is a text; refuse classes that no such list can hold."""
    if columns.layout == "lists" and (unfit := [name for name in columns.classes if _SEPARATOR in name]):
        raise InputError(
            f"the class '{unfit[0]}' has a '{_SEPARATOR}', which separates the names of a list in a CSV: write a "
            ".parquet file, or choose --layout wide or long."
        )
    fields = [pa.field(each.name, pa.string()) if pa.types.is_list(each.type) else each for each in columns.schema]
    return pa.schema(fields)


class CsvWriter(pa.csv.CSVWriter):  # type: ignore[misc]
    """Writes tables to a CSV; names are quoted where a spreadsheet would take them for formulas."""

    def write_table(self, table: pa.Table, max_chunksize: int | None = None) -> None:
        """Write a table; its texts are names, or lists of names."""
        for number, field in enumerate(table.schema):
            texts = table.column(number).combine_chunks()
            if pa.types.is_list(field.type):
                texts, field = pc.binary_join(texts, _SEPARATOR), pa.field(field.name, pa.string())
            if field.type == pa.string():
                names = texts.dictionary_encode()
                quoted = pa.array(map(quote_formula, names.dictionary.to_pylist()), pa.string())
                table = table.set_column(number, field, quoted.take(names.indices))
        super().write_table(table.replace_schema_metadata(), max_chunksize)
