"""The embedded data set: scenes of handwritten digits, of which each shows one label.

Nothing is downloaded and nothing is stored: the scenes are generated from a seed, once per process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from labelgap.core.errors import InputError
from labelgap.core.findings import Note
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.findings import format_sizes
from labelgap.data.images import ArrayImages
from labelgap.data.readers.digits.scenes import CLASS_NAMES, Scenes, digit_scenes
from labelgap.labels import LabelTable

_MAX_SCENES: Final = 100_000
"""Scenes of a split: they are generated at once, in some gigabytes of memory."""


def load_digits(*, train: int = 4000, val: int = 1000, test: int = 2000, seed: int = 0) -> Dataset:
    """Generate scenes of one to five handwritten digits, classes "0" to "9", with boxes.

    Training images show one positive each (drawn with the papers' seed, 1200), all other labels are unknown; what was
    hidden is kept as ``truth``. Val and test are complete. Generated once per process: several runs share the pixels.

    Args:
        train: number of training scenes.
        val: number of validation scenes; 0 for none.
        test: number of test scenes; 0 for none.
        seed: of the scenes.

    Example:
        >>> data = load_digits(train=20, val=5, test=5)
        >>> data.train.labels
        LabelTable(20 images, 10 classes: 20 present, 0 absent, 180 unknown)
        >>> data.train.truth.complete and data.val.labels.complete
        True
    """
    for name, value, least in (("train", train, 1), ("val", val, 0), ("test", test, 0), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"digits: {name}={value!r} is not a whole number of at least {least}.")
        if name != "seed" and value > _MAX_SCENES:
            raise InputError(f"digits: {name}={value!r} is more than {_MAX_SCENES:,} scenes.")
    return _generate(train, val, test, seed)


@lru_cache(maxsize=2)
def _generate(train: int, val: int, test: int, seed: int) -> Dataset:
    scenes = digit_scenes(seed, (train, val, test))
    sizes = format_sizes({"train": train, "val": val, "test": test})
    generated = f"scenes of handwritten digits generated with seed {seed}: {sizes}"
    whole = Dataset(
        "digits",
        train=_split("train", scenes.train),
        val=_split("val", scenes.val) if val else None,
        test=_split("test", scenes.test) if test else None,
        findings=(Note(f"{generated}; every label is known, and shown in val and test", "source"),),
        backbone="small-cnn",
        protocol="end-to-end",
        flip=False,
    )
    return whole.observe(positives=1, negatives=0, seed=1200)


def _split(name: str, scenes: Scenes) -> Split:
    images = [f"{name}-{number:05d}" for number in range(len(scenes))]
    truth = LabelTable.from_dense(scenes.labels, CLASS_NAMES, images)
    boxes = Boxes(scenes.boxes[:, 0], scenes.boxes[:, 1], scenes.boxes[:, 2:].astype("float64"))
    for array in (scenes.images, boxes.rows, boxes.classes, boxes.corners):
        array.flags.writeable = False
    return Split(name, ArrayImages(scenes.images, images), truth, truth, boxes)
