"""The features of a data set as arrays, and as a file that ``train``, ``compare`` and ``linear-eval`` read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.core.files import atomic_path
from labelgap.data.dataset import Dataset
from labelgap.studies.compare.heads import compute_split_features
from labelgap.training.devices import choose_device, choose_workers
from labelgap.training.plan import default_linear_backbone
from labelgap.training.progress import Reporter


def features(
    data: Dataset,
    backbone: str | None = None,
    *,
    weights: str | None = None,
    size: int | None = None,
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = True,
) -> dict[str, NDArray[np.float32]]:
    """Return the ``(N, D)`` features of every split by a backbone, of a ``size`` and a file of ``weights``, cached."""
    name, torch_device = backbone or default_linear_backbone(data), choose_device(device)
    count = choose_workers(workers, torch_device)
    found, _ = compute_split_features(data, name, weights, torch_device, count, Reporter(quiet), size=size)
    return {split: values.cpu().numpy() for split, values in found.items()}


def write_features(
    path: str | os.PathLike[str], data: Dataset, arrays: Mapping[str, NDArray[np.float32]], *, force: bool = False
) -> None:
    """Write the ``arrays`` of ``features(data)``, names and labels to an ``.npz``, as ``load_features`` reads it."""
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"{path}: features are written to a file that ends in .npz.")
    if path.exists() and not force:
        raise InputError(f"{path} exists already: choose another file, or replace it (force=True, --force).")
    content: dict[str, NDArray[np.generic]] = {"classes": np.array(data.classes)}
    for split in data.splits:
        content[f"{split.name}_features"] = arrays[split.name]
        content[f"{split.name}_ids"] = np.array(split.images.names)
        if split.truth is None:
            content[f"{split.name}_labels"] = split.labels.to_dense()
        else:
            content[f"{split.name}_truth"] = split.truth.to_dense()
            content[f"{split.name}_observed"] = split.labels.to_dense()
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **content)  # type: ignore[arg-type]
