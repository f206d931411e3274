"""Data small enough to audit in a second: vectors of classes that a line can tell apart, with most labels hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import labelgap as lg

CLASSES = ("cat", "dog", "owl", "yak")


def arrays(rows: int = 300, width: int = 12, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Vectors and full labels of three splits; every training image has one known positive."""
    random = np.random.default_rng(seed)
    weight = random.normal(size=(width, len(CLASSES)))
    made: dict[str, NDArray[Any]] = {"classes": np.array(CLASSES)}
    for split, size in (("train", rows), ("val", rows // 3), ("test", rows // 3)):
        vectors = random.normal(size=(size, width)).astype(np.float32)
        truth = (vectors @ weight + 0.5 * random.normal(size=(size, len(CLASSES))) > 1.5).astype(np.int8)
        truth[np.arange(size), np.argmax(vectors @ weight, axis=1)] = 1
        made |= {
            f"{split}_features": vectors,
            f"{split}_truth": truth,
            f"{split}_ids": np.array([f"{split}-{row}" for row in range(size)]),
        }
    observed = lg.LabelTable.from_dense(made["train_truth"]).observe(positives=1, negatives=0)
    made["train_observed"] = observed.to_dense()
    return made


def write(folder: Path, **changed: NDArray[Any]) -> Path:
    """Write the data as a file of features, and return its path."""
    path = folder / "vectors.npz"
    np.savez(path, **{**arrays(), **changed})  # type: ignore[arg-type]
    return path


def train(folder: Path, data: lg.Dataset, method: str = "em", **settings: Any) -> lg.Run:
    """Train a run of a few epochs on it."""
    plain: dict[str, Any] = {"epochs": 4, "lr": 0.02, "device": "cpu", "quiet": True, "trace": "off"}
    return lg.fit(data, method, out=folder / method, **{**plain, **settings})
