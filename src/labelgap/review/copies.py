"""Copies of an image are asked about once, and answered together.

The copies are those that the data have, as their reader finds them: files with the same content, and images that look
the same (its option ``duplicates``). The first candidate that a class's list would show stands for its copies; a
decision on it is stored for all of them, also for copies whose label is no candidate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.review.candidates import WRONG, Candidates
from labelgap.review.store.events import LabelKey
from labelgap.training.folds import duplicate_groups

__all__ = ["Copies", "find_copies"]


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies of images, and the candidates that are asked about.

    Attributes:
        others: split and image → the names of its copies in that split, for images that have any.
        shown: ``(C,)`` whether a candidate is asked about; False where a copy is asked about in its place.
    """

    others: dict[tuple[str, str], tuple[str, ...]]
    shown: NDArray[np.bool_]

    def of(self, key: LabelKey) -> tuple[LabelKey, ...]:
        """Return the same label of the copies of an image."""
        return tuple(key._replace(image=name) for name in self.others.get((key.split, key.image), ()))


def find_copies(data: Dataset, candidates: Candidates, decided: NDArray[np.bool_]) -> Copies:
    """Find the copies among the images of the data, and the candidates that stand for them.

    ``decided`` ``(C,)`` says which candidates are decided already: where not all copies are, an undecided one is asked.
    """
    others: dict[tuple[str, str], tuple[str, ...]] = {}
    first: dict[tuple[str, str], str] = {}
    for split in data.splits:
        members: dict[int, list[str]] = {}
        for name, group in zip(split.labels.images, duplicate_groups(data, split.name).tolist(), strict=True):
            members.setdefault(group, []).append(name)
        for names in members.values():
            for name in names if len(names) > 1 else ():
                others[split.name, name] = tuple(each for each in names if each != name)
                first[split.name, name] = names[0]
    return Copies(others, _stands_for_copies(candidates, first, decided))


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
