"""What a comparison came to: a row for every method, what could not run, and which differences are more than chance.

``compare.json`` holds all of it, ``compare.csv`` the table, ``settings.csv`` every head that was trained.
"""

from __future__ import annotations

import csv
import io
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import RunError
from labelgap.core.files import write_json, write_text
from labelgap.studies.compare.significance import GapToBest

__all__ = [
    "Comparison",
    "ComparisonMetric",
    "FILE",
    "MethodResult",
    "SeedResult",
    "SkippedMethod",
    "Trial",
    "is_comparison",
]

FILE: Final = "compare.json"
TABLE: Final = "compare.csv"
SETTINGS: Final = "settings.csv"
FORMAT: Final = 1


@dataclass(frozen=True)
class ComparisonMetric:
    """What methods are ordered by: the best that the known labels support.

    Attributes:
        name: "test mAP", "val mAP", "observed ranking on test" or "observed ranking on val"; "" where there is nothing.
        accuracy: whether it is one.
        classes_counted: over how many classes it is a mean.
        why: the sentence that says why this and nothing better.
    """

    name: str
    accuracy: bool
    classes_counted: int
    why: str


@dataclass(frozen=True)
class SeedResult:
    """One method with one seed, at its chosen setting.

    Attributes:
        seed: of the first weights and of what the method draws.
        label_seed: of the labels that were shown, where they were drawn.
        value: of the comparison's measure.
        epoch: the epoch kept.
        score: what chose it; None where the last epoch was kept unseen.
        test: measures on test; None without one.
        train_map: mAP on the training images against their truth; None where it is not known.
        seconds: its share of the time of the group it was trained in.
    """

    seed: int
    label_seed: int | None
    value: float | None
    epoch: int
    score: float | None
    test: Mapping[str, Any] | None
    train_map: float | None
    seconds: float


@dataclass(frozen=True)
class MethodResult:
    """One method.

    Attributes:
        method: its name.
        options: at the chosen setting.
        lr: the chosen learning rate.
        batch_size: the chosen batch size.
        label_view: what it saw of the training labels, in words.
        extra_labels: whether that is more than the others saw: no competitor.
        tried: how many settings were tried.
        seconds: of all its heads together.
        seeds: a result for each.
        gap: how far it is behind the best; None where it is apart, or nothing can be measured.
    """

    method: str
    options: Mapping[str, Any]
    lr: float
    batch_size: int
    label_view: str
    extra_labels: bool
    tried: int
    seconds: float
    seeds: tuple[SeedResult, ...]
    gap: GapToBest | None = None

    @property
    def values(self) -> list[float]:
        """What was measured with each seed; empty where nothing can be."""
        found = [seed.value for seed in self.seeds if seed.value is not None]
        return found if len(found) == len(self.seeds) else []

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds; None with one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def mean_of(self, name: str) -> float | None:
        """Return the mean over seeds of one measure on test, such as "f1_micro", or of "train_map"."""
        found = [seed.train_map if name == "train_map" else (seed.test or {}).get(name) for seed in self.seeds]
        known = [value for value in found if value is not None]
        return statistics.fmean(known) if known and len(known) == len(found) else None


@dataclass(frozen=True)
class SkippedMethod:
    """A method that could not run, and why."""

    method: str
    reason: str


@dataclass(frozen=True)
class Trial:
    """One head that was trained: what for, and what the rule said of it. Test was looked at for chosen ones only."""

    method: str
    options: Mapping[str, Any]
    lr: float
    batch_size: int
    seed: int
    epoch: int
    score: float | None
    chosen: bool
    failed: str | None


@dataclass(frozen=True)
class Comparison:
    """Methods side by side on one data set.

    Attributes:
        path: the folder.
        title: what it asks.
        about: data, backbone, epochs, grid and so on: what a reader must know to do it again.
        rule: by which epochs and settings were chosen; see ``training.selection``.
        measure: what the methods are ordered by.
        methods: the best first, those that saw more than the others last.
        not_run: those that could not.
        tried: every head.
        seconds: all in all.
    """

    path: Path
    title: str
    about: Mapping[str, Any]
    rule: str
    measure: ComparisonMetric
    methods: tuple[MethodResult, ...]
    not_run: tuple[SkippedMethod, ...] = ()
    tried: tuple[Trial, ...] = field(default=(), repr=False)
    seconds: float = 0.0

    @property
    def competitors(self) -> list[MethodResult]:
        """The methods that saw the same labels."""
        return [row for row in self.methods if not row.extra_labels]

    @property
    def level(self) -> list[MethodResult]:
        """The competitors that the best is not ahead of by more than chance explains, the best first."""
        measured = [row for row in self.competitors if row.gap is not None]
        return [row for place, row in enumerate(measured) if place == 0 or not row.gap.significant]  # type: ignore[union-attr]

    @property
    def winner(self) -> MethodResult | None:
        """The one method that is ahead of all others by more than chance explains."""
        several = len([row for row in self.competitors if row.gap is not None]) > 1
        return self.level[0] if several and len(self.level) == 1 else None

    def write(self) -> None:
        """Write ``compare.json``, ``compare.csv`` and ``settings.csv``."""
        stored = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("path", "tried")}
        stored |= {"measure": asdict(self.measure)}
        stored |= {name: [asdict(row) for row in getattr(self, name)] for name in ("methods", "not_run")}
        write_json(self.path / FILE, {"format": FORMAT, **stored, "about": dict(self.about)})
        write_text(self.path / TABLE, _as_csv(_table_row(row, self) for row in self.methods))
        write_text(self.path / SETTINGS, _as_csv(_tried_row(row) for row in self.tried))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Comparison:
        """Read the folder of a comparison; the single heads stay in ``settings.csv``."""
        folder = Path(path)
        try:
            stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{folder} is no comparison: it has no {FILE}.") from None
        except ValueError as error:
            raise RunError(f"{folder / FILE} is damaged ({error}).") from None
        if stored.get("format") != FORMAT:
            raise RunError(
                f"{folder} is a comparison of format {stored.get('format')}; this version reads format {FORMAT}."
            )
        return cls(
            folder,
            stored["title"],
            stored["about"],
            stored["rule"],
            ComparisonMetric(**stored["measure"]),
            tuple(_method(row) for row in stored["methods"]),
            tuple(SkippedMethod(**row) for row in stored["not_run"]),
            seconds=stored["seconds"],
        )


def is_comparison(folder: Path) -> bool:
    """Whether a folder holds a comparison."""
    return (folder / FILE).is_file()


def _method(row: dict[str, Any]) -> MethodResult:
    gap = row.pop("gap")
    seeds = tuple(SeedResult(**seed) for seed in row.pop("seeds"))
    return MethodResult(**row, seeds=seeds, gap=None if gap is None else GapToBest(**gap))


def _table_row(row: MethodResult, comparison: Comparison) -> dict[str, Any]:
    behind = row.gap
    return {
        "method": row.method,
        "saw": row.label_view,
        "extra_labels": int(row.extra_labels),
        "measure": comparison.measure.name,
        "mean": _number(row.mean),
        "std": _number(row.deviation),
        **{f"seed_{seed.seed}": _number(seed.value) for seed in row.seeds},
        "behind_best": _number(None if behind is None else behind.mean),
        "interval_half_width": _number(None if behind is None else behind.half_width),
        **{name: _number(row.mean_of(name)) for name in ("map", "map_samples", "f1_micro", "f1_macro", "train_map")},
        "classes_counted": comparison.measure.classes_counted,
        "lr": f"{row.lr:g}",
        "batch_size": row.batch_size,
        "options": json.dumps(dict(row.options)),
        "epochs_kept": " ".join(str(seed.epoch) for seed in row.seeds),
        "settings_tried": row.tried,
        "seconds": f"{row.seconds:.2f}",
    }


def _tried_row(row: Trial) -> dict[str, Any]:
    cells = {**asdict(row), "options": json.dumps(dict(row.options)), "chosen": int(row.chosen)}
    return {**cells, "lr": f"{row.lr:g}", "score": _number(row.score), "failed": row.failed or ""}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    made: Sequence[Mapping[str, Any]] = list(rows)
    if not made:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, made[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
    return text.getvalue()
