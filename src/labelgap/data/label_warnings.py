"""What looks wrong with the labels of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from labelgap.core.findings import Finding
from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT

__all__ = [
    "AllKnown",
    "FewPresent",
    "LabelWarning",
    "NeverPresent",
    "NoLabel",
    "NotInTrain",
    "RARE_BELOW",
    "label_warnings",
]

RARE_BELOW: Final = 10
"""A class with fewer known positives is called rare: little can be learned of it."""


@dataclass(frozen=True)
class LabelWarning(Finding):
    """Something that looks wrong with labels.

    Attributes:
        noun: what the data's owner calls the thing it is about: an image or a class.
        count: of such things.
        names: the classes, if it is about classes; the sentence leaves them out.
    """

    noun: str
    count: int
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{pluralize(self.count, self.noun)} {self.text}"


class NeverPresent(LabelWarning, text="never known to be present"):
    """Classes without a known positive."""


class FewPresent(LabelWarning, text=f"with fewer than {RARE_BELOW} known positives"):
    """Classes with too few known positives."""


class NotInTrain(LabelWarning, text="present in val or test but never in train"):
    """Classes that are present in val or test only."""


class NoLabel(LabelWarning, text="with no label at all"):
    """Images without a known label."""


@dataclass(frozen=True)
class AllKnown(LabelWarning):
    """No label is unknown; ``zeros`` tells whether they come from a table whose 0 may mean "not tagged"."""

    zeros: bool = False

    def __str__(self) -> str:
        hint = "; if 0 only means 'not tagged', add --zeros unknown" if self.zeros else ""
        return f"every label is known, nothing is missing here{hint}"


def label_warnings(data: Dataset, image_word: str, class_word: str) -> list[LabelWarning]:
    """Return what looks wrong.

    Args:
        data: the data set.
        image_word: "photo" or "image", whichever its owner would say.
        class_word: "tag" or "class".
    """
    counts = [split.labels.counts() for split in data.splits]
    present = np.sum([count.present for count in counts], axis=0)
    classes = {
        NeverPresent: present == 0,
        FewPresent: (present > 0) & (present < RARE_BELOW),
        NotInTrain: (present > 0) & (counts[0].present == 0),
    }
    found: list[LabelWarning] = []
    for kind, which in classes.items():
        names = tuple(data.classes[column] for column in np.flatnonzero(which))
        if names:
            found.append(kind(class_word, len(names), names))
    unlabeled = sum(int((np.diff(split.labels.starts) == 0).sum()) for split in data.splits)
    if unlabeled:
        found.append(NoLabel(image_word, unlabeled))
    if not any(count.unknown.any() for count in counts):
        found.append(AllKnown(image_word, sum(map(len, data.splits)), zeros=_has_zeros(data)))
    return found


def _has_zeros(data: Dataset) -> bool:
    """Return whether the data comes from a table in which a 0 may mean that nobody tagged the image."""
    options = data.recipe.get("options", {})
    absent = any((split.labels.values == ABSENT).any() for split in data.splits)
    return data.recipe.get("name") in ("csv", "parquet") and absent and "unlisted" not in options
