"""A data set: gray images with horizontal stripes, vertical stripes and a dot, of which one label is known."""

from __future__ import annotations

import numpy as np

from labelgap import Dataset, LabelTable, Split
from labelgap.data import ArrayImages

CLASSES = ("horizontal", "vertical", "dot")
SIZE = 32


def load_stripes(train: int = 96, val: int = 32, test: int = 32, seed: int = 0) -> Dataset:
    """Gray images of stripes and dots; one present label of each training image is known.

    The parameters are the options of the data set. A data set that reads files has a first parameter ``path``.
    """
    random = np.random.default_rng(seed)
    data = Dataset(
        "stripes",
        train=_split("train", train, random),
        val=_split("val", val, random),
        test=_split("test", test, random),
        backbone="stripe-net",
        protocol="end-to-end",
    )
    return data.observe(1, 0, seed=seed)


def _split(name: str, count: int, random: np.random.Generator) -> Split:
    present = random.random((count, len(CLASSES))) < 0.5
    present[~present.any(axis=1), 0] = True
    images = random.integers(0, 40, (count, SIZE, SIZE), dtype=np.uint8)
    images[present[:, 0], ::4] += np.uint8(100)
    images[present[:, 1], :, ::4] += np.uint8(100)
    images[present[:, 2], 10:20, 10:20] = np.uint8(255)
    labels = LabelTable.from_dense(present.astype(np.int8), classes=CLASSES)
    return Split(name, ArrayImages(images), labels)
