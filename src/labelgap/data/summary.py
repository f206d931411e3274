"""What was understood of a data set: how many labels of each state, what looks wrong, what these labels allow.

Nothing here is guessed: a class can be measured on a split only where at least one known present and one known absent
label of it are there (the rule of ``labelgap.metrics``), and what the labels do not support is said, with the way out.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from labelgap.data.capabilities import count_noun, describe_capabilities, measurable_classes, plural
from labelgap.data.dataset import Dataset, Split
from labelgap.labels import ABSENT, PRESENT, LabelTable

__all__ = ["ClassSummary", "DatasetSummary", "Finding", "RARE_BELOW", "SplitSummary", "summarize"]

RARE_BELOW: Final = 10
"""A class with fewer known positives is called rare: little can be learned of it."""

_OWN: Final = ("csv", "parquet", "folder")
"""Data that people bring themselves: they have photos and tags, where researchers have images and classes."""


@dataclass(frozen=True)
class SplitSummary:
    """Labels of one split, or of all together.

    Attributes:
        images: how many.
        present: known to be there.
        absent: known not to be there.
        unknown: nobody said.
        measurable: classes with a known present and a known absent, so that accuracy can be measured.
    """

    images: int
    present: int
    absent: int
    unknown: int
    measurable: int


@dataclass(frozen=True)
class ClassSummary:
    """Labels of one class over all splits.

    Attributes:
        name: of the class.
        present: images known to have it.
        absent: images known not to have it.
        unknown: images of which nobody said.
        present_in_train: images to learn it from.
        measurable: the splits among val and test on which its accuracy can be measured.
    """

    name: str
    present: int
    absent: int
    unknown: int
    present_in_train: int
    measurable: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """Something that looks wrong.

    Attributes:
        kind: a word for machines.
        text: a sentence for people.
        names: the classes it is about, if it is about classes.
    """

    kind: str
    text: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class DatasetSummary:
    """What ``labelgap inspect`` says.

    Attributes:
        name: of the data.
        image_word: "photo" or "image", whichever its owner would say.
        class_word: "tag" or "class".
        whole: labels of all splits together.
        splits: labels of each split.
        classes: labels of each class, in the order of the columns.
        present_per_image: how many classes are known to be in an image, on average.
        most_present: how many in the image that has the most.
        rules: in words, how labels and splits were read.
        findings: what looks wrong.
        can: what these labels allow.
        cannot: what they do not, and why.
        next: the command to go on with; empty where there is nothing to learn from.
    """

    name: str
    image_word: str
    class_word: str
    whole: SplitSummary
    splits: Mapping[str, SplitSummary]
    classes: tuple[ClassSummary, ...]
    present_per_image: float
    most_present: int
    rules: tuple[str, ...]
    findings: tuple[Finding, ...]
    can: tuple[str, ...]
    cannot: tuple[str, ...]
    next: str

    @property
    def class_words(self) -> str:
        """More than one tag or class."""
        return plural(self.class_word)

    def rarest(self, count: int = 3) -> list[ClassSummary]:
        """Return the classes with the fewest known positives, at least one, the rarest first."""
        found = [row for row in self.classes if row.present]
        return sorted(found, key=lambda row: row.present)[:count]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values, ready for ``json.dumps``."""
        return {"format": 1, **asdict(self)}


def summarize(data: Dataset, typed: str | None = None) -> DatasetSummary:
    """Count, and say what the numbers allow.

    Args:
        data: as it was loaded. Counts are of the observed labels; what can be measured goes by the truth, where a
            data set has one.
        typed: what the person wrote for DATA, options included, to go into the next command; the path when not given.

    Example:
        >>> from labelgap.data import load
        >>> summary = summarize(load("digits", train=100, val=20, test=20))
        >>> summary.splits["train"].present, summary.splits["train"].unknown, summary.next
        (100, 900, 'labelgap train digits --out runs/first')
    """
    own = data.recipe.get("name") in _OWN
    words = ("photo", "tag") if own else ("image", "class")
    tables = [split.labels for split in data.splits]
    classes = _classes(data)
    per_image = np.concatenate([_present_per_row(table) for table in tables])
    splits = {split.name: _split_summary(split) for split in data.splits}
    whole = _whole(splits, classes)
    can, cannot = describe_capabilities(data, words)
    return DatasetSummary(
        name=data.name,
        image_word=words[0],
        class_word=words[1],
        whole=whole,
        splits=splits,
        classes=classes,
        present_per_image=float(per_image.mean()) if len(per_image) else 0.0,
        most_present=int(per_image.max(initial=0)),
        rules=data.rules,
        findings=tuple(_findings(data, whole, classes, words)),
        can=can,
        cannot=cannot,
        next=_command(data, typed) if splits["train"].present else "",
    )


def _split_summary(split: Split) -> SplitSummary:
    present, absent, unknown = split.labels.counts().total
    return SplitSummary(len(split), present, absent, unknown, int(measurable_classes(split).sum()))


def _whole(splits: Mapping[str, SplitSummary], classes: tuple[ClassSummary, ...]) -> SplitSummary:
    measurable = sum(bool(row.measurable) for row in classes)
    images, present, absent, unknown = (
        sum(getattr(split, name) for split in splits.values()) for name in ("images", "present", "absent", "unknown")
    )
    return SplitSummary(images, present, absent, unknown, measurable)


def _classes(data: Dataset) -> tuple[ClassSummary, ...]:
    counts = [split.labels.counts() for split in data.splits]
    present, absent, unknown = (
        np.sum([getattr(count, state) for count in counts], axis=0).tolist()
        for state in ("present", "absent", "unknown")
    )
    in_train = counts[0].present.tolist()
    flags = {split.name: measurable_classes(split) for split in data.splits if split.name != "train"}
    return tuple(
        ClassSummary(
            name, present[k], absent[k], unknown[k], in_train[k], tuple(split for split in flags if flags[split][k])
        )
        for k, name in enumerate(data.classes)
    )


def _present_per_row(table: LabelTable) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.bincount(table.rows[table.values == PRESENT], minlength=len(table))


def _findings(
    data: Dataset, whole: SplitSummary, classes: tuple[ClassSummary, ...], words: tuple[str, str]
) -> list[Finding]:
    image, tag = words
    found = []
    never = tuple(row.name for row in classes if not row.present)
    if never:
        found.append(Finding("never_present", f"{count_noun(len(never), tag)} never known to be present", never))
    few = tuple(row.name for row in classes if 0 < row.present < RARE_BELOW)
    if few:
        found.append(
            Finding("few_present", f"{count_noun(len(few), tag)} with fewer than {RARE_BELOW} known positives", few)
        )
    unseen = tuple(row.name for row in classes if row.present and not row.present_in_train)
    if unseen:
        found.append(
            Finding("not_in_train", f"{count_noun(len(unseen), tag)} present in val or test but never in train", unseen)
        )
    bare = sum(int((np.diff(split.labels.starts) == 0).sum()) for split in data.splits)
    if bare:
        found.append(Finding("no_label", f"{count_noun(bare, image)} with no label at all"))
    if not whole.unknown:
        hint = "; if 0 only means 'not tagged', add --zeros unknown" if _has_zeros(data) else ""
        found.append(Finding("all_known", f"every label is known, nothing is missing here{hint}"))
    return found


def _has_zeros(data: Dataset) -> bool:
    """Whether the data are a table in which a 0 may have been written for want of a better word."""
    options = data.recipe.get("options", {})
    absent = any((split.labels.values == ABSENT).any() for split in data.splits)
    return data.recipe.get("name") in ("csv", "parquet") and absent and "unlisted" not in options


def _command(data: Dataset, typed: str | None) -> str:
    """Return what trains on these data: a command as a person would type it, or the call for data made by hand."""
    recipe = data.recipe
    if not recipe and typed is None:
        return "labelgap.fit(data, out='runs/first')"
    if typed is None:
        typed = shlex.quote(recipe["path"] or recipe["name"])
        images = recipe["options"].get("images")
        typed += f" --images {shlex.quote(str(images))}" if images is not None else ""
    return f"labelgap train {typed} --out runs/first"
