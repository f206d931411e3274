"""The results of a comparison: a row for every method, the skipped methods, and which gaps are significant.

``compare.json`` holds all of it, ``compare.csv`` the table, ``settings.csv`` every head that was trained.
"""

from __future__ import annotations

import csv
import io
import json
import os
import statistics
from collections.abc import Iterable, Mapping
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
    "TABLE",
    "Trial",
    "is_comparison",
]

FILE: Final = "compare.json"
TABLE: Final = "compare.csv"
TRIALS: Final = "settings.csv"
FORMAT: Final = 1


@dataclass(frozen=True)
class ComparisonMetric:
    """The metric that orders the methods: the best that the known labels support.

    Attributes:
        name: "test mAP", "val mAP", "observed ranking on test" or "observed ranking on val"; "" where there is none.
        is_accuracy: False for the observed ranking.
        classes_counted: number of classes it is a mean over.
        reason: why there is no better metric; "" for test mAP.
    """

    name: str
    is_accuracy: bool
    classes_counted: int
    reason: str


@dataclass(frozen=True)
class SeedResult:
    """One method with one seed, at its selected setting.

    Attributes:
        seed: of the initial weights and of the method's own draws.
        label_seed: of the observed labels, where they were drawn.
        value: of the comparison's metric.
        epoch: the selected epoch.
        score: that selected it; None under "last".
        test: metrics on test; None without one.
        train_map: mAP on the training images against their truth; None where it is not known.
        seconds: its share of the training time of its group.
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
        options: at the selected setting.
        lr: the selected learning rate.
        batch_size: the selected batch size.
        label_view: description of the training labels that it saw.
        extra_labels: whether the other methods saw fewer: it does not compete.
        settings_tried: size of its grid.
        seconds: of all its heads together.
        seeds: a result for each.
        gap: how far it is behind the best; None where it does not compete, or nothing can be measured.
    """

    method: str
    options: Mapping[str, Any]
    lr: float
    batch_size: int
    label_view: str
    extra_labels: bool
    settings_tried: int
    seconds: float
    seeds: tuple[SeedResult, ...]
    gap: GapToBest | None = None

    @property
    def values(self) -> list[float]:
        """The metric with each seed; empty where nothing can be measured."""
        values = [seed.value for seed in self.seeds if seed.value is not None]
        return values if len(values) == len(self.seeds) else []

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds; None with one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def mean_of(self, name: str) -> float | None:
        """Return the mean over seeds of one metric on test, such as "f1_micro", or of "train_map"."""
        values = [seed.train_map if name == "train_map" else (seed.test or {}).get(name) for seed in self.seeds]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known and len(known) == len(values) else None


@dataclass(frozen=True)
class SkippedMethod:
    """A method that could not run, and why."""

    method: str
    reason: str


@dataclass(frozen=True)
class Trial:
    """One head that was trained, with its score on val. Test is evaluated for selected heads only."""

    method: str
    options: Mapping[str, Any]
    lr: float
    batch_size: int
    seed: int
    epoch: int
    score: float | None
    selected: bool
    failed: str | None


@dataclass(frozen=True)
class Comparison:
    """Methods side by side on one data set.

    Attributes:
        path: the folder.
        title: the question it answers.
        metadata: data, backbone, epochs, grid and so on: what is needed to repeat it.
        rule: that selected epochs and settings; see ``training.selection``.
        metric: that orders the methods.
        methods: the best first, those with extra labels last.
        skipped: those that could not run.
        trials: every head.
        seconds: in all.
    """

    path: Path
    title: str
    metadata: Mapping[str, Any]
    rule: str
    metric: ComparisonMetric
    methods: tuple[MethodResult, ...]
    skipped: tuple[SkippedMethod, ...] = ()
    trials: tuple[Trial, ...] = field(default=(), repr=False)
    seconds: float = 0.0

    @property
    def competitors(self) -> list[MethodResult]:
        """The methods that saw the same labels."""
        return [row for row in self.methods if not row.extra_labels]

    @property
    def tied(self) -> list[MethodResult]:
        """The best competitor, and those that it is not significantly better than."""
        measured = [(row, row.gap) for row in self.competitors if row.gap is not None]
        return [row for number, (row, gap) in enumerate(measured) if number == 0 or not gap.significant]

    @property
    def winner(self) -> MethodResult | None:
        """The one method that is significantly better than all others."""
        measured = [row for row in self.competitors if row.gap is not None]
        return self.tied[0] if len(measured) > 1 and len(self.tied) == 1 else None

    def write(self) -> None:
        """Write ``compare.json``, ``compare.csv`` and ``settings.csv``."""
        stored = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("path", "trials")}
        stored |= {"metadata": dict(self.metadata), "metric": asdict(self.metric)}
        stored |= {name: [asdict(row) for row in getattr(self, name)] for name in ("methods", "skipped")}
        write_json(self.path / FILE, {"format": FORMAT, **stored})
        write_text(self.path / TABLE, _to_csv(_method_row(row, self.metric) for row in self.methods))
        write_text(self.path / TRIALS, _to_csv(_trial_row(trial) for trial in self.trials))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Comparison:
        """Read the folder of a comparison, without its trials."""
        folder = Path(path)
        try:
            stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{folder} is not a comparison: it has no {FILE}.") from None
        except ValueError as error:
            raise RunError(f"{folder / FILE} is damaged ({error}).") from None
        version = stored.pop("format", None)
        if version != FORMAT:
            raise RunError(f"{folder} is a comparison of format {version}; this version reads format {FORMAT}.")
        stored |= {
            "metric": ComparisonMetric(**stored["metric"]),
            "methods": tuple(_read_method(row) for row in stored["methods"]),
            "skipped": tuple(SkippedMethod(**row) for row in stored["skipped"]),
        }
        return cls(folder, **stored)


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison."""
    return (folder / FILE).is_file()


def _read_method(row: dict[str, Any]) -> MethodResult:
    gap = row.pop("gap")
    seeds = tuple(SeedResult(**seed) for seed in row.pop("seeds"))
    return MethodResult(**row, seeds=seeds, gap=None if gap is None else GapToBest(**gap))


def _method_row(row: MethodResult, metric: ComparisonMetric) -> dict[str, Any]:
    return {
        "method": row.method,
        "label_view": row.label_view,
        "extra_labels": int(row.extra_labels),
        "metric": metric.name,
        "mean": _format(row.mean),
        "std": _format(row.deviation),
        **{f"seed_{seed.seed}": _format(seed.value) for seed in row.seeds},
        "gap_to_best": _format(None if row.gap is None else row.gap.mean),
        "gap_half_width": _format(None if row.gap is None else row.gap.half_width),
        **{name: _format(row.mean_of(name)) for name in ("map", "map_samples", "f1_micro", "f1_macro", "train_map")},
        "classes_counted": metric.classes_counted,
        "lr": f"{row.lr:g}",
        "batch_size": row.batch_size,
        "options": json.dumps(dict(row.options)),
        "epochs": " ".join(str(seed.epoch) for seed in row.seeds),
        "settings_tried": row.settings_tried,
        "seconds": f"{row.seconds:.2f}",
    }


def _trial_row(trial: Trial) -> dict[str, Any]:
    cells = {**asdict(trial), "options": json.dumps(dict(trial.options)), "selected": int(trial.selected)}
    return {**cells, "lr": f"{trial.lr:g}", "score": _format(trial.score), "failed": trial.failed or ""}


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = list(rows)
    text = io.StringIO()
    if lines:
        writer = csv.DictWriter(text, lines[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return text.getvalue()
