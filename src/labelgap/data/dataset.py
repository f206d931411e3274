"""A data set: splits of images with their labels, observed and, where known, true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from labelgap.core.errors import InputError
from labelgap.core.findings import Finding
from labelgap.core.text import html_facts, pluralize, truncate_text
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.findings import LabelsObserved, LabelsRevealed, LabelsShown
from labelgap.data.images import ImageSource
from labelgap.labels import LabelTable, Revisions
from labelgap.labels.masking import Amount

__all__ = ["Boxes", "Dataset", "Split"]

_SHOWN_CLASSES: Final = 12


@dataclass(frozen=True, eq=False)
class Boxes:
    """Bounding boxes: one row per object, edges inclusive, in pixels of the image as stored.

    Attributes:
        rows: ``(M,)`` image number within the split.
        classes: ``(M,)`` class number.
        corners: ``(M, 4)`` x0, y0, x1, y1.
        difficult: ``(M,)`` whether an object is marked as difficult, or is a crowd: localization metrics leave it out.
            None where nothing is marked.
    """

    rows: NDArray[np.int64]
    classes: NDArray[np.int64]
    corners: NDArray[np.float64]
    difficult: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Split(TorchDataset[tuple[Any, Tensor, int]]):
    """Images and their labels; also a ``torch.utils.data.Dataset``.

    ``split[i]`` is ``(image, labels, index)``: the image as uint8 ``(channels, height, width)`` after ``transform``, or
    the feature vector; the observed labels as int8 ``(K,)``; and the row number, which losses with a state per image
    take as ``index``.

    Attributes:
        name: train, val or test.
        images: the image of every row.
        labels: the observed labels; training uses these.
        truth: the full labels where they are known, for measuring only.
        boxes: where the objects are, if known.
        origin: row of every image in the official set that train and val were cut from; the papers draw labels there.
        groups: ``(N,)`` whole numbers, the same for copies of an image and for images of one group, which folds keep
            together; None where nothing is known of that.
        transform: what ``split[i]`` applies to an image, e.g. of ``torchvision.transforms.v2``. ``fit`` ignores it: a
            run has a transform of its own.

    Example:
        >>> from labelgap.data import load
        >>> train = load("digits", train=6, val=0, test=0).train.with_transform(lambda image: image.float() / 255)
        >>> for images, labels, index in torch.utils.data.DataLoader(train, batch_size=3):
        ...     print(tuple(images.shape), tuple(labels.shape), index.tolist())
        (3, 1, 64, 64) (3, 10) [0, 1, 2]
        (3, 1, 64, 64) (3, 10) [3, 4, 5]
    """

    name: str
    images: ImageSource
    labels: LabelTable
    truth: LabelTable | None = None
    boxes: Boxes | None = None
    origin: NDArray[np.int64] | None = None
    groups: NDArray[np.int64] | None = None
    transform: Callable[[Tensor], Any] | None = None

    def __post_init__(self) -> None:
        for what, table in (("labels", self.labels), ("truth", self.truth)):
            if table is not None and len(table) != len(self.images):
                raise InputError(f"{self.name} has {len(self.images)} images and {len(table)} rows of {what}.")

    @property
    def evaluation_labels(self) -> LabelTable:
        """The truth where there is one, else the observed labels."""
        return self.labels if self.truth is None else self.truth

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Tensor, int]:
        row = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= row < len(self):
            raise IndexError(f"{self.name} has {len(self)} images; there is no image {index}")
        if isinstance(self.images, FeatureVectors):
            image = torch.from_numpy(np.array(self.images.vectors[row]))
        else:
            image = torch.from_numpy(np.array(self.images[row].transpose(2, 0, 1), order="C"))
        return image if self.transform is None else self.transform(image), self.labels.batch([row])[0], row

    def select(self, rows: NDArray[np.int64], name: str | None = None) -> Split:
        """Return some images of a split without boxes, under another name if one is given."""
        truth, groups = self.truth, self.groups
        return replace(
            self,
            name=name or self.name,
            images=self.images.select(rows),
            labels=self.labels.select(rows),
            truth=None if truth is None else truth.select(rows),
            boxes=None,
            origin=None if self.origin is None else self.origin[rows],
            groups=None if groups is None else groups[rows],
        )

    def with_transform(self, transform: Callable[[Tensor], Any] | None) -> Split:
        """Return the split with another ``transform``."""
        return replace(self, transform=transform)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train, val and test of one set of classes.

    Attributes:
        name: the name or file it was loaded by.
        train: the split to learn from.
        val: the split that epochs and thresholds are selected on, or None.
        test: the split that results are reported on, or None.
        findings: how labels and splits were read; ``str()`` of each is a sentence.
        backbone: the default backbone for it.
        protocol: the default protocol for it.
        flip: whether a mirrored image keeps its labels; not so for digits.
        recipe: how it was loaded and what was hidden since, for ``load_from_recipe``; empty when made by hand.
        revisions: what a rule (a tag's parents) added to the observed labels.
    """

    name: str
    train: Split
    val: Split | None = None
    test: Split | None = None
    findings: tuple[Finding, ...] = field(default=())
    backbone: str = "efficientnet-lite2"
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
        """The splits that exist."""
        return tuple(split for split in (self.train, self.val, self.test) if split is not None)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(split):,} {split.name}" for split in self.splits)
        return f"Dataset({self.name}: {sizes}; {len(self.classes):,} classes)"

    def _repr_html_(self) -> str:
        """Show the data set in a notebook: its classes, the labels of every split, and how they were read."""
        shown = [truncate_text(name, 28) for name in self.classes[:_SHOWN_CLASSES]]
        more = f" and {len(self.classes) - len(shown):,} more" if len(self.classes) > len(shown) else ""
        rows = [("data", self.name), (pluralize(len(self.classes), "class"), ", ".join(shown) + more)]
        for split in self.splits:
            present, absent, unknown = split.labels.counts().total
            labels = f"{pluralize(present, 'label')} present, {absent:,} absent, {unknown:,} unknown"
            rows.append((split.name, f"{pluralize(len(split), 'image')}: {labels}"))
        return html_facts("data", [*rows, *(("read as", str(finding)) for finding in self.findings)])

    def observe(
        self,
        positives: Amount = 1,
        negatives: Amount = 0,
        seed: int = 1200,
        splits: Sequence[str] = ("train",),
    ) -> Dataset:
        """Hide labels as the papers do, and keep what was known before as ``truth``.

        Where train and val were cut from one official set the draw is over that whole set in its own order, before the
        split, so that the labels are those of the papers.

        Args:
            positives: how many of each image's positives to keep, or "all".
            negatives: how many of its negatives to keep, or "all".
            seed: 1200 in the papers.
            splits: which splits lose labels; val and test stay complete by default.
        """
        hidden = [self._observed(self.split(name), positives, negatives, seed) for name in splits]
        shown = [LabelsObserved(name, positives, negatives, seed) for name in splits]
        step = {"observe": {"positives": positives, "negatives": negatives, "seed": seed, "splits": list(splits)}}
        return self._with_splits(hidden, shown, step)

    def reveal(self, splits: Sequence[str] = ("train",)) -> Dataset:
        """Show all that is known, the opposite of ``observe``: what would be learned if no label were missing.

        Args:
            splits: which splits show their ``truth`` as labels; one without it stays as it is.
        """
        complete = [replace(split, labels=split.evaluation_labels) for split in map(self.split, splits)]
        return self._with_splits(complete, list(map(LabelsRevealed, splits)), {"reveal": {"splits": list(splits)}})

    def split(self, name: str) -> Split:
        """Return a split by its name; an unknown name is an error that lists the splits."""
        for split in self.splits:
            if split.name == name:
                return split
        raise InputError(f"{self.name} has no split '{name}': there is {', '.join(s.name for s in self.splits)}.")

    def _with_splits(self, changed: Sequence[Split], shown: Sequence[LabelsShown], step: Mapping[str, Any]) -> Dataset:
        """Return the data set with some splits replaced, and what each of them shows now."""
        splits = {split.name: split for split in changed}
        kept = [each for each in self.findings if not (isinstance(each, LabelsShown) and each.split in splits)]
        recipe = {**self.recipe, "steps": [*self.recipe["steps"], step]} if self.recipe else {}
        return replace(self, **splits, findings=(*kept, *shown), recipe=recipe)  # type: ignore[arg-type]

    def _observed(self, split: Split, positives: Amount, negatives: Amount, seed: int) -> Split:
        full = split.evaluation_labels
        if split.origin is None:
            labels = full.observe(positives, negatives, seed)
        else:
            pool, rows = self._official_labels(split)
            labels = pool.observe(positives, negatives, seed).select(rows)
        return replace(split, labels=labels, truth=full)

    def _official_labels(self, split: Split) -> tuple[LabelTable, NDArray[np.int64]]:
        """Return the labels of the official set a split was cut from, in its order, and the split's rows in it."""
        parts = [part for part in (self.train, self.val) if part is not None and part.origin is not None]
        if split not in parts:
            parts = [split]
        order = np.argsort(np.concatenate([np.asarray(part.origin) for part in parts]))
        pool = LabelTable.concatenate([part.evaluation_labels for part in parts]).select(order)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        before = sum(len(part) for part in parts[: parts.index(split)])
        return pool, rank[before : before + len(split)]
