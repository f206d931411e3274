r"""Methods on several data sets: average ranks, Friedman's test, and Nemenyi's critical difference.

On each of D data sets the M methods are ranked by their means, 1 being the best and equal ones sharing a rank. Two
methods differ where their average ranks do by more than

.. math:: \mathrm{CD} = q_{0.05} \sqrt{\frac{M (M + 1)}{6 D}}

with q the quantile of the studentized range for M groups, divided by √2; and only where Friedman's test finds that any
do. The methods are compared on each data set by ``compare``, in a folder of its own; ``datasets.json`` names these.

Reference: Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from labelgap.core.errors import InputError
from labelgap.core.files import file_stem
from labelgap.core.trust import refuse_links
from labelgap.data.dataset import Dataset
from labelgap.studies.compare.results import Comparison, MethodResult, has_heads
from labelgap.studies.compare.runner import compare
from labelgap.studies.compare.settings import check_settings
from labelgap.studies.study import Document, StudyMember, check_members, study_folder
from labelgap.training.progress import Reporter

LEVEL: Final = 0.05  # the probability of calling methods different that are not, of both tests
FEW: Final = 10  # number of data sets below which the tests find large differences alone (Demšar 2006, 3.2.2)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Average ranks of methods on data sets, the best first."""

    methods: tuple[str, ...]
    average: NDArray[np.float64]  # (M,) of the ranks on all data sets
    datasets: int
    p_value: float | None  # of Friedman's test; None with fewer than three methods or two data sets
    critical_difference: float

    @property
    def differ(self) -> bool:
        """Whether Friedman's test finds that the methods differ."""
        return self.p_value is not None and self.p_value < LEVEL

    @property
    def groups(self) -> list[tuple[int, int]]:
        """First and last of the methods of which no two differ, of every such group that is in no larger one."""
        found = list[tuple[int, int]]()
        for first, rank in enumerate(self.average):
            reach = self.average <= rank + self.critical_difference
            last = int(np.flatnonzero(reach)[-1]) if self.differ else len(self.average) - 1
            if last > first and (not found or last > found[-1][1]):
                found.append((first, last))
        return found


def rank_methods(values: Mapping[str, Sequence[float]]) -> Ranking:
    """Rank methods by a number for each data set, the higher the better."""
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    table = np.array(list(values.values()), dtype=np.float64).reshape(len(values), -1)
    methods, datasets = table.shape
    average = rankdata(-table, axis=0).mean(axis=1) if datasets else np.zeros(methods)
    order, p_value = np.argsort(average, kind="stable"), None
    if methods > 2 and datasets > 1:
        equal = (table == table[:1]).all()  # where the statistic is 0 / 0
        p_value = 1.0 if equal else float(friedmanchisquare(*table).pvalue)
    quantile = float(studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2) if methods > 1 else 0.0
    difference = quantile * math.sqrt(methods * (methods + 1) / (6 * max(datasets, 1)))
    return Ranking(tuple(np.array(list(values))[order].tolist()), average[order], datasets, p_value, difference)


@dataclass(frozen=True)
class DatasetComparison(Document):
    """Methods side by side on several data sets."""

    FILE = "datasets.json"
    KIND = "a comparison on several data sets"
    REMEDY = "Compare the methods again."

    members: Annotated[tuple[StudyMember, ...], Field(min_length=2, max_length=1000)]  # a data set and its comparison

    def check(self) -> None:
        """Refuse two data sets of one name."""
        check_members(self.members)

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """The comparison on each data set."""
        refuse_links(self.path)
        return {member.label: Comparison.open(self.path / member.folder) for member in self.members}

    @cached_property
    def rows(self) -> dict[str, list[MethodResult | None]]:
        """The results of every method on each data set; None where it could not run there."""
        found = [{row.name: row for row in each.methods} for each in self.comparisons.values()]
        names = dict.fromkeys(name for rows in found for name in rows)
        return {name: [rows.get(name) for rows in found] for name in names}

    @cached_property
    def ranking(self) -> Ranking:
        """The ranks of those methods that saw the same labels as the others, and have a number, on every data set."""
        ranked = dict[str, list[float]]()
        for name, rows in self.rows.items():
            means = [row.mean for row in rows if row is not None and not row.extra_labels and row.mean is not None]
            ranked |= {name: means} if len(means) == len(rows) else {}
        return rank_methods(ranked)


def compare_datasets(
    datasets: Iterable[Dataset],
    methods: str | Iterable[str] = "short",
    *,
    out: str | os.PathLike[str] = "runs/compare",
    device: str = "auto",
    workers: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> DatasetComparison:
    """Compare methods on several data sets, each in a folder of its name; see ``compare`` for the other arguments."""
    given, folder, reporter = list(datasets), Path(out), Reporter(quiet)
    methods = methods if isinstance(methods, str) else list(methods)
    check_settings(methods, settings)
    if len(given) < 2:
        raise InputError("A comparison on several data sets needs two or more.")
    named = dict[str, Dataset]()
    for data in given:
        name = stem = file_stem(data.name)
        while name in named:
            name = f"{stem}-{len(named) + 1}"
        named[name] = data
    known = (DatasetComparison.FILE, next(iter(named)))
    with (
        study_folder(folder, "comparing methods", DatasetComparison.KIND, known),
        reporter.resumable(partial(has_heads, folder)),
    ):
        for number, (name, data) in enumerate(named.items(), 1):
            reporter.log(f"{name} ({number} of {len(named)})")
            compare(data, methods, out=folder / name, device=device, workers=workers, quiet=quiet, **settings)
        made = DatasetComparison(folder, tuple(StudyMember(name, name) for name in named))
        made.write()
    return made
