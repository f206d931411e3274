"""Which training labels each method of a comparison is shown.

All see the table as it is, or as it was hidden on purpose. Some methods make no sense on that: they are shown what
their paper shows them, drawn from the truth, and stand apart, since they saw more than the others. Without a truth they
do not run.

- `bce`, `bce-ls`: every label that is known.
- `iun`: one present and all absent labels of each image.
- `iu`, `curriculum`, `imcl`: the table, if it has known absents; else one present and one absent label of each image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable

__all__ = ["LabelView", "LabelViews", "Refusal", "label_view_for", "table_digest"]

ALL_LABELS: Final = frozenset({"bce", "bce-ls"})
NEED_ABSENT: Final = frozenset({"iu", "curriculum", "imcl"})
CONTRAST: Final = frozenset({"two-way", "two-way-sample", "two-way-class"})

_CALLS_ALL_PRESENT: Final = "no label is known to be absent, and it would call everything present"


@dataclass(frozen=True)
class LabelView:
    """What a method is shown of the training labels.

    Attributes:
        words: what that is, for the table.
        data: the data set with these labels, one for each seed; the same object where a seed does not move them.
        label_seeds: the seed of each draw; None where nothing is drawn.
        extra_labels: whether it is more than the others see.
        options: what the method needs to learn anything from it.
    """

    words: str
    data: tuple[Dataset, ...]
    label_seeds: tuple[int | None, ...]
    extra_labels: bool = False
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a method cannot run."""

    reason: str


class LabelViews:
    """The labels of a comparison, and what else can be drawn from their truth.

    Args:
        data: what is compared on.
        seeds: how many.
        observe: what is hidden, as ``Dataset.observe`` takes it; None leaves the table as it is.
        label_seed: of the first draw; the next seed's is one more. Where nothing is hidden on purpose the table is
            always the same, and so is what is drawn beside it.
    """

    def __init__(self, data: Dataset, seeds: int, observe: Mapping[str, Any] | None, label_seed: int) -> None:
        self.data, self.seeds, self.observe, self.label_seed = data, seeds, observe, label_seed
        self._drawn = cache(self._draw)

    @property
    def truth(self) -> LabelTable | None:
        """What is known beyond the labels that are shown: with both states, or None."""
        truth = self.data.train.truth if self.observe is None else self.data.train.evaluation_labels
        return truth if truth is not None and min(truth.counts().total[:2]) > 0 else None

    def plain(self) -> LabelView:
        """The table as it is, or as it was hidden on purpose."""
        if self.observe is None:
            present, absent, _ = self.data.train.labels.counts().total
            words = (
                "every label"
                if self.data.train.labels.complete
                else f"{present:,} present and {absent:,} absent labels"
            )
            return LabelView(words, (self.data,) * self.seeds, (None,) * self.seeds)
        shown = [self._drawn(self.label_seed + seed, **self.observe) for seed in range(self.seeds)]
        words = in_words(self.observe.get("positives", 1), self.observe.get("negatives", 0))
        return LabelView(words, tuple(shown), tuple(self.label_seed + seed for seed in range(self.seeds)))

    def whole(self) -> LabelView:
        """All that is known."""
        data = self.data.reveal()
        data = replace(data, train=replace(data.train, truth=data.train.labels))
        words = "every label" if data.train.labels.complete else "all that is known"
        return LabelView(words, (data,) * self.seeds, (None,) * self.seeds, extra_labels=True)

    def drawn(self, positives: Any, negatives: Any) -> LabelView:
        """So many labels of each image, drawn from the truth as the table's own are."""
        seeds = [self.label_seed + (seed if self.observe is not None else 0) for seed in range(self.seeds)]
        shown = tuple(self._drawn(seed, positives=positives, negatives=negatives) for seed in seeds)
        return LabelView(in_words(positives, negatives), shown, tuple(seeds), extra_labels=True)

    def _draw(self, seed: int, **amounts: Any) -> Dataset:
        return self.data.observe(**amounts, seed=seed)


def label_view_for(method: str, views: LabelViews) -> LabelView | Refusal:
    """Return what a method is shown, or why it cannot run."""
    plain, truth = views.plain(), views.truth
    table = plain.data[0].train.labels
    present, absent, unknown = table.counts().total
    if method in ALL_LABELS and unknown:
        if truth is None:
            return Refusal(
                "it learns from full labels, and they are not known here; `iu` is the same on the known ones"
            )
        return views.whole()
    if method == "iun":
        if truth is None:
            return Refusal("its labels (1 present and all absent of each image) are drawn from a truth: there is none")
        return views.drawn(1, "all")
    if method in NEED_ABSENT and not absent:
        return Refusal(_CALLS_ALL_PRESENT) if truth is None else views.drawn(1, 1)
    if method in CONTRAST and not absent and present:
        return LabelView(plain.words, plain.data, plain.label_seeds, options={"unknown": "negative"})
    return plain


def in_words(positives: Any, negatives: Any) -> str:
    """Say what is drawn of each image.

    Example:
        >>> in_words(1, 0), in_words(1, "all")
        ('1 present label of each image', '1 present and all absent labels of each image')
    """
    drawn = [(amount, state) for amount, state in ((positives, "present"), (negatives, "absent")) if amount != 0]
    if not drawn:
        return "no label"
    word = "label" if drawn[-1][0] == 1 else "labels"
    return f"{' and '.join(f'{amount} {state}' for amount, state in drawn)} {word} of each image"


def table_digest(table: LabelTable | None) -> str:
    """Return a short hash of all that a table says."""
    digest = hashlib.blake2b(digest_size=12)
    if table is not None:
        digest.update("\n".join([*table.classes, "", *table.images]).encode())
        for array in (table.starts, table.columns, table.values):
            digest.update(array.tobytes())
    return digest.hexdigest()
