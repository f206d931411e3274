"""What the labels of a data set allow and what they do not, with the remedy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelgap.core.text import plural
from labelgap.data.dataset import Dataset, Split
from labelgap.metrics.validation import supports_accuracy

_PURPOSES = {"val": "choose epochs and thresholds by accuracy", "test": "measure accuracy"}
_FEW_CLASSES = "choose thresholds by accuracy"
_RANDOM_SAMPLE = 300


def measurable_classes(split: Split) -> NDArray[np.bool_]:
    """Return ``(K,)``: whether the known labels of a class support an accuracy, as a training counts it.

    The truth counts where a split has one.
    """
    counts = split.evaluation_labels.counts()
    return supports_accuracy(counts.present, counts.absent, len(split))


def describe_capabilities(
    data: Dataset, words: tuple[str, str] = ("image", "class")
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what can and what cannot be done with these labels; ``words`` are the owner's for image and class."""
    image, tag = words
    can, cannot = [], []
    present, _, unknown = data.train.labels.counts().total
    if not present:
        cannot.append(f"train: no {tag} is known to be present in a train {image}")
    else:
        can.append("train and rank missing labels now" if unknown else "train now; no label is missing in train")
    splits = {split.name: split for split in data.splits}
    wanting = []
    folds = {"train": "measure accuracy"} if data.val is None else {}
    needed = {name: purpose for name, purpose in _PURPOSES.items() if not folds or name in splits}
    for name, purpose in {**folds, **needed}.items():
        if name not in splits:
            cannot.append(f"{purpose}: there is no {name} split")
            continue
        counted, every = int(measurable_classes(splits[name]).sum()), len(data.classes)
        if counted:
            which = f"all {every:,}" if counted == every else f"{counted:,} of {every:,}"
            too_few = name == "val" and 2 * counted < every
            can.append(f"{_FEW_CLASSES if too_few else purpose} on {_place(name)}, over {which} {plural(tag)}")
            if too_few:
                cannot.append(
                    f"choose epochs by accuracy: that takes half of the {plural(tag)}; the observed ranking will do"
                )
        if counted < every:
            cannot.append(_lacking(splits[name], purpose, tag))
            if splits[name].evaluation_labels.counts().unknown.any():
                wanting.append(splits[name])
    if wanting:
        names, few = " and ".join(split.name for split in wanting), min(_RANDOM_SAMPLE, *map(len, wanting))
        each = " each" if len(wanting) > 1 else ""
        names = "" if names == "train" else f"{names} "
        cannot[-1] += f"; to change that, label {few:,} random {names}{image}s{each} in full"
    return tuple(can), tuple(cannot)


def _place(split: str) -> str:
    return "train, out of fold" if split == "train" else split


def _lacking(split: Split, purpose: str, tag: str) -> str:
    """Say how many classes cannot be measured, and which state they lack."""
    counts = split.evaluation_labels.counts()
    lacking = ~measurable_classes(split)
    states = [name for name in ("present", "absent") if (getattr(counts, name)[lacking] == 0).all()]
    few = bool(((counts.present > 0) & (counts.absent > 0))[lacking].any())
    lack = f"lack a known present or {'enough known absents' if few else 'a known absent'}"
    if states:
        lack = f"have no known {' and no known '.join(states)}"
    missing, every = int(lacking.sum()), len(lacking)
    start = f"{purpose} on {_place(split.name)}"
    start = start if missing == every else f"{purpose} of the others on {_place(split.name)}"
    return f"{start}: {missing:,} of {every:,} {plural(tag)} {lack} there"
