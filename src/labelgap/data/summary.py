"""The summary of a data set: how many labels of each state, what looks wrong, what these labels allow."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from labelgap.core.findings import Finding
from labelgap.core.text import plural, pluralize
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FeatureVectors
from labelgap.labels import PRESENT
from labelgap.metrics.validation import supports_accuracy

_PURPOSES = {"val": "choose epochs and thresholds by accuracy", "test": "measure accuracy"}
_FEW_CLASSES = "choose thresholds by accuracy"
_RANDOM_SAMPLE = 300
_STATES: Final = ("present", "absent", "unknown")


def measurable_classes(split: Split) -> NDArray[np.bool_]:
    """Return ``(K,)``: whether the known labels of a class support an accuracy; the truth counts where there is one."""
    counts = split.evaluation_labels.counts()
    return supports_accuracy(counts.present, counts.absent, len(split))


def describe_capabilities(
    data: Dataset, words: tuple[str, str] = ("image", "class")
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what can and what cannot be done with these labels; ``words`` are the owner's for image and class."""
    image, tag = words
    can, cannot = [], []
    present, _, unknown = data.train.labels.counts().total
    if not present and data.prior is not None:
        can.append(f"train on what the prior says: no {tag} is known to be present in a train {image}")
    elif not present:
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


OWN_FORMATS: Final = ("csv", "parquet", "folder")
"""Formats of people's own data: they speak of photos and tags, researchers of images and classes."""


RARE_BELOW: Final = 10  # a class with fewer known positives is called rare: little can be learned of it


@dataclass(frozen=True)
class SplitSummary:
    """Numbers of images, of labels of each state, and of classes with a measurable accuracy, in one split or all."""

    images: int
    present: int
    absent: int
    unknown: int
    measurable: int


@dataclass(frozen=True)
class ClassSummary:
    """Labels of each state of a class over all splits, and those of val and test on which it can be measured."""

    name: str
    present: int
    absent: int
    unknown: int
    present_in_train: int
    measurable: tuple[str, ...]


@dataclass(frozen=True)
class LabelWarning:
    """Something that looks wrong with ``count`` images or classes; the sentence leaves out the names of classes."""

    kind: Literal["never_present", "few_present", "not_in_train", "no_label"]
    noun: str
    count: int
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        things = pluralize(self.count, self.noun)
        return {
            "never_present": f"{things} never known to be present",
            "few_present": f"{things} with fewer than {RARE_BELOW} known positives",
            "not_in_train": f"{things} present in val or test but never in train",
            "no_label": f"{things} with no label at all",
        }[self.kind]


@dataclass(frozen=True)
class DatasetSummary:
    """What ``labelgap inspect`` says, in the words of the owner ("photo" and "tag" …), and the command that trains."""

    name: str
    image_word: str
    class_word: str
    whole: SplitSummary
    splits: Mapping[str, SplitSummary]
    classes: tuple[ClassSummary, ...]
    present_per_image: float
    most_present: int
    findings: tuple[Finding, ...]
    warnings: tuple[LabelWarning, ...]
    note: str
    can: tuple[str, ...]
    cannot: tuple[str, ...]
    next: str

    @property
    def class_words(self) -> str:
        """The plural of ``class_word``."""
        return plural(self.class_word)

    def rarest(self, count: int = 3) -> list[ClassSummary]:
        """Return the classes with the fewest known positives, at least one, the rarest first."""
        found = [row for row in self.classes if row.present]
        return sorted(found, key=lambda row: row.present)[:count]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values, ready for ``json.dumps``."""
        findings = [finding.to_json() for finding in self.findings]
        warnings = [{**asdict(warning), "text": str(warning)} for warning in self.warnings]
        return {"format": 1, **asdict(self), "findings": findings, "warnings": warnings}


def summarize(data: Dataset, typed: str | None = None) -> DatasetSummary:
    """Count labels, and derive what the counts allow.

    Args:
        data: counts are of the observed labels; what can be measured follows from the truth, where there is one.
        typed: DATA as it was typed, with its options, for the next command; the path when not given.

    Example:
        >>> from labelgap.data import load
        >>> summary = summarize(load("digits", train=100, val=20, test=20))
        >>> summary.splits["train"].present, summary.splits["train"].unknown, summary.next
        (100, 900, 'labelgap train digits --out runs/first')
    """
    own = data.recipe.get("name") in OWN_FORMATS
    image = "row" if isinstance(data.train.images, FeatureVectors) else "image"
    words = ("photo", "tag") if own else (image, "class")
    tables = {split.name: split.labels for split in data.splits}
    present = [np.bincount(table.rows[table.values == PRESENT], minlength=len(table)) for table in tables.values()]
    per_image = np.concatenate(present)
    flags = {split.name: measurable_classes(split) for split in data.splits}
    counts = {name: table.counts() for name, table in tables.items()}
    splits = {name: SplitSummary(len(tables[name]), *counts[name].total, int(flags[name].sum())) for name in tables}
    states = [np.sum([getattr(count, state) for count in counts.values()], axis=0) for state in _STATES]
    columns = zip(data.classes, *(state.tolist() for state in (*states, counts["train"].present)), strict=True)
    classes = tuple(
        ClassSummary(
            name,
            yes,
            no,
            blank,
            trained,
            tuple(split for split in flags if split != "train" and flags[split][number]),
        )
        for number, (name, yes, no, blank, trained) in enumerate(columns)
    )
    yes, no, blank = (int(state.sum()) for state in states)
    whole = SplitSummary(len(per_image), yes, no, blank, sum(bool(row.measurable) for row in classes))
    can, cannot = describe_capabilities(data, words)
    zeros = data.recipe.get("name") in ("csv", "parquet") and "unlisted" not in data.recipe.get("options", {})
    hint = "; if 0 only means 'not tagged', add --zeros unknown" if zeros and no else ""
    return DatasetSummary(
        name=data.name,
        image_word=words[0],
        class_word=words[1],
        whole=whole,
        splits=splits,
        classes=classes,
        present_per_image=float(per_image.mean()) if len(per_image) else 0.0,
        most_present=int(per_image.max(initial=0)),
        findings=data.findings,
        warnings=tuple(_warnings(data, classes, *words)),
        note="" if blank else f"every label is known, nothing is missing here{hint}",
        can=can,
        cannot=cannot,
        next=_command(data, typed) if splits["train"].present or data.prior is not None else "",
    )


def _warnings(
    data: Dataset, classes: Sequence[ClassSummary], image_word: str, class_word: str
) -> Iterator[LabelWarning]:
    affected: dict[Any, list[str]] = {
        "never_present": [each.name for each in classes if not each.present],
        "few_present": [each.name for each in classes if 0 < each.present < RARE_BELOW],
        "not_in_train": [each.name for each in classes if each.present and not each.present_in_train],
    }
    for kind, names in affected.items():
        if names:
            yield LabelWarning(kind, class_word, len(names), tuple(names))
    if unlabeled := sum(int((np.diff(split.labels.starts) == 0).sum()) for split in data.splits):
        yield LabelWarning("no_label", image_word, unlabeled)


def _command(data: Dataset, typed: str | None) -> str:
    """Return what trains on these data: a command, or the call for data made by hand."""
    recipe = data.recipe
    if not recipe and typed is None:
        return "labelgap.fit(data, out='runs/first')"
    if typed is None:
        typed = shlex.quote(recipe["path"] or recipe["name"])
        images = recipe["options"].get("images")
        typed += f" --images {shlex.quote(str(images))}" if images is not None else ""
    return f"labelgap train {typed} --out runs/first"
