"""A data set: splits of images with their labels, observed and, where known, true."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.core.findings import Finding
from labelgap.core.seeds import numpy_generator
from labelgap.core.text import html_facts, join_names, pluralize, truncate_text
from labelgap.data.decoding import DecodedImage, exif_orientation
from labelgap.data.findings import LabelsShown
from labelgap.data.images import FeatureVectors, FileImages, ImageSource, NamedRows
from labelgap.data.readers.image_paths import images_below
from labelgap.labels import PRESENT, LabelTable, Revisions
from labelgap.labels.codes import is_tensor
from labelgap.labels.masking import GAPS, SIZE_RULES, Amount, LabelGap, check_draw
from labelgap.labels.sparse import locate_entries

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import Dataset as TorchDataset

    from labelgap.data.prior import Prior

    _TorchDataset = TorchDataset[tuple[Any, Tensor, int]]
else:  # a DataLoader takes anything with items and a length, and the labels of a table can be read without PyTorch
    _TorchDataset = object


_SHOWN_CLASSES: Final = 12


@dataclass(frozen=True, eq=False)
class Boxes:
    """Bounding boxes: one row per object, edges inclusive, in pixels of the image as stored.

    Attributes:
        rows: ``(M,)`` image number within the split.
        classes: ``(M,)`` class number.
        corners: ``(M, 4)`` x0, y0, x1, y1.
        difficult: ``(M,)`` whether an object is marked as difficult, or is a crowd: localization metrics take it only
            where a present class has no other box. None where nothing is marked.
    """

    rows: NDArray[np.int64]
    classes: NDArray[np.int64]
    corners: NDArray[np.float64]
    difficult: NDArray[np.bool_] | None = None

    def select(self, rows: NDArray[np.int64]) -> Boxes:
        """Return the boxes of some images, which are numbered in the order of ``rows``; a row may be there twice."""
        order = np.argsort(self.rows, kind="stable")
        first, last = (np.searchsorted(self.rows[order], rows, side) for side in ("left", "right"))
        lengths = last - first
        images = np.repeat(np.arange(len(rows)), lengths)
        chosen = order[np.arange(len(images)) + np.repeat(last - np.cumsum(lengths), lengths)]
        difficult = None if self.difficult is None else self.difficult[chosen]
        return Boxes(images, self.classes[chosen], self.corners[chosen], difficult)

    def largest_areas(self, table: LabelTable) -> NDArray[np.float64]:
        """Return the pixels of the largest box, also of a difficult object, of every known label; 0 for none."""
        entries, known = locate_entries(table.starts, table.columns, self.rows, self.classes, len(table.classes))
        left, top, right, bottom = self.corners[known].T
        areas = np.zeros(len(table.values))
        np.maximum.at(areas, entries[known], (right - left + 1) * (bottom - top + 1))
        return areas


@dataclass(frozen=True, eq=False)
class Split(_TorchDataset):
    """Images and their labels; what ``torch.utils.data.DataLoader`` takes as a data set.

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
        >>> import torch
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
        import torch

        row = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= row < len(self):
            raise IndexError(f"{self.name} has {len(self)} images; there is no image {index}")
        if isinstance(self.images, FeatureVectors):
            image = torch.from_numpy(np.array(self.images.vectors[row]))
        else:
            image = torch.from_numpy(np.array(self.images[row].transpose(2, 0, 1), order="C"))
        return image if self.transform is None else self.transform(image), self.labels.batch([row])[0], row

    def select(self, rows: NDArray[np.int64], name: str | None = None) -> Split:
        """Return some images of a split, under another name if one is given."""
        truth, boxes, groups = self.truth, self.boxes, self.groups
        return replace(
            self,
            name=name or self.name,
            images=self.images.select(rows),
            labels=self.labels.select(rows),
            truth=None if truth is None else truth.select(rows),
            boxes=None if boxes is None else boxes.select(np.asarray(rows, dtype=np.int64)),
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
        prior: what models or other people say of the labels, which is no observation.
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
    prior: Prior | None = None

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

    @classmethod
    def of(cls, name: str, parts: Mapping[str, Split], findings: Sequence[Finding], **options: Any) -> Dataset:
        """Return the data set of splits by their names; an error where there is no train."""
        if "train" not in parts:
            raise InputError(f"{name}: no image is in train, so there is nothing to learn from.")
        return cls(name, parts["train"], parts.get("val"), parts.get("test"), tuple(findings), **options)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(split):,} {split.name}" for split in self.splits)
        return f"Dataset({self.name}: {sizes}; {len(self.classes):,} classes)"

    def _repr_html_(self) -> str:
        classes = join_names([truncate_text(name, 28) for name in self.classes], _SHOWN_CLASSES)
        rows = [("data", self.name), (pluralize(len(self.classes), "class"), classes)]
        for split in self.splits:
            present, absent, unknown = split.labels.counts().total
            labels = f"{pluralize(present, 'label')} present, {absent:,} absent, {unknown:,} unknown"
            rows.append((split.name, f"{pluralize(len(split), 'image')}: {labels}"))
        return html_facts("data", [*rows, *(("read as", str(finding)) for finding in self.findings)])

    def observe(
        self,
        positives: Amount | str = 1,
        negatives: Amount = 0,
        seed: int = 1200,
        splits: Sequence[str] = ("train",),
        **options: float,
    ) -> Dataset:
        """Hide labels as the papers do, or as people leave them out, and keep what was known before as ``truth``.

        Where train and val were cut from one official set the draw is over that whole set in its own order, before the
        split, so that the labels are those of the papers.

        Args:
            positives: how many of each image's positives to keep, "all", or a rule that is not random
                (``labelgap.labels.masking`` has the formulas): "rare-overlooked" (fewer of rare classes),
                "small-overlooked" (fewer of small objects), "salient" (the largest object of each image),
                "annotators" (each knows some classes); or "random", a share of all. Rules by size need boxes. "labels"
                is a share of all labels, absent ones included, as ``LabelTable.drop`` draws them.
            negatives: how many of its negatives to keep, or "all"; not beside "labels".
            seed: 1200 in the papers.
            splits: which splits lose labels; val and test stay complete by default.
            **options: of the rule: ``share=0.5`` ("labels", "random", "rare-overlooked", "small-overlooked"),
                ``side=96`` ("small-overlooked"), ``per_image=1`` ("salient"), ``annotators=5`` and ``known=0.5``
                ("annotators").

        Example:
            >>> from labelgap.data import load
            >>> print(load("digits", train=20, val=0, test=0).observe("salient", seed=0).findings[-1])
            train shows 20 of 53 present labels (salient, seed 0: those of the largest object of every image) and 0 ...
        """
        gap = check_draw(positives, options, negatives)
        negatives = "all" if gap is not None and gap.draws_absents else negatives
        hidden = [self._observed(self.split(name), positives, negatives, seed, gap) for name in splits]
        every = f"{positives} present and {negatives} absent labels of every image (seed {seed}), the rest is hidden"
        shown = [LabelsShown(name, every) for name in splits]
        if gap is not None:
            shown = [_describe_gap(split, gap, negatives, seed) for split in hidden]
        step = {"positives": positives, "negatives": negatives, "seed": seed, "splits": list(splits)}
        return self._with_splits(hidden, shown, {"observe": step | ({} if gap is None else gap.options)})

    def reveal(self, splits: Sequence[str] = ("train",)) -> Dataset:
        """Show the ``truth`` of splits, the opposite of ``observe``: what would be learned if no label were missing."""
        complete = [replace(split, labels=split.evaluation_labels) for split in map(self.split, splits)]
        shown = [LabelsShown(name, "every label that is known") for name in splits]
        return self._with_splits(complete, shown, {"reveal": {"splits": list(splits)}})

    def sample(self, share: float, seed: int) -> Dataset:
        """Return a share of the training images, which a larger share includes; hide labels before, as for all."""
        count = len(self.train)
        rows = numpy_generator(seed, "training share").permutation(count)[: max(round(share * count), 1)]
        return self._with_splits([self.train.select(np.sort(rows))], [], {"sample": {"share": share, "seed": seed}})

    def split(self, name: str) -> Split:
        """Return a split by its name; an unknown name is an error that lists the splits."""
        for split in self.splits:
            if split.name == name:
                return split
        raise InputError(f"{self.name} has no split '{name}': there is {', '.join(s.name for s in self.splits)}.")

    def to_fiftyone(self, name: str | None = None) -> Any:
        """Return a live ``fiftyone.Dataset`` of a name: ``positive_labels``, ``negative_labels``, splits as tags."""
        return _writer("fiftyone").to_fiftyone(self, name)

    def to_huggingface(self) -> Any:
        """Return a ``datasets.DatasetDict``: the image, and a bool for each class, null where it is unknown."""
        return _writer("huggingface").to_huggingface(self)

    def _with_splits(self, changed: Sequence[Split], shown: Sequence[LabelsShown], step: Mapping[str, Any]) -> Dataset:
        """Return the data set with some splits replaced, and what each of them shows now."""
        splits = {split.name: split for split in changed}
        new = {each.split for each in shown}
        kept = [each for each in self.findings if not (isinstance(each, LabelsShown) and each.split in new)]
        recipe = {**self.recipe, "steps": [*self.recipe["steps"], step]} if self.recipe else {}
        return replace(self, **splits, findings=(*kept, *shown), recipe=recipe)  # type: ignore[arg-type]

    def _observed(
        self, split: Split, positives: Amount | str, negatives: Amount, seed: int, gap: LabelGap | None
    ) -> Split:
        full, boxes, rows = split.evaluation_labels, split.boxes, None
        if split.origin is not None:
            full, boxes, rows = self._official_labels(split)
        sizes = None
        if gap is not None and gap.needs_sizes:
            sizes = self._sizes(split.name, gap.name, full, boxes)
        labels = full.observe(positives, negatives, seed, sizes=sizes, **({} if gap is None else gap.options))
        return replace(split, labels=labels if rows is None else labels.select(rows), truth=split.evaluation_labels)

    def _sizes(self, split: str, rule: str, table: LabelTable, boxes: Boxes | None) -> NDArray[np.float64]:
        """Return the size of the object of every known label; an error without boxes."""
        sizes = None if boxes is None else boxes.largest_areas(table)
        if sizes is None or not sizes.any():
            without = ", ".join(name for name in GAPS if name not in SIZE_RULES)
            raise InputError(
                f"{self.name}: {split} has no boxes, and '{rule}' draws by the size of the objects. VOC devkits, COCO, "
                "CUB and the digits have boxes, Open Images with boxes=True (--boxes); a file of features takes those "
                f"of a VOC devkit (annotations=, --annotations). {without} need none."
            )
        return sizes

    def _official_labels(self, split: Split) -> tuple[LabelTable, Boxes | None, NDArray[np.int64]]:
        """Return the labels and boxes of the official set a split was cut from, in its order, and the split's rows."""
        parts = [part for part in (self.train, self.val) if part is not None and part.origin is not None]
        if split not in parts:
            parts = [split]
        order = np.argsort(np.concatenate([np.asarray(part.origin) for part in parts]))
        pool = LabelTable.concatenate([part.evaluation_labels for part in parts]).select(order)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        places = np.split(rank, np.cumsum([len(part) for part in parts])[:-1])
        found = [(part.boxes, place) for part, place in zip(parts, places, strict=True) if part.boxes is not None]
        boxes = None
        if len(found) == len(parts):
            columns = zip(*((place[each.rows], each.classes, each.corners) for each, place in found), strict=True)
            boxes = Boxes(*map(np.concatenate, columns))
        return pool, boxes, places[parts.index(split)]


def _writer(tool: str) -> Any:
    """Return the module that writes for a tool; each of them imports this one."""
    return importlib.import_module(f"labelgap.data.writers.{tool}")


def _describe_gap(split: Split, gap: LabelGap, negatives: Amount, seed: int) -> LabelsShown:
    truth, description = split.evaluation_labels, gap.description
    if gap.needs_sizes and split.boxes is not None:
        without = int((split.boxes.largest_areas(truth)[truth.values == PRESENT] == 0).sum())
        description += f"; {without:,} present labels have no box" if without else ""
    if gap.draws_absents:
        drawn = f"{len(split.labels.values):,} of {len(truth.values):,} labels (seed {seed}: {description})"
        return LabelsShown(split.name, f"{drawn}, the rest is hidden")
    shown, known = split.labels.counts().total[0], truth.counts().total[0]
    rule = f"{shown:,} of {known:,} present labels ({gap.name}, seed {seed}: {description})"
    return LabelsShown(split.name, f"{rule} and {negatives} absent labels of every image, the rest is hidden")


_KINDS: Final = (
    "paths of files, Pillow images, uint8 arrays (H, W), (H, W, 3) or (N, H, W, 3), tensors (C, H, W) or (N, C, H, W) "
    "of uint8 or of floats from 0 to 1, a split or an image source; or features (N, D) where a run was trained on "
    "features"
)


class InMemoryImages(NamedRows):
    """Images of any sizes and kinds in memory (``as_image_source``); each is converted to uint8 when it is read."""

    row_fields = ("images",)

    def __init__(self, images: Sequence[Any]) -> None:
        self.images = tuple(images)
        self.set_names(None, len(self.images), "images")
        for number, image in enumerate(self.images):
            if not isinstance(image, Image.Image):
                _check_values(image, f"image {number}" if len(self.images) > 1 else "the image")

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        image = self.images[row]
        if isinstance(image, Image.Image):
            image.load()
            return DecodedImage(image, exif_orientation(image)).pixels()
        if is_tensor(image):
            image = image.detach().cpu().numpy().transpose(1, 2, 0)
        image = image[..., None] if image.ndim == 2 else image
        if image.dtype != np.uint8:
            image = np.rint(255 * image.astype(np.float64)).astype(np.uint8)
        return np.array(image, order="C")

    def fingerprint(self) -> str:
        """Return a hash of every image."""
        digest = hashlib.blake2b(digest_size=16)
        for row in range(len(self)):
            pixels = self[row]
            digest.update(repr(pixels.shape).encode() + pixels.tobytes())
        return digest.hexdigest()


def as_image_source(images: Any) -> ImageSource:
    """Return an image source of whatever a caller passes to ``Run.predict``.

    Arrays have their channels last, tensors first; values are uint8, or floats from 0 to 1, not normalized. ``(H, W)``,
    ``(H, W, 1 or 3)`` and a tensor of three axes are one image, one axis more is several; floats ``(N, D)`` are
    features. A folder stands for all images below it in the order of their names.
    """
    if isinstance(images, Split):
        return images.images
    if isinstance(images, ImageSource):
        return images
    if isinstance(images, np.ndarray) or is_tensor(images):
        return _from_values(images)
    if isinstance(images, str | os.PathLike | Image.Image):
        images = [images]
    if not isinstance(images, Sequence) or isinstance(images, bytes):
        raise InputError(f"images are {_KINDS}; not {type(images).__name__}.")
    if all(isinstance(item, str | os.PathLike) for item in images):
        paths = [Path(name).absolute() for name in images]
        if len(paths) == 1 and paths[0].is_dir():
            return FileImages(paths[0], [os.path.relpath(name, paths[0]) for name in images_below(paths[0])])
        return FileImages(paths[0].anchor if paths else ".", [os.fspath(path) for path in paths])
    for number, item in enumerate(images):
        if not (isinstance(item, Image.Image | np.ndarray) or is_tensor(item)):
            mixed = " Paths and images cannot be mixed." if isinstance(item, str | os.PathLike) else ""
            raise InputError(f"item {number} is a {type(item).__name__}: images are {_KINDS}.{mixed}")
    return InMemoryImages(images)


def _from_values(values: NDArray[Any] | Tensor) -> ImageSource:
    channels_first = is_tensor(values)
    floating = values.is_floating_point() if is_tensor(values) else values.dtype.kind == "f"
    if values.ndim == 2 and floating:
        return FeatureVectors(values.detach().cpu().float().numpy() if is_tensor(values) else values)
    many = values.ndim == 4 or (values.ndim == 3 and not channels_first and values.shape[-1] not in (1, 3))
    return InMemoryImages(list(values) if many else [values])


def _check_values(image: NDArray[Any] | Tensor, name: str) -> None:
    shape, dtype = tuple(image.shape), str(image.dtype).removeprefix("torch.")
    if is_tensor(image):
        container, expected, channels = "a tensor", "(C, H, W) with C 1 or 3, or (N, C, H, W)", shape[:1]
    else:
        container, expected, channels = "an array", "(H, W), (H, W, 3) or (N, H, W, 3)", shape[2:] or (1,)
    if len(shape) not in ((3,) if is_tensor(image) else (2, 3)) or channels not in ((1,), (3,)) or 0 in shape:
        raise InputError(f"{name} is {container} of shape {shape}: images are {expected}.")
    if dtype == "uint8":
        return
    if "float" not in dtype:
        raise InputError(f"{name} is {container} of {dtype}: images are uint8 (0…255), or floats from 0 to 1.")
    low, high = float(image.min()), float(image.max())
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"{name} has values from {low:g} to {high:g}: float images run from 0 to 1 and are not normalized (the run "
            "does that). Divide by 255, or pass uint8."
        )
