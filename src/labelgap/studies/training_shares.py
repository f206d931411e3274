"""Methods on shares of the training images: what fewer images cost (Kim et al., CVPR 2022, figure 6).

For each share and seed, training images are drawn at random and the methods compared on them by ``compare``. The images
of a smaller share are among those of a larger one with the same seed, with the same observed labels. Val and test stay
whole. ``shares.json`` holds every point, ``shares.csv`` the same as a table, ``points/`` the comparisons.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, Field, model_validator

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import write_json, write_text
from labelgap.core.lock import LOCK_FILE, lock_folder
from labelgap.core.seeds import numpy_generator
from labelgap.core.trust import refuse_links
from labelgap.data.dataset import Dataset
from labelgap.studies.compare.comparison import Comparison, has_heads
from labelgap.studies.compare.results import (
    STRICT,
    ComparisonMetric,
    Count,
    MethodName,
    MethodResult,
    Seconds,
    Share,
    SkippedMethod,
    Text,
)
from labelgap.studies.compare.runner import compare
from labelgap.studies.compare.settings import CompareSettings, check_settings
from labelgap.studies.result_files import csv_text, read_result, writing_results
from labelgap.training.progress import Reporter

FORMAT: Final = 1
FILES: Final = ("shares.json", "shares.csv")
POINTS_FOLDER: Final = "points"
SHARES: Final = tuple(number / 10 for number in range(1, 11))
"""Those of the paper."""


@dataclass(frozen=True)
class SharePoint:
    """A method with a share of the training images and a seed.

    Attributes:
        method: its name, with the values of its variant.
        share: of the training images, above 0, at most 1.
        seed: of the drawn images, the initial weights and, where they are drawn, the observed labels.
        images: how many.
        known_labels: training labels that it saw, present and absent.
        value: of the metric; None where nothing can be measured.
        score: of val in the selected epoch; None without val.
        epoch: the selected one.
        lr: the selected learning rate.
        extra_labels: whether it saw labels that were hidden from the others.
    """

    __pydantic_config__ = STRICT

    method: MethodName
    share: Annotated[float, Field(gt=0, le=1)]
    seed: Count
    images: Count
    known_labels: Count
    value: Share | None
    score: Share | None
    epoch: Count
    lr: Annotated[float, Field(gt=0)]
    extra_labels: bool


@dataclass(frozen=True)
class ShareComparison:
    """Methods on shares of the training images.

    Attributes:
        path: the folder.
        data: name of the data set.
        images: number of images in each split.
        classes: how many.
        backbone: of the features.
        epochs: of every head.
        observe: labels that were hidden first; None where the table was used as it is.
        metric: that is measured; see ``ComparisonMetric``.
        rule: that selected epochs and settings; see ``training.selection``.
        points: in the order of shares and seeds.
        skipped: methods that could not run with some share.
        seconds: of all training.
    """

    path: Path
    data: str
    images: Mapping[str, int]
    classes: int
    backbone: str
    epochs: int
    observe: Mapping[str, Any] | None
    metric: ComparisonMetric
    rule: str
    points: tuple[SharePoint, ...]
    skipped: tuple[SkippedMethod, ...] = ()
    seconds: float = 0.0

    @property
    def methods(self) -> list[str]:
        """Names of the methods, the best with the largest share first, those that saw more labels last."""
        most = max((point.share for point in self.points), default=1.0)
        rows: dict[str, list[float]] = {}
        for point in self.points:
            rows.setdefault(point.method, []).extend([point.value or 0.0] if point.share == most else [])
        extra = {point.method: point.extra_labels for point in self.points}
        return sorted(rows, key=lambda name: (extra[name], -sum(rows[name])))

    def write(self) -> None:
        """Write ``shares.json``, ``shares.csv`` and the manifest."""
        stored = asdict(self)
        del stored["path"]
        names = [each.name for each in fields(SharePoint)]
        rows = [[_cell(getattr(point, name)) for name in names] for point in self.points]
        with writing_results(self.path, FILES):
            write_json(self.path / FILES[0], {"format": FORMAT, **stored})
            write_text(self.path / FILES[1], csv_text(names, rows))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ShareComparison:
        """Read the folder."""
        folder = Path(path)
        about = {"what": "a comparison of training shares", "remedy": "Compare the methods again."}
        stored = read_result(folder / FILES[0], _Stored, format=FORMAT, **about)
        return cls(folder, **{name: getattr(stored, name) for name in _Stored.model_fields if name != "format"})


class _Stored(BaseModel):
    """``shares.json``, which may come from anybody."""

    model_config = STRICT

    format: Literal[1]
    data: Text
    images: dict[str, Count]
    classes: Count
    backbone: Text
    epochs: Count
    observe: dict[str, Any] | None
    metric: ComparisonMetric
    rule: Literal["clean", "known", "observed", "last"]
    points: Annotated[tuple[SharePoint, ...], Field(max_length=1_000_000)]
    skipped: tuple[SkippedMethod, ...]
    seconds: Seconds

    @model_validator(mode="after")
    def _different(self) -> _Stored:
        names = [(point.method, point.share, point.seed) for point in self.points]
        if len(set(names)) < len(names):
            raise ValueError("a point is there twice")
        return self


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
    """Compare methods on shares of the training images, with as many seeds each.

    A seed draws the images and, with ``observe``, the labels; and determines the initial weights. Val selects the
    epoch, and the setting for each share and seed. What the folder has is not trained again.

    Args:
        data: the data set.
        methods: "short", "all", or names of methods; ``bce`` sees all labels, where they are known.
        shares: of the training images, above 0, at most 1.
        out: the folder.
        device: "auto", "cpu", "cuda", "mps".
        workers: processes that decode images.
        quiet: print nothing.
        **settings: those of ``compare``.
    """
    methods = methods if isinstance(methods, str) else list(methods)
    chosen = check_settings(methods, settings)
    wanted, folder, reporter = check_shares(shares), Path(out), Reporter(quiet)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another --out.")
    execution: dict[str, Any] = {"device": device, "workers": workers, "reporter": reporter}
    points: dict[tuple[float, int], Comparison] = {}
    with lock_folder(folder, "comparing training shares"), reporter.resumable(partial(has_heads, folder)):
        _check_folder(folder)
        with reporter.bar("shares", len(wanted) * chosen.seeds):
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
                        reporter.log(f"{part}: {_describe(found)}")
        made = _collect(folder, data, chosen, points)
        made.write()
    return made


def check_shares(shares: Sequence[float]) -> list[float]:
    """Return the shares in increasing order; ``InputError`` where one is none."""
    if not shares or any(not 0 < share <= 1 for share in shares):
        shown = ",".join(f"{share:g}" for share in shares)
        raise InputError(f"--train-share {shown}: give shares above 0 and at most 1, e.g. --train-share 0.1,0.5,1")
    return sorted(set(map(float, shares)))


def is_share_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison of training shares."""
    return (folder / FILES[0]).is_file()


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else."""
    other = any(path.name != LOCK_FILE and not path.name.startswith(".") for path in folder.iterdir())
    if other and not (is_share_comparison(folder) or (folder / POINTS_FOLDER).is_dir()):
        raise RunError(f"{folder} holds something else than a comparison of training shares: choose another --out.")
    refuse_links(folder)


def _draw(data: Dataset, share: float, seed: int, settings: CompareSettings) -> Dataset:
    """Return the data with a share of the training images, in their order; the labels are drawn before the images.

    The recipe stays, by which a method has the options of its paper for the data set.
    """
    if settings.observe is not None:
        data = data.observe(**settings.observe, seed=settings.label_seed + seed)
    count = len(data.train)
    rows = numpy_generator(seed, "training share").permutation(count)[: max(round(share * count), 1)]
    if len(rows) == count:
        return data
    return replace(data, name=f"{100 * share:g} % of {data.name}", train=data.train.select(np.sort(rows)))


def _describe(found: Comparison) -> str:
    values = ", ".join(f"{row.name} {100 * row.mean:.1f}" for row in found.methods if row.mean is not None)
    return values or "nothing to measure"


def _collect(
    folder: Path, data: Dataset, settings: CompareSettings, points: Mapping[tuple[float, int], Comparison]
) -> ShareComparison:
    first = next(iter(points.values()))
    rows = [
        _point(share, seed, row, found.metadata["images"]["train"])
        for (share, seed), found in points.items()
        for row in found.methods
    ]
    skipped = dict.fromkeys(each for found in points.values() for each in found.skipped)
    return ShareComparison(
        folder,
        data.name,
        {split.name: len(split) for split in data.splits},
        len(data.classes),
        str(first.metadata["backbone"]),
        settings.adam_epochs,
        settings.observe,
        first.metric,
        first.rule,
        tuple(rows),
        tuple(skipped),
        sum(found.seconds for found in points.values()),
    )


def _point(share: float, seed: int, row: MethodResult, images: int) -> SharePoint:
    result = row.seeds[0]
    about = (images, result.known_labels or 0, result.value, result.score, result.epoch, row.lr, row.extra_labels)
    return SharePoint(row.name, share, seed, *about)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
