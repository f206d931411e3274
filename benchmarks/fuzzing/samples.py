"""The files that are damaged: a small one of every kind that labelgap stores, written by labelgap itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import safetensors.torch
import torch
from benchmarks.fuzzing.datasets import make_data_sets
from PIL import Image

import labelgap as lg
from labelgap.core.cache import KEY_BYTES, RowStore
from labelgap.data.dataset import Dataset
from labelgap.data.images import ImageSource
from labelgap.inference.predict import predict_to_file
from labelgap.models import create_backbone
from labelgap.review.database import FILE as STORE
from labelgap.review.folder import create_random_review
from labelgap.review.store import Decision, DecisionStore, LabelKey, Undo
from labelgap.studies.study import Study, StudyMember
from labelgap.training.progress import Reporter

SAMPLES_VARIABLE: Final = "LABELGAP_FUZZ_SAMPLES"
"""Environment variable: the folder of the samples, which the runs in it name."""
SIZES: Final[dict[str, Any]] = {"train": 24, "val": 12, "test": 12}
FEATURE_SHAPE: Final = (40, 6)
CACHED_KEYS: Final = np.random.default_rng(1).integers(0, 256, (30, KEY_BYTES), dtype=np.uint8)
CACHED_ROWS: Final = np.random.default_rng(2).integers(0, 256, (30, 32), dtype=np.uint8)
PREDICTION: Final = "scores.parquet"
BATCH: Final = 8
METHODS: Final = ("an", "wan")
COMPARE: Final[dict[str, Any]] = {
    **{"seeds": 2, "epochs": 2, "learning_rates": [1e-2], "batch_sizes": [16]},
    **{"grid": "small", "baseline": False},
}


class _Killed(BaseException):
    """Stands for a kill: nothing in a run may catch it."""


def make_samples(folder: Path) -> None:
    """Write every sample below an empty folder. Their times and ids differ from one call to the next."""
    torch.set_num_threads(1)
    digits = lg.load("digits", **SIZES).observe(1, 2, seed=0)
    settings: dict[str, Any] = {"batch_size": BATCH, "device": "cpu", "quiet": True}
    run = lg.fit(digits, "ll-cp", out=folder / "run", epochs=2, **settings)
    lg.find_missing(run, folds=2, per_class=6, quiet=True, device="cpu")
    _decide(folder / "run", digits)
    _features(folder / "features.npz")
    features = lg.load("features", folder / "features.npz")
    _unfinished(features, folder / "unfinished", settings)
    lg.fit(features, "an", out=folder / "linear", epochs=2, **settings)
    _study(features, folder / "study", settings)
    lg.compare(features, METHODS, out=folder / "compare", quiet=True, device="cpu", **COMPARE)
    create_random_review(digits, "train", 4, 0, folder / "review")
    _decide(folder / "review", digits)
    _prediction(folder)
    _coco(folder / "coco")
    make_data_sets(folder)
    _weights(folder)
    _cache(folder / "cache")


@cache
def test_images() -> ImageSource:
    """Return the images of the prediction."""
    split = lg.load("digits", **SIZES).test
    assert split is not None
    return split.images


def _decide(folder: Path, data: Dataset) -> None:
    """Store decisions, two that disagree, and one that is undone."""
    names, classes = data.train.labels.images, data.classes
    with closing(DecisionStore(folder / STORE)) as store:
        for number, name in enumerate(names[:6]):
            key = LabelKey("train", name, classes[number % len(classes)])
            decision = Decision(key, number % 3 - 1, f"request-{number}", 0, "missing", 0.5)
            store.append([decision], reviewer="Ann" if number % 2 else "Bö", client=f"client-{number % 2}")
        other = Decision(LabelKey("train", names[0], classes[0]), 1, "request-6", 0, "random", None)
        store.append([other, Undo("request-1", "request-7")], reviewer="Cy", client="client-3")


def _unfinished(data: Dataset, out: Path, settings: dict[str, Any]) -> None:
    with _stop_after(2):
        try:
            lg.fit(data, "an", out=out, epochs=3, **settings)
        except _Killed:
            return
    raise AssertionError("the training ended before it was stopped")


@contextmanager
def _stop_after(steps: int) -> Iterator[None]:
    """End a training by an error in the step after so many."""
    left, advance = iter(range(steps)), Reporter.advance

    def stop(self: Reporter, *arguments: Any, **options: Any) -> None:
        if next(left, None) is None:
            raise _Killed
        advance(self, *arguments, **options)

    Reporter.advance = stop  # type: ignore[method-assign]
    try:
        yield
    finally:
        Reporter.advance = advance  # type: ignore[method-assign]


def _features(path: Path) -> None:
    random = np.random.default_rng(0)
    count, width = FEATURE_SHAPE
    arrays: dict[str, Any] = {"classes": np.array(["cat", "dog", "owl"])}
    for split, rows in (("train", count), ("val", count // 2), ("test", count // 2)):
        labels = random.integers(0, 2, (rows, 3)).astype(np.int8)
        features = random.normal(size=(rows, width)).astype(np.float32)
        features[:, :3] += labels
        arrays |= {f"{split}_features": features, f"{split}_truth": labels}
        arrays[f"{split}_observed"] = np.where(random.random(labels.shape) < 0.4, -1, labels).astype(np.int8)
        arrays[f"{split}_ids"] = np.array([f"{split}-{row:03d}" for row in range(rows)])
    np.savez(path, **arrays)


def _study(data: Dataset, folder: Path, settings: dict[str, Any]) -> None:
    for method in ("an", "wan"):
        lg.fit(data, method, out=folder / method, epochs=2, **settings)
    study = Study(folder, "a question", [StudyMember("an", "an"), StudyMember("wan", "wan", extra_labels=True)])
    study.write()


def _prediction(folder: Path) -> None:
    """Leave a prediction as a kill after its last chunk would."""
    with patch("labelgap.inference.predict.atomic_path", side_effect=_Killed), suppress(_Killed):
        run, out = lg.open_run(folder / "run"), folder / PREDICTION
        predict_to_file(run, test_images(), out, batch_size=BATCH, device="cpu", workers=0)


def _coco(folder: Path) -> None:
    """Two official splits of 24 images each."""
    for split in ("train", "val"):
        photos, notes = folder / f"{split}2017", folder / "annotations"
        for made in (photos, notes):
            made.mkdir(parents=True, exist_ok=True)
        images = [{"id": number, "file_name": f"{number:03d}.png", "width": 8, "height": 8} for number in range(24)]
        for number in range(24):
            Image.new("RGB", (8, 8), (number * 9, len(split) * 20, 99)).save(photos / f"{number:03d}.png")
        boxes = [{"id": n, "image_id": n % 24, "category_id": 1 + n % 3, "bbox": [0, 0, 4, 4]} for n in range(30)]
        names = [{"id": number, "name": name} for number, name in enumerate(("cat", "dog", "owl"), 1)]
        content = {"images": images, "annotations": boxes, "categories": names}
        (notes / f"instances_{split}2017.json").write_text(json.dumps(content))


def _weights(folder: Path) -> None:
    state = create_backbone("small-cnn").state_dict()
    safetensors.torch.save_file(state, folder / "weights.safetensors")
    with (folder / "weights.pth").open("wb") as file:
        torch.save({"state_dict": state, "epoch": 3}, file)


def feature_store(folder: Path) -> RowStore:
    """Open the cached features of a network in the cache at ``folder``."""
    os.environ["LABELGAP_CACHE"] = str(folder)
    return RowStore("network", CACHED_ROWS.shape[1], {"backbone": "Tiny", "size": 8})


def _cache(folder: Path) -> None:
    """Cached features, and the limit of the cache."""
    feature_store(folder).append(CACHED_KEYS, CACHED_ROWS)
    (folder / "settings.json").write_text('{"limit": 1000000000}')
