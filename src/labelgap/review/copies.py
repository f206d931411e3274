"""Copies of an image are asked about once, and answered together.

The copies are those that the data have, as their reader finds them: files with the same content, and images that look
the same (its option ``duplicates``). The first candidate that a class's list would show stands for its copies; a
decision on it is stored for all of them, also for copies whose label is no candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.labels.codes import UNKNOWN
from labelgap.review.candidates import WRONG, Candidates
from labelgap.review.store.events import LabelKey
from labelgap.training.folds import duplicate_groups


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies of images, and the candidates that are asked about.

    Attributes:
        data: that the images are of.
        others: split and image → the names of its copies in that split, for images that have any.
        rows: split and image → its row, for the same images.
        shown: ``(C,)`` whether a candidate is asked about; False where a copy is asked about in its place.
    """

    data: Dataset
    others: dict[tuple[str, str], tuple[str, ...]]
    rows: dict[tuple[str, str], int]
    shown: NDArray[np.bool_]

    def of(self, key: LabelKey, known: bool = True) -> tuple[LabelKey, ...]:
        """Return the same label of the copies of an image; without ``known``, where the data do not know it."""
        copies = (key._replace(image=name) for name in self.others.get((key.split, key.image), ()))
        return tuple(each for each in copies if known or not self._is_known(each))

    def _is_known(self, key: LabelKey) -> bool:
        row, number = self.rows[key.split, key.image], self._class_numbers.get(key.class_name)
        return number is not None and int(self.data.split(key.split).labels.codes_at([row], [number])[0]) != UNKNOWN

    @cached_property
    def _class_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.data.classes)}


def find_copies(data: Dataset, candidates: Candidates, decided: NDArray[np.bool_]) -> Copies:
    """Find the copies among the images of the data, and the candidates that stand for them.

    ``decided`` ``(C,)`` says which candidates are decided already: where not all copies are, an undecided one is asked.
    """
    others: dict[tuple[str, str], tuple[str, ...]] = {}
    rows: dict[tuple[str, str], int] = {}
    first: dict[tuple[str, str], str] = {}
    for split in data.splits:
        images, members = split.labels.images, dict[int, list[int]]()
        for row, group in enumerate(duplicate_groups(data, split.name).tolist()):
            members.setdefault(group, []).append(row)
        for group_rows in members.values():
            for row in group_rows if len(group_rows) > 1 else ():
                key = split.name, images[row]
                others[key] = tuple(images[each] for each in group_rows if each != row)
                rows[key], first[key] = row, images[group_rows[0]]
    return Copies(data, others, rows, _stands_for_copies(candidates, first, decided))


def _stands_for_copies(
    candidates: Candidates, first: dict[tuple[str, str], str], decided: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return ``(C,)``: whether a candidate is the first of its copies in the list of its class."""
    columns = candidates.columns
    numbers: dict[tuple[str, str], int] = {}
    group = np.array(
        [numbers.setdefault((split, first.get((split, name), name)), len(numbers)) for split, name in columns.images],
        dtype=np.int64,
    )
    question = (group[columns.image] * len(candidates.classes) + columns.class_number) * 2 + (columns.kind == WRONG)
    order = np.lexsort((columns.ids, candidates.positions.shown, decided, question))
    shown = np.zeros(len(order), dtype=np.bool_)
    shown[order] = np.diff(question[order], prepend=-1) != 0
    return shown
