"""The nine data sets with one class per image on which Kobayashi (CVPR 2023, table 8) measures features.

torchvision reads six; it has no CUB-200-2011, and no split of SUN397 and Caltech-101. Train has val where one is
published.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.findings import Note
from labelgap.core.text import truncate_text
from labelgap.core.torchvision import declared_operators
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.data.readers.common import DatasetLayout, FileProblems, RequiredFile, find_root
from labelgap.labels import LabelTable

Sample = tuple[str, str]  # an image, relative to the root, and its class
Samples = dict[str, list[Sample]]  # those of train and of test

CALTECH_TRAIN: Final = 30
"""Training images of each of Caltech-101's folders, drawn with seed 1200: the paper does not say which it took."""
_SEED: Final = 1200


@dataclass(frozen=True)
class TransferSet:
    """A data set with one class per image."""

    name: str
    title: str
    published: tuple[int, int, int]  # classes, and images of train and test
    folder: str  # below the root
    files: str  # that it consists of, in the folder; by the first two it is recognized
    read: Callable[[Path, FileProblems], Samples] | str  # a function, or a class of torchvision with its training parts
    note: str = ""

    def find(self, path: Path) -> Path | None:
        """Return the root of the data set that a path leads to: itself, or a folder above one of the data set."""
        below, path = Path(self.folder).parts, path.absolute()
        needed = [Path(self.folder, name) for name in self.files.split()[:2] if "*" not in name]
        places = (root for depth, root in enumerate((path, *path.parents)) if path == root.joinpath(*below[:depth]))
        return next((root for root in places if all((root / name).exists() for name in needed)), None)

    @property
    def layout(self) -> DatasetLayout:
        """Its files."""
        source = f"torchvision.datasets.{self.read.split()[0]}" if isinstance(self.read, str) else "its authors' page"
        files = tuple(RequiredFile(f"{self.folder}/{name}") for name in self.files.split())
        notes = (self.note,) if self.note else ()
        return DatasetLayout(source, "see its page", "ROOT/", files, self.find, notes, tried=False)

    def load(self, path: str | os.PathLike[str]) -> Dataset:
        """Read images and classes: train is what the paper trains on, and there is no val.

        Args:
            path: the folder that torchvision's class takes as ``root``, or the one in it.
        """
        root = find_root(Path(path), self.layout)
        problems = FileProblems(root)
        try:
            read = partial(_read_torchvision, *self.read.split()) if isinstance(self.read, str) else self.read
            found = read(root, problems)
        except LabelGapError:
            raise
        except Exception as error:  # whatever the parsers of torchvision and scipy raise
            reason = f"{type(error).__name__}: {truncate_text(str(error), 300)}"
            raise InputError(
                f"{root} cannot be read as {self.name} ({reason}): labelgap datasets {self.name}."
            ) from error
        problems.check_images([image for part in found.values() for image, _ in part], "Are all images unpacked?")
        problems.refuse()
        classes = sorted({label for part in found.values() for _, label in part})
        train, test = (self._split(root, name, part, classes) for name, part in found.items())
        notes = [Note("each image has one class; all others are absent"), *([Note(self.note)] if self.note else [])]
        if (counts := (len(classes), len(train), len(test))) != self.published:
            texts = [
                "{:,} classes, {:,} / {:,} training and test images".format(*each) for each in (counts, self.published)
            ]
            notes.append(Note(f"there are {texts[0]}, in the paper {texts[1]}"))
        return Dataset(self.name, train, None, test, findings=tuple(notes))

    def _split(self, root: Path, name: str, samples: Sequence[Sample], classes: Sequence[str]) -> Split:
        images, labels = [image for image, _ in samples], [[label] for _, label in samples]
        table = LabelTable.from_lists(labels, classes=classes, images=images, unlisted="absent")
        return Split(name, FileImages(root, images), table)


def _read_torchvision(kind: str, *given: Any) -> Samples:
    *train, root, _ = given
    if importlib.util.find_spec("torchvision") is None:
        raise InputError("torchvision reads these files and is not installed: pip install 'labelgap[timm]'.")
    with declared_operators():
        module: Any = importlib.import_module("torchvision.datasets")
    made = {part: getattr(module, kind)(root, split=part) for part in (*train, "test")}
    found = {part: list(_samples(each, root)) for part, each in made.items()}
    return {"train": [sample for part in train for sample in found[part]], "test": found["test"]}


def _samples(made: Any, root: Path) -> Iterator[Sample]:
    """Yield the images and classes of a data set of torchvision, which has no public way to them without the pixels."""
    known = vars(made)
    images = known.get("_image_files", known.get("_images"))
    for image, number in known["_samples"] if images is None else zip(images, known["_labels"], strict=True):
        yield Path(image).relative_to(root).as_posix(), str(made.classes[int(number)])


def _read_sun(root: Path, problems: FileProblems) -> Samples:
    parts = {"train": "Training_01.txt", "test": "Testing_01.txt"}
    lines = {part: problems.read_lines(root / "SUN397" / name) for part, name in parts.items()}
    return {part: [_sun_sample(text.strip()) for _, text in found] for part, found in lines.items()}


def _sun_sample(line: str) -> Sample:
    """Return the image and the class of ``/a/abbey/sun_1.jpg``; a class may be a path, too."""
    return f"SUN397{line}", "/".join(line.split("/")[2:-1])


def _read_cub(root: Path, problems: FileProblems) -> Samples:
    folder, found = root / "CUB_200_2011", Samples(train=[], test=[])
    listed = {name: problems.read_numbered(folder / f"{name}.txt") for name in _CUB}
    problems.refuse()
    for number, (_, image) in listed["images"].items():
        part, label = (listed[name][number][1] for name in ("train_test_split", "image_class_labels"))
        sample = f"CUB_200_2011/images/{image}", listed["classes"][int(label)][1]
        found["train" if part == "1" else "test"].append(sample)
    return found


def _read_caltech(root: Path, problems: FileProblems) -> Samples:
    found: Samples = {"train": [], "test": []}
    draw = np.random.RandomState(_SEED)
    for folder in sorted(each for each in (root / "caltech101" / "101_ObjectCategories").iterdir() if each.is_dir()):
        images = sorted(file.relative_to(root).as_posix() for file in folder.glob("*.jpg"))
        chosen = {images[row] for row in draw.permutation(len(images))[:CALTECH_TRAIN]}
        for image in images:
            found["train" if image in chosen else "test"].append((image, folder.name))
    return found


_CUB: Final = ("image_class_labels", "train_test_split", "images", "classes")

TRANSFER_SETS: Final = (
    TransferSet(
        *("aircraft", "FGVC-Aircraft: 100 variants", (100, 6667, 3333), "fgvc-aircraft-2013b/data"),
        *("variants.txt images_variant_trainval.txt images_variant_test.txt images/*.jpg", "FGVCAircraft trainval"),
    ),
    TransferSet(
        *("caltech101", "Caltech-101: 102 folders, the background included", (102, 3060, 6084), "caltech101"),
        *("101_ObjectCategories 101_ObjectCategories/*/*.jpg", _read_caltech),
        f"train are {CALTECH_TRAIN} images of each folder, drawn with seed {_SEED}: the paper does not say which",
    ),
    TransferSet(
        *("cars", "Stanford Cars: 196 models", (196, 8144, 8041), "stanford_cars"),
        "devkit/cars_meta.mat cars_test_annos_withlabels.mat devkit/cars_train_annos.mat cars_*/*.jpg",
        "StanfordCars train",
    ),
    TransferSet(
        *("cub200", "CUB-200-2011: 200 species of birds; its attributes are `cub`", (200, 5994, 5794), "CUB_200_2011"),
        *(" ".join([*(f"{name}.txt" for name in _CUB), "images/*/*.jpg"]), _read_cub),
    ),
    TransferSet(
        *("dtd", "DTD: 47 textures, the first of its ten splits", (47, 3760, 1880), "dtd/dtd"),
        *("labels/train1.txt labels/val1.txt labels/test1.txt images/*/*.jpg", "DTD train val"),
    ),
    TransferSet(
        *("flowers102", "Flowers-102", (102, 2040, 6149), "flowers-102"),
        *("setid.mat imagelabels.mat jpg/*.jpg", "Flowers102 train val"),
    ),
    TransferSet(
        *("food101", "Food-101", (101, 75750, 25250), "food-101"),
        *("meta/train.json meta/test.json images/*/*.jpg", "Food101 train"),
    ),
    TransferSet(
        *("pets", "Oxford-IIIT Pet: 37 breeds", (37, 3680, 3669), "oxford-iiit-pet"),
        *("annotations/trainval.txt annotations/test.txt images/*.jpg", "OxfordIIITPet trainval"),
    ),
    TransferSet(
        *("sun397", "SUN397: 397 scenes, the first of its ten splits", (397, 19850, 19850), "SUN397"),
        *("Training_01.txt Testing_01.txt */*/*.jpg", _read_sun),
        "the lists of the split (Partitions) go beside the images, into SUN397",
    ),
)
