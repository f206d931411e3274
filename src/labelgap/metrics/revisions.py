"""How many revisions of a method are correct, where the truth is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable, Revisions
from labelgap.labels.codes import PRESENT, UNKNOWN


@dataclass(frozen=True)
class RevisionQuality:
    """Revisions compared with the truth.

    Of the ``revised`` labels the last revision of each counts. ``correct`` are those of ``known_truth`` whose value is
    true (a soft target has the state beside it); ``found`` are the truly present labels that were not observed,
    ``hidden_present``, and that a hard revision sets to present. A ratio is None where nothing can be compared.
    """

    revised: int
    known_truth: int
    correct: int
    precision: float | None
    hidden_present: int
    found: int
    recall: float | None


def revision_quality(observed: LabelTable, truth: LabelTable, revisions: Revisions) -> RevisionQuality:
    """Compare revisions, in the order they were made, with the full labels of the images."""
    if (observed.images, observed.classes) != (truth.images, truth.classes):
        raise InputError("the observed labels and the truth are not of the same images and classes.")
    entries = revisions.to_table()
    row, column = revisions.indices(truth)
    place = row * len(truth.classes) + column
    last = len(place) - 1 - np.unique(place[::-1], return_index=True)[1]
    place, value = place[last], entries["value"].to_numpy()[last]
    hard = entries["target"].is_null().to_numpy()[last]
    true_code = truth.codes_at(row[last], column[last])
    comparable = (true_code != UNKNOWN) & (value != UNKNOWN)
    correct = int((comparable & (true_code == value)).sum())
    hidden = _places(truth, truth.values == PRESENT)
    hidden = hidden[~np.isin(hidden, _places(observed, observed.values != UNKNOWN))]
    found = int(np.isin(hidden, place[hard & (value == PRESENT)]).sum())
    count = int(comparable.sum())
    return RevisionQuality(
        revised=len(place),
        known_truth=count,
        correct=correct,
        precision=correct / count if count else None,
        hidden_present=len(hidden),
        found=found,
        recall=found / len(hidden) if len(hidden) else None,
    )


def _places(table: LabelTable, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return row · K + column of some labels."""
    place: NDArray[np.int64] = table.rows[chosen] * len(table.classes) + table.columns[chosen]
    return place
