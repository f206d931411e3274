"""Folders that can be reviewed: an audited run, the audit of several runs, or random images, which need no run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.audit.candidates import (
    FORMAT,
    REVIEW_FILE,
    CandidateList,
    describe_review,
    read_candidates,
    read_metadata,
    read_review_file,
    write_candidates,
    write_review_file,
)
from labelgap.core.errors import InputError, RunError
from labelgap.core.seeds import numpy_generator
from labelgap.data.dataset import Dataset
from labelgap.data.images import FeatureVectors
from labelgap.data.registry import load_moved, load_stored
from labelgap.data.split import hold_out_val
from labelgap.labels.codes import UNKNOWN
from labelgap.review.store import read_decisions
from labelgap.training import Run, open_run
from labelgap.training.config import CONFIG_FILE as CONFIG
from labelgap.training.rerun import review_split


@dataclass(frozen=True, eq=False)
class ReviewFolder:
    """A folder with candidates and decisions."""

    path: Path
    classes: tuple[str, ...]  # their names in order
    recipe: Mapping[str, Any]  # how to load the data
    run: Run | None = None  # None for random images and for an audit of several runs
    random: bool = False  # whether the candidates are all unknown labels of random images
    source: str | None = None  # where the user says that the data are; None to load them from where the recipe says
    # with which the user wants the data to be read, instead of those of the recipe
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def data(self) -> Dataset:
        """The data, loaded again; what a folder of somebody else names is not opened unless the user trusts it."""
        if self.source is not None:
            data = load_moved(self.recipe, self.source, **self.options)
        elif self.run is not None:
            data = self.run.load_data()
        else:
            data = load_stored(self.path / REVIEW_FILE, self.recipe)
        data = hold_out_val(data) if self._has_held_out_val() else data
        if data.classes != self.classes:
            raise RunError(f"{data.name} does not have the classes that {self.path} was made with.")
        return data

    def _has_held_out_val(self) -> bool:
        """Return whether networks were trained, for which a part of train was held out where there was no val."""
        if self.run is not None:
            return self.run.config.protocol != "linear"
        file = self.path / CANDIDATES
        return not self.random and file.is_file() and "val" in (read_metadata(file).get("splits") or ())


def is_review_folder(path: Path) -> bool:
    """Whether a path is a run, an audit or a review of random images."""
    return (path / CONFIG).is_file() or (path / REVIEW_FILE).is_file()


def open_review_folder(path: str | os.PathLike[str], source: str | None = None, **options: Any) -> ReviewFolder:
    """Open a run, an audit of several runs, or a review of random images; ``source`` says where its data are now."""
    folder = Path(path)
    if (folder / CONFIG).is_file() or not (folder / REVIEW_FILE).is_file():
        run = open_run(folder)
        return ReviewFolder(folder, run.config.classes, run.config.data, run, False, source, options)
    about = read_review_file(folder)
    return ReviewFolder(folder, tuple(about.classes), about.data, None, about.images is not None, source, options)


def check_review(folder: Path) -> None:
    """Check the files of a review, where there are any; a ``RunError`` says which is damaged or not ours."""
    if (folder / REVIEW_FILE).exists():
        read_review_file(folder)
    read_decisions(folder)


def default_split(data: Dataset) -> str:
    """Return the name of the split whose random images are reviewed by default."""
    return review_split(data).name


def create_random_review(data: Dataset, split: str, images: int, seed: int, out: Path) -> ReviewFolder:
    """Draw random images and make every unknown label of each a candidate, so that a small set is fully labeled.

    The same call again opens the folder with its decisions; another call for the same folder is an error.
    """
    source = data.split(split)
    if isinstance(source.images, FeatureVectors):
        raise InputError(f"{data.name} has feature vectors and no images: there is nothing to look at.")
    if images < 1:
        raise InputError(f"--random {images}: at least one image is needed.")
    if not data.recipe:
        raise InputError(f"{data.name} was not loaded by name, so a review cannot load it again.")
    draw: dict[str, Any] = {"split": split, "images": images, "seed": seed, "of": len(source)}
    about = describe_review(out, data.recipe, data.classes, **draw)
    if (out / REVIEW_FILE).exists():
        if (other := read_review_file(out)).model_copy(update={"of": about.of}) != about:
            drawn = "" if other.images is None else f", of {other.images:,} random images of {other.split}"
            raise RunError(
                f"{out} already holds another review{drawn}: `labelgap review {out}` continues it. Choose "
                "another folder with --out for a new one."
            )
        return open_review_folder(out)
    rows = _draw(len(source), images, seed)
    position, columns = np.nonzero(source.labels.batch(rows).numpy() == UNKNOWN)  # in the order of the images
    scores = np.full(len(columns), np.nan, dtype=np.float32)
    candidates = CandidateList.of_unknown(rows[position], columns, scores)
    if not len(candidates.rows):
        raise InputError(f"every label of these {len(rows):,} images of {split} is known: there is nothing to review.")
    unknown = dict(zip(data.classes, source.labels.counts().unknown.tolist(), strict=True))
    metadata = {"format": FORMAT, "runs": [], "data": dict(data.recipe), "method": "random images"}
    metadata |= {"unknown_total": sum(unknown.values()), "unknown_per_class": unknown}
    write_candidates(out / CANDIDATES, {"random": candidates}, {split: source.labels}, metadata)
    write_review_file(out, about)
    return open_review_folder(out)


def drawn_rows(folder: ReviewFolder) -> NDArray[np.int64]:
    """Return the rows of the images that a review of random images drew; ``RunError`` where the data have changed."""
    about = read_review_file(folder.path)
    source = folder.data.split(about.split or "")
    rows = _draw(about.of or len(source), about.images or 0, about.seed or 0)
    asked = {*read_candidates(folder.path / CANDIDATES)["image"].to_pylist()}
    if not asked <= {source.labels.images[row] for row in rows.tolist()}:
        raise RunError(f"{source.name} of {folder.data.name} has changed since {folder.path} drew images from it.")
    return rows


def _draw(count: int, images: int, seed: int) -> NDArray[np.int64]:
    return numpy_generator(seed, "review").permutation(count)[:images]
