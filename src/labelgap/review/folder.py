"""A folder that can be reviewed: a run that was audited, or a review of random images, which needs no run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import atomic_path, write_json
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset, Split
from labelgap.data.readers.features import FeatureVectors
from labelgap.data.registry import load_from_recipe
from labelgap.labels.codes import UNKNOWN
from labelgap.review.candidates import FILE as CANDIDATES
from labelgap.review.candidates import FORMAT
from labelgap.training import Run, open_run
from labelgap.training.config.schema import CONFIG_FILE as CONFIG

__all__ = ["REVIEW_FILE", "ReviewFolder", "create_random_review", "is_review_folder", "open_review_folder"]

REVIEW_FILE: Final = "review.json"


@dataclass(frozen=True, eq=False)
class ReviewFolder:
    """A folder with candidates and, beside them, decisions.

    Attributes:
        path: the folder.
        classes: names of the classes in order.
        recipe: how the data are loaded.
        run: the run, or None for a review of random images.
        images: how many images were drawn at random; 0 for a run.
    """

    path: Path
    classes: tuple[str, ...]
    recipe: Mapping[str, Any]
    run: Run | None = None
    images: int = 0

    @cached_property
    def data(self) -> Dataset:
        """The data, opened again."""
        data = load_from_recipe(self.recipe)
        if data.classes != self.classes:
            raise RunError(f"{data.name} has other classes now than when {self.path} was made.")
        return data


def is_review_folder(path: Path) -> bool:
    """Whether a path leads to a run, or to a review of random images."""
    return (path / CONFIG).is_file() or (path / REVIEW_FILE).is_file()


def open_review_folder(path: str | os.PathLike[str]) -> ReviewFolder:
    """Open a run, or a review of random images."""
    folder = Path(path)
    if (folder / CONFIG).is_file() or not (folder / REVIEW_FILE).is_file():
        run = open_run(folder)
        return ReviewFolder(folder, run.config.classes, run.config.data, run)
    about = _about(folder)
    return ReviewFolder(folder, tuple(about["classes"]), about["data"], None, int(about["images"]))


def create_random_review(data: Dataset, split: str, images: int, seed: int, out: Path) -> ReviewFolder:
    """Draw images at random, and ask of each of them every class that is not known: a small fully known set.

    The same call again opens what is there, decisions and all; another one for the same folder is refused.

    Args:
        data: loaded by name, so that it can be opened again.
        split: from which.
        images: how many; all of them where there are fewer.
        seed: of the draw.
        out: the folder, made when it is not there.
    """
    source = data.split(split)
    if isinstance(source.images, FeatureVectors):
        raise InputError(f"{data.name} has feature vectors and no pictures: there is nothing that a person could see.")
    if images < 1:
        raise InputError(f"--random {images}: review one image at least.")
    if not data.recipe:
        raise InputError(f"{data.name} was made by hand, not loaded by name: it cannot be opened again for a review.")
    about = {"format": FORMAT, "data": dict(data.recipe), "classes": list(data.classes), "split": split}
    about |= {"images": images, "seed": seed}
    if (out / REVIEW_FILE).exists():
        if _about(out) != json.loads(json.dumps(about)):
            raise RunError(f"{out} holds another review already. Choose another folder with --out.")
        return open_review_folder(out)
    rows = numpy_generator(seed, "review").permutation(len(source))[:images]
    table = _asked(source, rows)
    if not len(table):
        raise InputError(f"every label of these {len(rows):,} images of {split} is known: there is nothing to ask.")
    unknown = source.labels.counts().unknown
    header = {
        "format": FORMAT,
        "runs": [],
        "data": dict(data.recipe),
        "unknown_total": int(unknown.sum()),
        "unknown_per_class": dict(zip(data.classes, unknown.tolist(), strict=True)),
        "method": "random images",
    }
    out.mkdir(parents=True, exist_ok=True)
    with atomic_path(out / CANDIDATES) as temporary:
        pq.write_table(table.replace_schema_metadata({b"labelgap": json.dumps(header).encode()}), temporary)
    write_json(out / REVIEW_FILE, about)
    return open_review_folder(out)


def _asked(source: Split, rows: NDArray[np.int64]) -> pa.Table:
    """Return every unknown label of some images as a random candidate, the images in this order."""
    place, column = np.nonzero(source.labels.batch(rows).numpy() == UNKNOWN)
    order = np.lexsort((place, column))
    class_rank = np.empty(len(order), dtype=np.int32)
    class_rank[order] = np.arange(len(order)) - np.searchsorted(column[order], column[order]) + 1
    nothing = np.zeros(len(place), dtype=np.int64)
    return pa.table(
        {
            "image": _named([source.labels.images[row] for row in rows.tolist()], place),
            "split": _named([source.name], nothing),
            "class": _named(source.labels.classes, column),
            "score": pa.nulls(len(place), pa.float32()),
            "kind": _named(["random"], nothing),
            "observed": pa.array(np.full(len(place), UNKNOWN, dtype=np.int8)),
            "rank": pa.array(np.arange(1, len(place) + 1, dtype=np.int32)),
            "class_rank": pa.array(class_rank),
        }
    )


def _named(names: Sequence[str], numbers: NDArray[np.int64]) -> pa.Array:
    """Return names by their numbers, each name kept once until it is written."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(list(names), pa.string()))


def _about(folder: Path) -> dict[str, Any]:
    path = folder / REVIEW_FILE
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        version = about["format"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is damaged ({error}).") from None
    if version != FORMAT:
        raise RunError(f"{path} is of format {version}; this version of labelgap reads format {FORMAT}.")
    return dict(about)
