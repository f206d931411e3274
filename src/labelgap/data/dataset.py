"""A data set: splits of images with their labels, observed and, where known, true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.images import ImageSource
from labelgap.labels import LabelTable, Revisions

__all__ = ["Boxes", "Dataset", "Split"]

Amount = int | Literal["all"]


@dataclass(frozen=True, eq=False)
class Boxes:
    """Where things are: one row per object, edges inclusive, in pixels of the image as stored.

    Attributes:
        rows: ``(M,)`` image number within the split.
        classes: ``(M,)`` class number.
        corners: ``(M, 4)`` x0, y0, x1, y1.
        doubtful: ``(M,)`` whether an object is marked as difficult, or is a crowd: measures of place leave it out. None
            where nothing is marked.
    """

    rows: NDArray[np.int64]
    classes: NDArray[np.int64]
    corners: NDArray[np.float64]
    difficult: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels.

    Attributes:
        name: train, val or test.
        images: where the pixels come from, row by row.
        labels: what was observed; this is what training sees.
        truth: the full labels where somebody knows them, for measuring only.
        boxes: where the objects are, if known.
        origin: row of every image in the official set that train and val were cut from; the papers draw labels there.
    """

    name: str
    images: ImageSource
    labels: LabelTable
    truth: LabelTable | None = None
    boxes: Boxes | None = None
    origin: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for what, table in (("labels", self.labels), ("truth", self.truth)):
            if table is not None and len(table) != len(self.images):
                raise InputError(f"{self.name} has {len(self.images)} images and {len(table)} rows of {what}.")

    @property
    def evaluation_labels(self) -> LabelTable:
        """The truth where there is one, else what was observed."""
        return self.labels if self.truth is None else self.truth

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train, val and test of one set of classes.

    Attributes:
        name: how it was asked for.
        train: what is learned from.
        val: what epochs and thresholds are chosen on, or None.
        test: what the result is reported on, or None.
        rules: in words, how labels and splits were read.
        backbone: the network that suits it.
        protocol: the protocol that suits it.
        flip: whether a mirrored image shows the same things; not so for digits.
        recipe: how it was loaded and what was hidden since, so that ``reopen`` makes it again; empty when made by hand.
        revisions: what a rule (a tag's parents) added to the labels that were observed.
    """

    name: str
    train: Split
    val: Split | None = None
    test: Split | None = None
    rules: tuple[str, ...] = field(default=())
    backbone: str = "efficientnet-lite0"
    protocol: str = "linear"
    flip: bool = True
    recipe: Mapping[str, Any] = field(default_factory=dict)
    revisions: Revisions = field(default_factory=Revisions)

    def __post_init__(self) -> None:
        for split in self.splits:
            if split.labels.classes != self.classes:
                raise InputError(f"{self.name}: {split.name} has other classes than train.")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the columns."""
        return self.train.labels.classes

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that there are."""
        return tuple(split for split in (self.train, self.val, self.test) if split is not None)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(split):,} {split.name}" for split in self.splits)
        return f"Dataset({self.name}: {sizes}; {len(self.classes):,} classes)"

    def observe(
        self,
        positives: Amount = 1,
        negatives: Amount = 0,
        seed: int = 1200,
        splits: Sequence[str] = ("train",),
    ) -> Dataset:
        """Hide labels as the papers do, and keep what was known before as ``truth``.

        Where train and val were cut from one official set the draw is over that whole set in its own order, before the
        split, so that the labels come out as in the papers.

        Args:
            positives: how many of each image's positives to keep, or "all".
            negatives: how many of its negatives to keep, or "all".
            seed: 1200 in the papers.
            splits: which splits lose labels; val and test stay whole by default.
        """
        hidden = [self._drawn(self.split(name), positives, negatives, seed) for name in splits]
        shown = f"{positives} present and {negatives} absent labels of every image (seed {seed}), the rest is hidden"
        step = {"observe": {"positives": positives, "negatives": negatives, "seed": seed, "splits": list(splits)}}
        return self._showing(hidden, shown, step)

    def reveal(self, splits: Sequence[str] = ("train",)) -> Dataset:
        """Show all that is known, the opposite of ``observe``: what would be learned if no label were missing.

        Args:
            splits: which splits show their ``truth`` as labels; one without it shows what it showed before.
        """
        whole = [replace(split, labels=split.evaluation_labels) for split in map(self.split, splits)]
        return self._showing(whole, "every label that is known", {"reveal": {"splits": list(splits)}})

    def split(self, name: str) -> Split:
        """Return a split by its name, or say which there are."""
        for split in self.splits:
            if split.name == name:
                return split
        raise InputError(f"{self.name} has no split '{name}': there is {', '.join(s.name for s in self.splits)}.")

    def _showing(self, changed: Sequence[Split], shown: str, step: Mapping[str, Any]) -> Dataset:
        """Return the data set with some splits changed and, in words, what each of them shows now."""
        said = tuple(_shows(split) for split in changed)
        rules = [rule for rule in self.rules if not rule.startswith(said)]
        by_name = {split.name: split for split in changed}
        recipe = {**self.recipe, "steps": [*self.recipe["steps"], step]} if self.recipe else {}
        rules = [*rules, *(start + shown for start in said)]
        return replace(self, **by_name, rules=tuple(rules), recipe=recipe)  # type: ignore[arg-type]

    def _drawn(self, split: Split, positives: Amount, negatives: Amount, seed: int) -> Split:
        full = split.evaluation_labels
        if split.origin is None:
            drawn = full.observe(positives, negatives, seed)
        else:
            pool, place = self._pool(split)
            drawn = pool.observe(positives, negatives, seed).select(place)
        return replace(split, labels=drawn, truth=full)

    def _pool(self, split: Split) -> tuple[LabelTable, NDArray[np.int64]]:
        """Return the labels of the official set a split was cut from, in its order, and where the split's rows are."""
        parts = [part for part in (self.train, self.val) if part is not None and part.origin is not None]
        if split not in parts:
            parts = [split]
        origins = [np.asarray(part.origin) for part in parts]
        order = np.argsort(np.concatenate(origins))
        tables = [part.evaluation_labels for part in parts]
        pool = LabelTable.concatenate(tables).select(order)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        before = sum(len(part) for part in parts[: parts.index(split)])
        return pool, rank[before : before + len(split)]


def _shows(split: Split) -> str:
    """Begin the rule that says what a split shows of its labels; there is one at a time for each split."""
    return f"{split.name} shows "
