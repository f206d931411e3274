"""Which training labels each method of a comparison sees.

All methods see the table as it is, or as ``observe`` hides it. Some cannot learn from that: they see what their paper
shows them, drawn from the truth, and are listed apart, since they see more than the others. Without a truth they are
skipped. Where ``observe`` has a rule for the present labels ("salient"), they see those labels and absent ones beside.

- `bce`, `bce-ls`: every known label.
- `iun`: one present and all absent labels of each image.
- `iu`, `curriculum`, `imcl`: the table, if it has known absents; else one present and one absent label of each image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable
from labelgap.labels.gaps import GAPS, check_draw
from labelgap.studies.compare.results import SkippedMethod

ALL_LABELS: Final = frozenset({"bce", "bce-ls"})
NEED_ABSENT: Final = frozenset({"iu", "curriculum", "imcl"})
CONTRAST: Final = frozenset({"two-way", "two-way-sample", "two-way-class"})

NO_FULL_LABELS: Final = "it learns from full labels, which are not known here; `iu` is the same on the known ones"
NO_TRUTH: Final = "its labels (1 present and all absent of each image) are drawn from a truth: there is none"
NO_ABSENT: Final = "no label is known to be absent, and it would call everything present"


@dataclass(frozen=True)
class LabelView:
    """The training labels that a method sees.

    Attributes:
        description: for the table.
        datasets: the data set with these labels, one for each seed; the same object where the seed changes nothing.
        label_seeds: the seed of each draw; None where nothing is drawn.
        extra_labels: whether the other methods see fewer labels.
        options: that the method needs to learn from these labels.
    """

    description: str
    datasets: tuple[Dataset, ...]
    label_seeds: tuple[int | None, ...]
    extra_labels: bool = False
    options: Mapping[str, Any] | None = None


class LabelViews:
    """The labels of a comparison, and other labels drawn from their truth.

    Args:
        data: the data set.
        seeds: how many.
        observe: labels to hide, as ``Dataset.observe`` takes it; None leaves the table as it is.
        label_seed: of the first draw; the next seed's is one more. Without ``observe`` the table is the same for all
            seeds, and so are the labels drawn beside it.
    """

    def __init__(self, data: Dataset, seeds: int, observe: Mapping[str, Any] | None, label_seed: int) -> None:
        self.data, self.seeds, self.observe, self.label_seed = data, seeds, observe, label_seed
        self._observe = cache(self._observe_once)

    @property
    def truth(self) -> LabelTable | None:
        """The table with more labels than are shown, if it has both states."""
        truth = self.data.train.truth if self.observe is None else self.data.train.evaluation_labels
        return truth if truth is not None and min(truth.counts().total[:2]) > 0 else None

    def observed(self) -> LabelView:
        """Return the table as it is, or as ``observe`` hides it."""
        if self.observe is None:
            labels = self.data.train.labels
            present, absent, _ = labels.counts().total
            description = "every label" if labels.complete else f"{present:,} present and {absent:,} absent labels"
            return LabelView(description, (self.data,) * self.seeds, (None,) * self.seeds)
        seeds = tuple(self.label_seed + seed for seed in range(self.seeds))
        datasets = tuple(self._observe(seed, **self.observe) for seed in seeds)
        return LabelView(describe_draw(**self.observe), datasets, seeds)

    def revealed(self) -> LabelView:
        """Return every known label."""
        data = self.data.reveal()
        data = replace(data, train=replace(data.train, truth=data.train.labels))
        description = "every label" if data.train.labels.complete else "all that is known"
        return LabelView(description, (data,) * self.seeds, (None,) * self.seeds, extra_labels=True)

    def drawn(self, positives: Any, negatives: Any) -> LabelView:
        """Return labels of each image, drawn from the truth with the table's own seeds, and by its rule if it has one.

        Args:
            positives: how many of each image, unless ``observe`` has a rule for them.
            negatives: how many of each image.
        """
        seeds = tuple(self.label_seed + (seed if self.observe is not None else 0) for seed in range(self.seeds))
        draw: dict[str, Any] = {"positives": positives, "negatives": negatives}
        if self.observe is not None and self.observe.get("positives") in GAPS:
            draw = {**self.observe, "negatives": negatives}
        datasets = tuple(self._observe(seed, **draw) for seed in seeds)
        return LabelView(describe_draw(**draw), datasets, seeds, extra_labels=True)

    def _observe_once(self, seed: int, **amounts: Any) -> Dataset:
        return self.data.observe(**amounts, seed=seed)


def label_view_for(method: str, views: LabelViews) -> LabelView | SkippedMethod:
    """Return the labels that a method sees, or why it cannot run."""
    view, truth = views.observed(), views.truth
    present, absent, unknown = view.datasets[0].train.labels.counts().total
    if method in ALL_LABELS and unknown:
        return SkippedMethod(method, NO_FULL_LABELS) if truth is None else views.revealed()
    if method == "iun":
        return SkippedMethod(method, NO_TRUTH) if truth is None else views.drawn(1, "all")
    if method in NEED_ABSENT and not absent:
        return SkippedMethod(method, NO_ABSENT) if truth is None else views.drawn(1, 1)
    if method in CONTRAST and not absent and present:
        return replace(view, options={"unknown": "negative"})
    return view


def describe_draw(positives: Any = 1, negatives: Any = 0, **options: Any) -> str:
    """Describe the labels that are drawn of each image.

    Example:
        >>> describe_draw(1, 0), describe_draw(1, "all")
        ('1 present label of each image', '1 present and all absent labels of each image')
        >>> describe_draw("random", 1, share=0.3)
        'random: 30 % of the present labels, all alike, and 1 absent label of each image'
    """
    if (gap := check_draw(positives, options)) is not None:
        absent = f", and {describe_draw(0, negatives)}" if negatives else ""
        return f"{gap.name}: {gap.description}{absent}"
    drawn = [(amount, state) for amount, state in ((positives, "present"), (negatives, "absent")) if amount != 0]
    if not drawn:
        return "no label"
    noun = "label" if drawn[-1][0] == 1 else "labels"
    return f"{' and '.join(f'{amount} {state}' for amount, state in drawn)} {noun} of each image"


def table_digest(table: LabelTable | None) -> str:
    """Return a short hash of the content of a table."""
    digest = hashlib.blake2b(digest_size=12)
    if table is not None:
        digest.update("\n".join([*table.classes, "", *table.images]).encode())
        for array in (table.starts, table.columns, table.values):
            digest.update(array.tobytes())
    return digest.hexdigest()
