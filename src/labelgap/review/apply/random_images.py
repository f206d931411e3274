"""The images of a random review with all that was decided about them: a fair sample to measure a model on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset, Split
from labelgap.review.apply.merging import merge_decisions, revise
from labelgap.review.candidates import Candidates
from labelgap.review.folder import ReviewFolder, drawn_rows
from labelgap.review.store import SOURCE, read_decisions


def decided_images(folder: ReviewFolder) -> Dataset:
    """Return the random images of a review with the labels that a fair sample has: those to measure a model on.

    An image counts once all its labels are decided or were known, and a class once it is decided for all images. Other
    known labels are left out: they are known because somebody chose to tag them.

    Raises:
        InputError: the images were not drawn at random, or nothing is decided in full yet.
    """
    if not folder.random:
        raise InputError(
            f"{folder.path} is not a review of random images, and labels that a model chose measure nothing. Random "
            f"ones: labelgap review {folder.path} --random 300"
        )
    decided = [each for each in read_decisions(folder.path) if each[1].class_name in folder.classes]
    data, _ = revise(folder.data, merge_decisions([folder], [decided])[0], [SOURCE])
    candidates = Candidates(folder.path / CANDIDATES, folder.classes)
    split = data.split(candidates.columns.images[0][0])
    rows = drawn_rows(folder)
    place = {split.labels.images[row]: number for number, row in enumerate(rows.tolist())}
    answered = {(revision.image, revision.class_name) for _, revision in decided}
    waiting = np.zeros((len(rows), len(data.classes)), dtype=np.bool_)
    for number in range(len(candidates)):
        key = candidates.key(number)
        if key.image in place and (key.image, key.class_name) not in answered:
            waiting[place[key.image], candidates.columns.class_number[number]] = True
    images, classes = np.asarray(~waiting.any(axis=1)), np.asarray(~waiting.any(axis=0))
    if not images.any() and not classes.any():
        raise InputError(
            f"{folder.path}: of {len(rows):,} random images none has all its labels decided yet, and no class is "
            f"decided for all of them: labelgap review {folder.path}"
        )
    labels = split.labels.select(rows)
    labels = labels.keep(images[labels.rows] | classes[labels.columns])
    kept = np.flatnonzero(images | classes.any())
    measured = Split(split.name, split.images.select(rows[kept]), labels.select(kept))
    return replace(data, train=measured, val=None, test=None)
