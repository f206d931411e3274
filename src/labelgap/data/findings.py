"""What the readers find out about a data set: where labels come from, how it is split, what is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from labelgap.core.findings import Finding
from labelgap.core.text import pluralize
from labelgap.labels import LabelTable
from labelgap.labels.masking import Amount

_NAMES_SHOWN: Final = 5


@dataclass(frozen=True)
class FormatRecognized(Finding, topic="source"):
    """A path was recognized as a format; ``others`` are further formats that it could be read as."""

    name: str
    path_to: str
    path: str
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        others = "".join(f"; {other} is there too: {other}={self.path}" for other in self.others)
        return f"recognized as {self.name}: {self.path_to}{others}"


@dataclass(frozen=True)
class LabelsCounted(Finding, topic="counts"):
    """How many images, classes and labels of each state a table holds."""

    images: int
    classes: int
    present: int
    absent: int
    unknown: int

    @classmethod
    def of(cls, tables: Sequence[LabelTable]) -> LabelsCounted:
        """Return the counts of tables of the same classes together."""
        states = np.sum([table.counts().total for table in tables], axis=0).tolist()
        return cls(sum(map(len, tables)), len(tables[0].classes), *states)

    def __str__(self) -> str:
        counted = f"{pluralize(self.images, 'image')}, {pluralize(self.classes, 'class')}"
        labels = f"{pluralize(self.present, 'label')} present, {self.absent:,} absent, {self.unknown:,} unknown"
        return f"{counted}: {labels}"


@dataclass(frozen=True)
class ImageNamesCompleted(Finding, topic="images"):
    """Image names of a table that lack a folder or a suffix; ``name`` and ``file`` are an example."""

    count: int
    name: str
    file: str

    def __str__(self) -> str:
        names = pluralize(self.count, "image name was", "image names were")
        return f"{names} completed: {self.name} is {self.file}"


@dataclass(frozen=True)
class ImagesSkipped(Finding, topic="images"):
    """Images that cannot be read and are left out, by name."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        images = pluralize(len(self.names), "image cannot be read and is", "images cannot be read and are")
        return f"{images} left out: {_some(self.names)}"


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
class BoxesWithoutArea(Finding, topic="images", warning=True):
    """Boxes that are empty, negative or outside of the image, by where they are written."""

    places: tuple[str, ...]

    def __str__(self) -> str:
        no_area = "no area inside the image, and"
        boxes = pluralize(len(self.places), f"box has {no_area} counts", f"boxes have {no_area} count")
        return f"{boxes} as one pixel: {_some(self.places)}"


@dataclass(frozen=True)
class BoxesOutsideImage(Finding, topic="images", warning=True):
    """Boxes that reach beyond their image, by where they are written."""

    places: tuple[str, ...]

    def __str__(self) -> str:
        boxes = pluralize(len(self.places), "box reaches beyond its image", "boxes reach beyond their images")
        return f"{boxes}: {_some(self.places)}"


@dataclass(frozen=True)
class ObjectsOfNoClass(Finding, topic="images", warning=True):
    """Objects with a box whose class has no labels, by where they are written; they are left out."""

    places: tuple[str, ...]

    def __str__(self) -> str:
        no_class = "of no class of the lists, and"
        objects = pluralize(len(self.places), f"object is {no_class} is", f"objects are {no_class} are")
        return f"{objects} left out: {_some(self.places)}"


@dataclass(frozen=True)
class BoxFilesMissing(Finding, topic="images", warning=True):
    """Images whose file of boxes is missing, by the name of that file."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{pluralize(len(self.names), 'image has', 'images have')} no file of boxes: {_some(self.names)}"


@dataclass(frozen=True)
class ShardsSkipped(Finding, topic="images"):
    """Shards that cannot be read and are left out, by name, with the number of their images where it is known."""

    names: tuple[str, ...]
    images: int

    def __str__(self) -> str:
        shards = pluralize(len(self.names), "shard cannot be read and is", "shards cannot be read and are")
        with_images = f", with {pluralize(self.images, 'image')}" if self.images else ""
        return f"{shards} left out{with_images}: {_some(self.names)}"


@dataclass(frozen=True)
class NoSplit(
    Finding,
    topic="split",
    text="no split given: all {images:,} images are train",
):
    """The data have no split of their own: all images are train."""

    images: int


@dataclass(frozen=True)
class FileSplit(Finding, topic="split"):
    """The data has a split of its own."""

    sizes: Mapping[str, int]

    def __str__(self) -> str:
        return f"split as the file says: {format_sizes(self.sizes)}"


@dataclass(frozen=True)
class NoValRows(
    Finding, topic="split", text="no val rows: a linear head is cross-validated over the {train:,} train images"
):
    """The split of the data has train, and no val."""

    train: int


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
class GroupsKeptTogether(Finding, topic="split", text="the images of each of {groups:,} groups are kept in one fold"):
    """The images of a group are kept together."""

    groups: int


@dataclass(frozen=True)
class DuplicatesFound(Finding, topic="split"):
    """Images that are copies of others: ``exact`` with the same bytes, ``near`` that look the same."""

    exact: int
    near: int

    def __str__(self) -> str:
        counts = [f"{count:,} {kind}" for count, kind in ((self.exact, "exact"), (self.near, "near")) if count]
        return f"{' and '.join(counts)} duplicate{'s' if self.exact + self.near > 1 else ''}: kept in one fold"


@dataclass(frozen=True)
class LeaksAllowed(Finding, topic="split", text="{images:,} images of one split are in another as well, as allowed"):
    """Images of one split that are in another as well, by the file's own split."""

    images: int


@dataclass(frozen=True)
class LabelsShown(Finding):
    """What a split shows of its labels; a data set has at most one such finding for each split."""

    split: str


@dataclass(frozen=True)
class LabelsObserved(
    LabelsShown,
    text="{split} shows {positives} present and {negatives} absent labels of every image (seed {seed}), "
    "the rest is hidden",
):
    """A split shows some labels of every image; see ``Dataset.observe``."""

    positives: Amount | str
    negatives: Amount
    seed: int


@dataclass(frozen=True)
class LabelsSelected(
    LabelsShown,
    text="{split} shows {shown:,} of {present:,} present labels ({rule}, seed {seed}: {description}) and {negatives} "
    "absent labels of every image, the rest is hidden",
):
    """A split shows the labels that a rule of ``labelgap.labels.masking`` states."""

    rule: str
    description: str
    shown: int
    present: int
    negatives: Amount
    seed: int


@dataclass(frozen=True)
class LabelsRevealed(LabelsShown, text="{split} shows every label that is known"):
    """A split shows all that is known; see ``Dataset.reveal``."""


@dataclass(frozen=True)
class PaperSplit(Finding, topic="split"):
    """Train and val are the papers' 80/20 split of an official training set; ``sizes`` are of all three splits."""

    sizes: Mapping[str, int]
    seed: int

    def __str__(self) -> str:
        official = (
            f"the papers' 80/20 split of the {self.sizes['train'] + self.sizes['val']:,} official training images"
        )
        return f"train and val are {official} (seed {self.seed}): {format_sizes(self.sizes)}"


def _some(names: Sequence[str]) -> str:
    """Return the first names of a list as text."""
    return ", ".join(names[:_NAMES_SHOWN]) + (" …" if len(names) > _NAMES_SHOWN else "")


def describe_splits(sizes: Mapping[str, int], given: bool) -> list[Finding]:
    """Return where the splits of data come from: the files say which (``given``), or all images are train."""
    if not given:
        return [NoSplit(sizes["train"])]
    return [FileSplit(sizes), *([] if "val" in sizes else [NoValRows(sizes["train"])])]


def format_sizes(sizes: Mapping[str, int]) -> str:
    """Return the sizes of splits as text."""
    return ", ".join(f"{count:,} {split}" for split, count in sizes.items())
