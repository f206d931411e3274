"""What a file of predictions says of an image: a score, where it can be told a probability, and a label.

- **score**: the sigmoid of the logit. It ranks images; how often a score of 0.7 is right, nobody has checked.
- **probability**: the calibrated score. Only for classes of which val has labels enough; see ``calibration_of``.
- **label**: ``present``, ``absent`` or ``unsure``, and the **mark** of its threshold. Where the threshold is
  ``default`` (0.5, for want of labels) it is always unsure. Else it is unsure where the odds are within a factor of 1.5
  (``measured``) or 2 (``estimated``, from known presents alone) of the threshold's: the odds of the probability where
  there is one, else of the score.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit

from labelgap.core.errors import InputError
from labelgap.metrics import Thresholds
from labelgap.metrics.calibration import PlattCalibration

__all__ = ["LABELS", "LAYOUTS", "PredictionColumns", "UNSURE_WITHIN", "labels_from_scores"]

LABELS: Final = ("absent", "present", "unsure")
LAYOUTS: Final = ("wide", "long")
UNSURE_WITHIN: Final = {"measured": 1.5, "estimated": 2.0, "default": np.inf}
"""A label is unsure where the odds of its score are within this factor of the threshold's."""

_ABSENT, _PRESENT, _UNSURE = range(3)


def labels_from_scores(
    scores: NDArray[np.float32], thresholds: Thresholds, calibration: PlattCalibration | None = None
) -> NDArray[np.int8]:
    """Return which of ``LABELS`` every score comes to, ``(N, K)``; see the head of this file for the rule.

    Args:
        scores: ``(N, K)`` from 0 to 1.
        thresholds: per class, on scores.
        calibration: where there is one. It stretches logits, and so the odds that are compared.

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
        made = np.where(odds >= cuts * factors, _PRESENT, np.where(odds < cuts / factors, _ABSENT, _UNSURE))
    made[:, np.isinf(factors)] = _UNSURE
    return made.astype(np.int8)


@dataclass(frozen=True, eq=False)
class PredictionColumns:
    """The columns of a file of predictions.

    Attributes:
        classes: names, in the order of the logits.
        thresholds: per class.
        calibration: None where no probability can be told.
        kind: "wide", a row per image with ``score.CLASS``, ``probability.CLASS``, ``label.CLASS`` and ``mark.CLASS``;
            or "long", a row per image and class. A probability that no class has is no column.
    """

    classes: tuple[str, ...]
    thresholds: Thresholds
    calibration: PlattCalibration | None
    kind: str = "wide"

    def __post_init__(self) -> None:
        if self.kind not in LAYOUTS:
            raise InputError(f"layout '{self.kind}': it is {' or '.join(LAYOUTS)}.")

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns, and in the metadata what the labels rest on."""
        word = pa.dictionary(pa.int8(), pa.string())
        types = {"score": pa.float32(), "probability": pa.float32(), "label": word, "mark": word}
        fields = [pa.field("image", pa.string())]
        if self.kind == "long":
            fields += [pa.field("class", pa.string())]
            kinds = [kind for kind in types if kind != "probability" or self._calibrated]
            fields += [pa.field(kind, types[kind]) for kind in kinds]
        else:
            for kind, type_ in types.items():
                columns = self._calibrated if kind == "probability" else range(len(self.classes))
                fields += [pa.field(f"{kind}.{self.classes[column]}", type_) for column in columns]
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
        """Return the rows of some images; those of a bad one are blank but for its name.

        Args:
            images: N names.
            logits: ``(N, K)``
            bad: ``(N,)`` which could not be read.
        """
        blank = np.repeat(bad[:, None], len(self.classes), axis=1)
        scores = expit(logits)
        chance = None if self.calibration is None else self.calibration.probabilities(logits)
        labels = labels_from_scores(scores, self.thresholds, self.calibration)
        if self.kind == "long":
            return self._long(images, scores, chance, labels, blank)
        arrays: list[Any] = [pa.array(images, pa.string())]
        columns = range(len(self.classes))
        arrays += [pa.array(scores[:, column], mask=bad) for column in columns]
        arrays += [pa.array(chance[:, column], mask=bad) for column in self._calibrated if chance is not None]
        arrays += [_words(labels[:, column], LABELS, bad) for column in columns]
        arrays += [_words(np.full(len(bad), column), self.thresholds.marks, bad) for column in columns]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _long(
        self,
        images: Sequence[str],
        scores: NDArray[np.float32],
        chance: NDArray[np.float32] | None,
        labels: NDArray[np.int8],
        blank: NDArray[np.bool_],
    ) -> pa.Table:
        count, width = blank.shape
        mask = blank.ravel()
        column = np.tile(np.arange(width), count)
        arrays: list[Any] = [
            pa.array(images, pa.string()).take(pa.array(np.repeat(np.arange(count), width))),
            pa.array(self.classes, pa.string()).take(pa.array(column)),
            pa.array(scores.ravel(), mask=mask),
        ]
        if self._calibrated and chance is not None:
            arrays.append(pa.array(chance.ravel(), mask=mask | np.isnan(chance.ravel())))
        arrays += [_words(labels.ravel(), LABELS, mask), _words(column, self.thresholds.marks, mask)]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    @property
    def _calibrated(self) -> list[int]:
        """The columns of calibrated classes."""
        return [] if self.calibration is None else np.flatnonzero(self.calibration.classes).tolist()


def _words(numbers: NDArray[Any], words: Sequence[str], mask: NDArray[np.bool_]) -> Any:
    """Return words by their numbers, each word stored once; blank where masked."""
    different = sorted(set(words))
    place = np.array([different.index(word) for word in words], dtype=np.int8)
    return pa.DictionaryArray.from_arrays(pa.array(place[numbers], mask=mask), pa.array(different, pa.string()))
