"""Folders that can be reviewed: an audited run, or a review of random images, which needs no run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.audit.candidates import FORMAT, write_candidates
from labelgap.audit.ranking import CandidateList
from labelgap.core.errors import InputError, RunError
from labelgap.core.files import write_json
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.registry import load_from_recipe
from labelgap.labels import LabelTable
from labelgap.labels.codes import UNKNOWN
from labelgap.training import Run, open_run
from labelgap.training.config.schema import CONFIG_FILE as CONFIG

__all__ = ["REVIEW_FILE", "ReviewFolder", "create_random_review", "is_review_folder", "open_review_folder"]

REVIEW_FILE: Final = "review.json"


@dataclass(frozen=True, eq=False)
class ReviewFolder:
    """A folder with candidates and decisions.

    Attributes:
        path: the folder.
        classes: names of the classes in order.
        recipe: how to load the data.
        run: the run; None for a review of random images.
    """

    path: Path
    classes: tuple[str, ...]
    recipe: Mapping[str, Any]
    run: Run | None = None

    @cached_property
    def data(self) -> Dataset:
        """The data, loaded again."""
        data = load_from_recipe(self.recipe)
        if data.classes != self.classes:
            raise RunError(f"{data.name} no longer has the classes that {self.path} was made with.")
        return data


def is_review_folder(path: Path) -> bool:
    """Whether a path is a run or a review of random images."""
    return (path / CONFIG).is_file() or (path / REVIEW_FILE).is_file()


def open_review_folder(path: str | os.PathLike[str]) -> ReviewFolder:
    """Open a run, or a review of random images."""
    folder = Path(path)
    if (folder / CONFIG).is_file() or not (folder / REVIEW_FILE).is_file():
        run = open_run(folder)
        return ReviewFolder(folder, run.config.classes, run.config.data, run)
    about = _read_review_file(folder)
    return ReviewFolder(folder, tuple(about["classes"]), about["data"])


def create_random_review(data: Dataset, split: str, images: int, seed: int, out: Path) -> ReviewFolder:
    """Draw random images and make every unknown label of each a candidate, so that a small set can be fully labeled.

    The same call again opens the folder with its decisions; another call for the same folder is an error.

    Args:
        data: loaded by name, so that it can be loaded again.
        split: to draw from.
        images: how many; all when there are fewer.
        seed: of the draw.
        out: the folder; created when it does not exist.
    """
    source = data.split(split)
    if isinstance(source.images, FeatureVectors):
        raise InputError(f"{data.name} has feature vectors and no images: there is nothing to look at.")
    if images < 1:
        raise InputError(f"--random {images}: at least one image is needed.")
    if not data.recipe:
        raise InputError(f"{data.name} was not loaded by name, so a review cannot load it again.")
    about = {"format": FORMAT, "data": dict(data.recipe), "classes": list(data.classes), "split": split}
    about |= {"images": images, "seed": seed}
    if (out / REVIEW_FILE).exists():
        if _read_review_file(out) != json.loads(json.dumps(about)):
            raise RunError(f"{out} already holds another review. Choose another folder with --out.")
        return open_review_folder(out)
    rows = numpy_generator(seed, "review").permutation(len(source))[:images]
    candidates = _unknown_labels(source.labels, rows)
    if not len(candidates.rows):
        raise InputError(f"every label of these {len(rows):,} images of {split} is known: there is nothing to review.")
    unknown = source.labels.counts().unknown
    metadata = {
        "format": FORMAT,
        "runs": [],
        "data": dict(data.recipe),
        "unknown_total": int(unknown.sum()),
        "unknown_per_class": dict(zip(data.classes, unknown.tolist(), strict=True)),
        "method": "random images",
    }
    write_candidates(out / CANDIDATES, {"random": candidates}, {split: source.labels}, metadata)
    write_json(out / REVIEW_FILE, about)
    return open_review_folder(out)


def _unknown_labels(labels: LabelTable, rows: NDArray[np.int64]) -> CandidateList:
    """Return every unknown label of some images as candidates, in the order of the images."""
    position, columns = np.nonzero(labels.batch(rows).numpy() == UNKNOWN)
    return CandidateList.of_unknown(rows[position], columns, np.full(len(columns), np.nan, dtype=np.float32))


def _read_review_file(folder: Path) -> dict[str, Any]:
    path = folder / REVIEW_FILE
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        version = about["format"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is damaged ({error}).") from None
    if version != FORMAT:
        raise RunError(f"{path} has format {version}; this version of labelgap reads format {FORMAT}.")
    return dict(about)
