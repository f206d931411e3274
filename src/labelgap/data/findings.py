"""Facts about a data set that code acts on, and notes that several readers write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from labelgap.core.findings import Finding, Note
from labelgap.core.text import pluralize
from labelgap.labels import LabelTable

_NAMES_SHOWN: Final = 5


@dataclass(frozen=True)
class ImagesSkipped(Finding, topic="images"):
    """Images that cannot be read and are left out, by name."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        images = pluralize(len(self.names), "image cannot be read and is", "images cannot be read and are")
        return f"{images} left out: {some_names(self.names)}"


@dataclass(frozen=True)
class ImagesNotListed(
    Finding,
    topic="split",
    text="{file} lists {listed:,} of the images with labels, and {left_out:,} others are left out: the splits are not "
    "those of the papers",
    warning=True,
):
    """The list of an official split has only a part of the images that the files of labels have."""

    file: str
    listed: int
    left_out: int


@dataclass(frozen=True)
class ShardsSkipped(Finding, topic="images"):
    """Shards that cannot be read and are left out, by name, with the number of their images where it is known."""

    names: tuple[str, ...]
    images: int

    def __str__(self) -> str:
        shards = pluralize(len(self.names), "shard cannot be read and is", "shards cannot be read and are")
        with_images = f", with {pluralize(self.images, 'image')}" if self.images else ""
        return f"{shards} left out{with_images}: {some_names(self.names)}"


@dataclass(frozen=True)
class NoSplit(
    Finding,
    topic="split",
    text="no split given: all {images:,} {noun}s are train",
):
    """The data have no split of their own: all images, or rows of features, are train."""

    images: int
    noun: str = field(default="image", compare=False)


@dataclass(frozen=True)
class NoValRows(
    Finding, topic="split", text="no val rows: a linear head is cross-validated over the {train:,} train {noun}s"
):
    """The split of the data has train, and no val."""

    train: int
    noun: str = field(default="image", compare=False)


@dataclass(frozen=True)
class ValidationHeldOut(
    Finding,
    topic="split",
    text="training a network needs a val: {val:,} of the {train:,} train images are held out for it, a tenth by a hash "
    "of each image's name, seed {seed}",
):
    """``val`` of the ``train`` images were held out to choose the epoch of a network."""

    val: int
    train: int
    seed: int


@dataclass(frozen=True)
class LeaksAllowed(Finding, topic="split", text="{images:,} images of one split are in another as well, as allowed"):
    """Images of one split that are in another as well, by the file's own split."""

    images: int


@dataclass(frozen=True)
class LabelsShown(Finding, text="{split} shows {shown}"):
    """What a split shows of its labels; a data set has at most one such finding for each split."""

    split: str
    shown: str


def count_labels(tables: Sequence[LabelTable], noun: str = "image") -> Note:
    """Return how many rows (``noun`` names them), classes and labels of each state tables of the same classes have."""
    present, absent, unknown = np.sum([table.counts().total for table in tables], axis=0).tolist()
    counted = f"{pluralize(sum(map(len, tables)), noun)}, {pluralize(len(tables[0].classes), 'class')}"
    return Note(f"{counted}: {pluralize(present, 'label')} present, {absent:,} absent, {unknown:,} unknown", "counts")


def some_names(names: Sequence[str]) -> str:
    """Return the first names of a list as text."""
    return ", ".join(names[:_NAMES_SHOWN]) + (" …" if len(names) > _NAMES_SHOWN else "")


def describe_splits(sizes: Mapping[str, int], given: bool, noun: str = "image") -> list[Finding]:
    """Return where the splits of data come from: the files say which (``given``), or all images are train."""
    if not given:
        return [NoSplit(sizes["train"], noun)]
    split = Note(f"split as the file says: {format_sizes(sizes)}", "split")
    return [split] if sizes.get("val") else [split, NoValRows(sizes["train"], noun)]


def format_sizes(sizes: Mapping[str, int]) -> str:
    """Return the sizes of splits as text."""
    return ", ".join(f"{count:,} {split}" for split, count in sizes.items())
