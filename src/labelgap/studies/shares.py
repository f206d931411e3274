"""Methods on shares of the training images: what fewer images cost (Kim et al., CVPR 2022, figure 6).

The images of a smaller share are among those of a larger one with the same seed, with the same observed labels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from labelgap.core.errors import InputError
from labelgap.core.files import write_text
from labelgap.data.dataset import Dataset
from labelgap.studies.compare.results import Comparison, ComparisonMetric, MethodName, Rule, SkippedMethod, has_heads
from labelgap.studies.compare.runner import compare
from labelgap.studies.compare.settings import CompareSettings, check_settings
from labelgap.studies.study import Count, Document, Seconds, Share, Stored, Text, csv_cell, csv_text, study_folder
from labelgap.training.progress import Reporter

FILES: Final = ("shares.json", "shares.csv")
POINTS_FOLDER: Final = "points"
SHARES: Final = tuple(number / 10 for number in range(1, 11))  # those of the paper


@dataclass(frozen=True)
class SharePoint(Stored):
    """A method with a share of the training images and a seed."""

    method: MethodName  # with the values of its variant
    share: Annotated[float, Field(gt=0, le=1)]  # of the training images
    seed: Count  # of the drawn images, the initial weights and, where they are drawn, the observed labels
    images: Count
    known_labels: Count  # training labels that it saw, present and absent
    value: Share | None  # of the metric; None where nothing can be measured
    score: Share | None  # of val in the selected epoch; None without val
    epoch: Count  # the selected one
    lr: Annotated[float, Field(gt=0)]  # the selected one
    extra_labels: bool  # whether it saw labels that were hidden from the others


@dataclass(frozen=True)
class ShareComparison(Document):
    """Methods on shares of the training images."""

    FILE = FILES[0]
    KIND = "a comparison of training shares"
    REMEDY = "Compare the methods again."

    data: Text  # its name
    images: Mapping[str, Count]  # in each split
    classes: Count
    backbone: Text  # of the features
    epochs: Count  # of every head
    observe: Mapping[str, Any] | None  # labels that were hidden first; None where the table was used as it is
    metric: ComparisonMetric
    rule: Rule  # that selected epochs and settings; see ``training.selection``
    points: Annotated[tuple[SharePoint, ...], Field(max_length=1_000_000)]  # in the order of shares and seeds
    skipped: tuple[SkippedMethod, ...] = ()  # methods that could not run with some share
    seconds: Seconds = 0.0  # of all training

    @property
    def methods(self) -> list[str]:
        """Names of the methods, the best with the largest share first, those that saw more labels last."""
        most = max((point.share for point in self.points), default=1.0)
        rows: dict[str, list[float]] = {}
        for point in self.points:
            rows.setdefault(point.method, []).extend([point.value or 0.0] if point.share == most else [])
        extra = {point.method: point.extra_labels for point in self.points}
        return sorted(rows, key=lambda name: (extra[name], -sum(rows[name])))

    def check(self) -> None:
        """Refuse a point that is there twice."""
        names = [(point.method, point.share, point.seed) for point in self.points]
        if len(set(names)) < len(names):
            raise ValueError("a point is there twice")

    def write(self) -> None:
        """Write ``shares.json``, ``shares.csv`` and the manifest."""
        names = [each.name for each in fields(SharePoint)]
        rows = [[csv_cell(getattr(point, name)) for name in names] for point in self.points]
        with self.writing(FILES[1:]):
            write_text(self.path / FILES[1], csv_text(names, rows))


def compare_shares(
    data: Dataset,
    methods: str | Iterable[str] = "short",
    *,
    shares: Sequence[float] = SHARES,
    out: str | os.PathLike[str] = "runs/shares",
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> ShareComparison:
    """Compare methods on shares of the training images, drawn by the seed; see ``compare`` for the other arguments."""
    methods = methods if isinstance(methods, str) else list(methods)
    chosen = check_settings(methods, settings)
    wanted, folder, reporter = check_shares(shares), Path(out), Reporter(quiet)
    execution: dict[str, Any] = {"device": device, "workers": workers, "reporter": reporter}
    points: dict[tuple[float, int], Comparison] = {}
    with (
        study_folder(folder, "comparing training shares", ShareComparison.KIND, (FILES[0], POINTS_FOLDER)),
        reporter.resumable(partial(has_heads, folder)),
        reporter.bar("shares", len(wanted) * chosen.seeds),
    ):
        for share in wanted:
            for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
                drawn = _draw(data, share, seed, chosen)
                given = {**settings, "observe": None, "label_seed": chosen.label_seed + seed}
                given |= {"seeds": 1, "first_seed": seed}
                place = folder / POINTS_FOLDER / f"{share:g}-{seed}"
                part = f"{100 * share:g} % of the images, seed {seed}"
                reporter.advance(0, part.__str__)
                with reporter.muted():
                    points[share, seed] = found = compare(drawn, methods, out=place, **execution, **given)
                reporter.advance()
                if not reporter.draws_bars:
                    means = ", ".join(
                        f"{row.name} {100 * row.mean:.1f}" for row in found.methods if row.mean is not None
                    )
                    reporter.log(f"{part}: {means or 'nothing to measure'}")
        compared = list(points.values())
        made = ShareComparison(
            folder,
            data.name,
            {split.name: len(split) for split in data.splits},
            len(data.classes),
            str(compared[0].metadata["backbone"]),
            chosen.adam_epochs,
            chosen.observe,
            compared[0].metric,
            compared[0].rule,
            tuple(point for key, found in points.items() for point in _points(*key, found)),
            tuple(dict.fromkeys(each for found in compared for each in found.skipped)),
            sum(found.seconds for found in compared),
        )
        made.write()
    return made


def check_shares(shares: Sequence[float]) -> list[float]:
    """Return the shares in increasing order; ``InputError`` where one is none."""
    if not shares or any(not 0 < share <= 1 for share in shares):
        shown = ",".join(f"{share:g}" for share in shares)
        raise InputError(f"--train-share {shown}: give shares above 0 and at most 1, e.g. --train-share 0.1,0.5,1")
    return sorted(set(map(float, shares)))


def _draw(data: Dataset, share: float, seed: int, settings: CompareSettings) -> Dataset:
    """Return the data with a share of the training images, in their order; the labels are drawn before the images."""
    if settings.observe is not None:
        data = data.observe(**settings.observe, seed=settings.label_seed + seed)
    return data if share == 1 else replace(data.sample(share, seed), name=f"{100 * share:g} % of {data.name}")


def _points(share: float, seed: int, found: Comparison) -> Iterator[SharePoint]:
    images = found.metadata["images"]["train"]
    for row in found.methods:
        one = row.seeds[0]
        about = (images, one.known_labels or 0, one.value, one.score, one.epoch, row.lr, row.extra_labels)
        yield SharePoint(row.name, share, seed, *about)
