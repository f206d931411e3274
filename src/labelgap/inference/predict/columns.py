"""The columns of a prediction file: a score, a probability where one can be given, and a label.

- **score**: the sigmoid of the logit. It ranks images; a score of 0.7 is not right in 70 % of cases.
- **probability**: the calibrated score, only for classes with enough labels in val; see ``fit_platt_calibration``.
- **label**: ``present``, ``absent`` or ``unsure``, and the **mark** of its threshold. Where the threshold is
  ``default`` (0.5, for lack of labels) it is always unsure. Otherwise it is unsure where the odds are within a factor
  of 1.5 (``measured``), 2 (``estimated``, from few known labels) or 3 (``borrowed``, from other classes) of the
  threshold's: the odds of the probability where there is one, else of the score.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.core.errors import InputError
from labelgap.core.text import quote_formula
from labelgap.metrics import Thresholds
from labelgap.metrics.calibration import PlattCalibration

__all__ = ["CsvWriter", "LABELS", "LAYOUTS", "PredictionColumns", "UNSURE_WITHIN", "labels_from_scores"]

LABELS: Final = ("absent", "present", "unsure")
LAYOUTS: Final = ("wide", "long")
UNSURE_WITHIN: Final = {"measured": 1.5, "estimated": 2.0, "borrowed": 3.0, "default": np.inf}
"""A label is unsure where the odds of its score are within this factor of the threshold's."""

_ABSENT, _PRESENT, _UNSURE = range(3)
_TEXT: Final = pa.dictionary(pa.int8(), pa.string())
_TYPES: Final = {"score": pa.float32(), "probability": pa.float32(), "label": _TEXT, "mark": _TEXT}


def labels_from_scores(
    scores: NDArray[np.float32], thresholds: Thresholds, calibration: PlattCalibration | None = None
) -> NDArray[np.int8]:
    """Return the label of every score, ``(N, K)`` indices into ``LABELS``; the module docstring gives the rule.

    Args:
        scores: ``(N, K)`` from 0 to 1.
        thresholds: per class, on scores.
        calibration: where there is one. It scales logits, and so the odds that are compared.

    Example:
        >>> cuts = Thresholds(np.array([0.5, 0.5, 0.5]), ("measured", "estimated", "default"))
        >>> [LABELS[code] for code in labels_from_scores(np.array([[0.63, 0.63, 0.99]]), cuts)[0]]
        ['present', 'unsure', 'unsure']
    """
    factors = np.array([UNSURE_WITHIN[mark] for mark in thresholds.marks])
    if calibration is not None:
        factors = np.where(calibration.classes, factors ** (1 / calibration.scale), factors)
    with np.errstate(divide="ignore", invalid="ignore"):
        cuts = thresholds.values / (1 - thresholds.values)
        odds = scores.astype(np.float64) / (1 - scores.astype(np.float64))
        labels = np.where(odds >= cuts * factors, _PRESENT, np.where(odds < cuts / factors, _ABSENT, _UNSURE))
    labels[:, np.isinf(factors)] = _UNSURE
    return labels.astype(np.int8)


@dataclass(frozen=True, eq=False)
class PredictionColumns:
    """The columns of a prediction file.

    Attributes:
        classes: names, in the order of the logits.
        thresholds: per class.
        calibration: None where no probability can be given.
        layout: "wide", a row per image with ``score.CLASS``, ``probability.CLASS``, ``label.CLASS`` and ``mark.CLASS``;
            or "long", a row per image and class. Classes without a probability have no such column.
    """

    classes: tuple[str, ...]
    thresholds: Thresholds
    calibration: PlattCalibration | None
    layout: str = "wide"

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise InputError(f"layout '{self.layout}': it is {' or '.join(LAYOUTS)}.")

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns; the metadata hold what the labels rest on."""
        fields = [pa.field("image", pa.string())]
        if self.layout == "long":
            fields += [pa.field("class", pa.string())]
            fields += [pa.field(name, _TYPES[name]) for name, columns in self._columns.items() if len(columns)]
        else:
            fields += [
                pa.field(f"{name}.{self.classes[column]}", _TYPES[name])
                for name, columns in self._columns.items()
                for column in columns
            ]
        return pa.schema(fields, metadata={"labelgap": json.dumps(self.to_json(), ensure_ascii=False)})

    def to_json(self) -> dict[str, Any]:
        """Return what the columns rest on, for the file's metadata."""
        line = self.calibration
        return {
            "classes": list(self.classes),
            "thresholds": self.thresholds.values.tolist(),
            "marks": list(self.thresholds.marks),
            "unsure_within_odds": {mark: None if np.isinf(odds) else odds for mark, odds in UNSURE_WITHIN.items()},
            "calibration": None if line is None else {"scale": line.scale, "offset": line.offset, "known": line.known},
        }

    def table(self, images: Sequence[str], logits: NDArray[np.float32], bad: NDArray[np.bool_]) -> pa.Table:
        """Return the rows of some images; those of unreadable images are blank but for the name.

        Args:
            images: N names.
            logits: ``(N, K)``
            bad: ``(N,)``, unreadable.
        """
        count, classes = logits.shape
        scores = expit(logits)
        values: dict[str, NDArray[Any]] = {
            "score": scores,
            "label": labels_from_scores(scores, self.thresholds, self.calibration),
            "mark": np.broadcast_to(np.arange(classes), logits.shape),
        }
        if self.calibration is not None:
            values["probability"] = self.calibration.probabilities(logits)
        names = pa.array(images, pa.string())
        if self.layout == "wide":
            arrays = [names]
            arrays += [
                self._array(name, values[name][:, column], bad)
                for name, columns in self._columns.items()
                for column in columns
            ]
        else:
            arrays = [names.take(pa.array(np.repeat(np.arange(count), classes)))]
            arrays += [pa.array(self.classes, pa.string()).take(pa.array(values["mark"].ravel()))]
            mask = np.repeat(bad, classes)
            arrays += [
                self._array(name, values[name].ravel(), mask) for name, columns in self._columns.items() if len(columns)
            ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    @property
    def _columns(self) -> dict[str, Sequence[int]]:
        """The classes of every kind of column."""
        every = range(len(self.classes))
        calibrated = [] if self.calibration is None else np.flatnonzero(self.calibration.classes).tolist()
        return {"score": every, "probability": calibrated, "label": every, "mark": every}

    def _array(self, name: str, values: NDArray[Any], mask: NDArray[np.bool_]) -> Any:
        """Return a column, blank where masked; texts are stored once each."""
        if name in ("score", "probability"):
            return pa.array(values, mask=mask | np.isnan(values))
        texts = LABELS if name == "label" else self.thresholds.marks
        distinct = sorted(set(texts))
        codes = np.array([distinct.index(text) for text in texts], dtype=np.int8)
        return pa.DictionaryArray.from_arrays(pa.array(codes[values], mask=mask), pa.array(distinct, pa.string()))


class CsvWriter(pa.csv.CSVWriter):  # type: ignore[misc]
    """Writes tables to a CSV; names are quoted where a spreadsheet would take them for formulas."""

    def write_table(self, table: pa.Table, max_chunksize: int | None = None) -> None:
        """Write a table; its texts are names."""
        for number, field in enumerate(table.schema):
            if field.type == pa.string():
                names = table.column(number).combine_chunks().dictionary_encode()
                quoted = pa.array(map(quote_formula, names.dictionary.to_pylist()), pa.string())
                table = table.set_column(number, field, quoted.take(names.indices))
        super().write_table(table, max_chunksize)
