"""The commands that lead to an accuracy where the known labels support none: label random images, then measure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from labelgap.core.files import display_path
from labelgap.data.dataset import Dataset, Split
from labelgap.data.feature_vectors import FEATURES
from labelgap.training.config.rerun import data_arguments, strip_directories
from labelgap.training.config.schema import RunConfig

RANDOM_IMAGES: Final = 300
"""How many random images are labeled in full; the review takes all where there are fewer."""


def review_split(data: Dataset) -> Split:
    """Return the split whose random images are reviewed by default: val or test where labels are unknown, else train.

    Where all images are in train, cross-fitted models have scored each of them without its labels.
    """
    held_out = (split for split in (data.val, data.test) if split is not None and not split.labels.complete)
    return next(held_out, data.train)


def run_review_commands(
    folder: str | os.PathLike[str], config: RunConfig, data: Dataset | None = None, *, share: bool = False
) -> tuple[str, ...]:
    """Return the commands that measure a run on random images of its own data, quoted for a shell.

    Args:
        folder: of the run.
        config: of the run; feature vectors cannot be looked at, and data made by hand cannot be loaded again: there is
            no command for these.
        data: of the run, if they are loaded; where all their labels are known, there is no command either.
        share: whether an absolute path is cut to its last part.
    """
    complete = data is not None and all(split.labels.complete for split in data.splits)
    if not config.data or config.backbone == FEATURES or complete:
        return ()
    run = _run_argument(folder, share)
    images = RANDOM_IMAGES if data is None else min(RANDOM_IMAGES, len(review_split(data)))
    return (
        shlex.join(["labelgap", "review", run, "--random", str(images)]),
        shlex.join(["labelgap", "evaluate", run, f"{run}-review"]),
    )


def run_audit_commands(
    folder: str | os.PathLike[str], config: RunConfig, data: Dataset | None = None, *, share: bool = False
) -> tuple[str, ...]:
    """Return the commands that rank the labels of a run that are probably missing, and show them for a decision.

    The arguments are those of ``run_review_commands``, and there is no command where it has none.
    """
    if not run_review_commands(folder, config, data):
        return ()
    return tuple(shlex.join(["labelgap", command, _run_argument(folder, share)]) for command in ("audit", "review"))


def data_review_commands(
    folder: str | os.PathLike[str], data: Sequence[str], name: str, split: str | None
) -> tuple[str, ...]:
    """Return the commands that measure a run on random images of other data.

    Args:
        folder: of the run.
        data: DATA and its options, as arguments of the commands.
        name: of the data, for the folder of the review.
        split: to draw images of; None for the default of the review.
    """
    run = _argument(display_path(folder))
    review = f"{run}-{name}-review"
    drawn = ["--random", str(RANDOM_IMAGES), *([] if split is None else ["--split", split]), "--out", review]
    return (
        shlex.join(["labelgap", "review", *data, *drawn]),
        shlex.join(["labelgap", "evaluate", run, review]),
    )


def comparison_review_commands(
    folder: str | os.PathLike[str], recipe: Mapping[str, Any], *, share: bool = False
) -> tuple[str, ...]:
    """Return the commands that write a table on which the methods of a comparison have an accuracy.

    Args:
        folder: of the comparison.
        recipe: how its data were loaded.
        share: whether absolute paths are cut to their last part.
    """
    shown = strip_directories(dict(recipe)) if share else recipe
    data = data_arguments({**shown, "steps": []} if shown else shown)
    if data is None or recipe["name"] == FEATURES:
        return ()
    place = _argument(strip_directories(display_path(folder)) if share else display_path(folder))
    review = f"{place}-review"
    return (
        shlex.join(["labelgap", "review", *data, "--random", str(RANDOM_IMAGES), "--out", review]),
        shlex.join(["labelgap", "apply", review, "--out", f"{place}-better.csv"]),
    )


def _run_argument(folder: str | os.PathLike[str], share: bool) -> str:
    path = display_path(folder)
    return _argument(strip_directories(path) if share else path)


def _argument(path: str) -> str:
    """Return a path that no command takes for an option."""
    return f"./{path}" if path.startswith("-") else path
