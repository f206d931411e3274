"""A data set of vectors small enough to compare methods on in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FeatureVectors
from labelgap.labels import LabelTable

CLASSES = ("cat", "dog", "owl", "yak")
SIZES = {"train": 90, "val": 110, "test": 80}


def arrays(seed: int = 0, width: int = 6) -> dict[str, NDArray[Any]]:
    """Vectors that a linear head can tell apart fairly well, with their full labels."""
    random = np.random.default_rng(seed)
    weight = random.normal(size=(width, len(CLASSES)))
    made: dict[str, NDArray[Any]] = {"classes": np.array(CLASSES)}
    for name, size in SIZES.items():
        vectors = random.normal(size=(size, width)).astype(np.float32)
        full = (vectors @ weight + random.normal(size=(size, len(CLASSES))) > 0.8).astype(np.int8)
        full[np.arange(size), np.arange(size) % len(CLASSES)] |= (full.sum(axis=1) == 0).astype(np.int8)
        made |= {f"{name}_features": vectors, f"{name}_truth": full}
    return made


def features(*, observed: bool = True, truth: bool = True, splits: tuple[str, ...] = ("val", "test")) -> Dataset:
    """The data set; ``observed`` shows one positive of each training row, without ``truth`` nobody knows more."""
    stored, parts = arrays(), {}
    for name in ("train", *splits):
        table = LabelTable.from_dense(stored[f"{name}_truth"], CLASSES)
        shown = table.observe(positives=1, negatives=0) if observed and name == "train" else table
        known = table if truth and name == "train" else None
        parts[name] = Split(name, FeatureVectors(stored[f"{name}_features"]), shown, known)
    return Dataset(
        "vectors",
        parts["train"],
        parts.get("val"),
        parts.get("test"),
        backbone="features",
        flip=False,
        recipe={"name": "features", "path": "vectors.npz", "options": {}, "steps": []},
    )


def write(path: Path) -> None:
    """Write the same as an npz file, train with one positive each."""
    stored = arrays()
    full = LabelTable.from_dense(stored["train_truth"], CLASSES)
    np.savez(path, **stored, train_observed=full.observe(positives=1, negatives=0).to_dense())  # type: ignore[arg-type]
