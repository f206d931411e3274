"""The results of a comparison: a row for every method, the skipped methods, and which gaps are significant."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from labelgap.core.files import write_text
from labelgap.data.readers.recipe import DrawArguments, StoredRecipe
from labelgap.studies.study import STRICT, Count, Document, Seconds, Share, Stored, Text, csv_text

FILE: Final = "compare.json"
TABLE: Final = "compare.csv"
TRIALS: Final = "settings.csv"
HEADS_FOLDER: Final = "heads"
BASELINE: Final = "logistic regression"
"""The row that every comparison has: scikit-learn's, of each class alone, with unknown labels as absent."""

MethodName = Annotated[str, StringConstraints(min_length=1, max_length=300)]
Rule = Annotated[str, StringConstraints(pattern="^(clean|known|observed|last)$")]


def variant_name(method: str, variant: Mapping[str, Any]) -> str:
    """Return the name of a variant in tables, e.g. "ll-ct delta_rel=0.2"."""
    return " ".join([method, *(f"{name}={value}" for name, value in variant.items())])


def _check_metrics(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the metrics of a split: numbers or None; of the classes one such mapping, and one of lists of numbers."""
    per_class, estimated = metrics.get("average_precision") or {}, metrics.get("estimated") or {}
    if not isinstance(per_class, Mapping) or not isinstance(estimated, Mapping):
        raise ValueError("average_precision or estimated is not a mapping")
    plain = [value for name, value in metrics.items() if name not in ("average_precision", "estimated")]
    rows = [value for row in estimated.values() for value in (row if isinstance(row, list) else [row])]
    for value in (*plain, *per_class.values(), *rows):
        if value is not None and (not isinstance(value, int | float) or not 0 <= value <= 10**12):
            raise ValueError(f"{str(value)[:80]!r} is no metric")
    return metrics


@dataclass(frozen=True)
class ComparisonMetric(Stored):
    """The metric that orders the methods: the best that the known labels support."""

    name: Text  # "test mAP", "val mAP", "out-of-fold mAP", "observed ranking on test" …; "" where there is none
    is_accuracy: bool  # False for the observed ranking
    classes_counted: Count  # that it is a mean over
    reason: Text  # why there is no better metric; "" for test mAP


@dataclass(frozen=True)
class GapToBest(Stored):
    """How far a method is behind the best; see ``statistics``."""

    mean: Annotated[float, Field(ge=-1, le=1)]  # of the best minus this method, over the seeds
    half_width: Annotated[float, Field(ge=0, le=1e6)] | None  # of the interval; None with one seed

    @property
    def significant(self) -> bool:
        """Whether the interval is above zero."""
        return self.half_width is not None and self.mean > self.half_width


@dataclass(frozen=True)
class SeedResult(Stored):
    """One method with one seed, at its selected setting."""

    seed: Count  # of the initial weights and of the method's own draws
    label_seed: int | None  # of the observed labels, where they were drawn
    value: Share | None  # of the comparison's metric
    epoch: Count  # the selected one
    score: float | None  # that selected it; None under "last"
    test: Annotated[Mapping[str, Any], AfterValidator(_check_metrics)] | None  # metrics on test
    train_map: Share | None  # against the truth of train, where it is known; out of fold where there is no val
    seconds: Seconds  # its share of the training time of its group
    scores: Annotated[tuple[Share, ...], Field(max_length=100_000)] = ()  # of val after each epoch, if one is selected
    known_labels: Count | None = None  # training labels that it saw; None in files of earlier versions


@dataclass(frozen=True)
class MethodResult(Stored):
    """One method."""

    method: MethodName
    options: Mapping[str, Any]  # these and the following settings are those that were selected
    lr: Annotated[float, Field(gt=0)]
    batch_size: Annotated[Count, Field(ge=1)]
    label_view: Text  # description of the training labels that it saw
    extra_labels: bool  # whether the other methods saw fewer: it does not compete
    settings_tried: Count
    seconds: Seconds  # of all its heads together
    seeds: Annotated[tuple[SeedResult, ...], Field(min_length=1, max_length=10_000)]
    gap: GapToBest | None = None  # None where it does not compete, or nothing can be measured
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    optimizer: Text = "adam"
    standardize: bool = False
    variant: Mapping[str, Any] = field(default_factory=dict)  # what sets it apart from other rows of the method
    baseline: bool = False  # plain logistic regression, with unknown labels as absent; trained as the method `an`
    at_edge: Mapping[str, Literal["lowest", "highest", "last"]] = field(default_factory=dict)
    """ "weight_decay" and "lr", where a value beyond those that were compared may be better; "epoch"."""

    @property
    def name(self) -> str:
        """The method, and the values of its variant."""
        return variant_name(self.method, self.variant)

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
class SkippedMethod(Stored):
    """A method that could not run, and why."""

    method: MethodName
    reason: Text


def _check_draw(observe: dict[str, Any]) -> dict[str, Any]:
    DrawArguments.model_validate(observe)
    return observe


class _Metadata(BaseModel):
    """What is needed to repeat a comparison."""

    model_config = STRICT

    data: Text
    recipe: StoredRecipe
    images: dict[str, Count]
    classes: list[str]
    protocol: Literal["linear"]
    backbone: Text
    weights: Text | None
    epochs: Count
    grid: Text
    seeds: Count
    observe: Annotated[dict[str, Any], AfterValidator(_check_draw)] | None
    label_seed: int | None
    device: Text
    folds: Count = 0


def _check_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return _Metadata.model_validate_json(json.dumps(metadata)).model_dump()


@dataclass(frozen=True)
class Comparison(Document):
    """Methods side by side on one data set; without its trials where it was read from a folder."""

    FILE = FILE
    KIND = "a comparison"
    REMEDY = "Compare the methods again."
    NOT_STORED = frozenset({"path", "trials"})

    title: Text  # the question it answers
    metadata: Annotated[Mapping[str, Any], AfterValidator(_check_metadata)]  # what is needed to repeat it
    rule: Rule  # that selected epochs and settings; see ``training.selection``
    metric: ComparisonMetric  # that orders the methods
    methods: Annotated[tuple[MethodResult, ...], Field(max_length=1000)]  # the best first, those with extra labels last
    skipped: tuple[SkippedMethod, ...] = ()
    trials: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """Every head that was trained: its setting, seed, epoch, and score on val or out of fold; ``settings.csv``."""
    seconds: Seconds = 0.0  # in all

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

    def check(self) -> None:
        """Check what the table and the figure rely on: the same seeds for all, and a gap where there is a value."""
        for row in self.methods:
            if len(row.seeds) != len(self.methods[0].seeds):
                raise ValueError(f"{row.method} has another number of seeds than {self.methods[0].method}")
            if (row.gap is None) != (row.extra_labels or row.mean is None):
                raise ValueError(f"the gap of {row.method} does not agree with its values")
            if row.gap is not None and (row.gap.half_width is None) != (len(row.seeds) == 1):
                raise ValueError(f"the interval of {row.method} does not agree with its seeds")

    def write(self) -> None:
        """Write ``compare.json``, ``compare.csv``, ``settings.csv`` and the manifest, which lists the heads too."""
        heads = [f"{HEADS_FOLDER}/{path.name}" for path in (self.path / HEADS_FOLDER).glob("*.safetensors")]
        with self.writing([TABLE, TRIALS, *heads]):
            write_text(self.path / TABLE, _to_csv([_method_row(row, self.metric) for row in self.methods]))
            write_text(self.path / TRIALS, _to_csv([_trial_row(trial) for trial in self.trials]))


def has_heads(folder: Path) -> bool:
    """Return whether heads of a comparison are stored in a folder, or in one below it."""
    return any(folder.rglob(f"{HEADS_FOLDER}/*.safetensors"))


def _method_row(row: MethodResult, metric: ComparisonMetric) -> dict[str, Any]:
    gap = row.gap
    return {
        "method": row.method,
        "variant": json.dumps(dict(row.variant)),
        "label_view": row.label_view,
        "extra_labels": int(row.extra_labels),
        "baseline": int(row.baseline),
        "metric": metric.name,
        "mean": _format(row.mean),
        "std": _format(row.deviation),
        **{f"seed_{seed.seed}": _format(seed.value) for seed in row.seeds},
        "gap_to_best": _format(None if gap is None else gap.mean),
        "gap_half_width": _format(None if gap is None else gap.half_width),
        **{name: _format(row.mean_of(name)) for name in ("map", "map_samples", "f1_micro", "f1_macro", "train_map")},
        "classes_counted": metric.classes_counted,
        "lr": f"{row.lr:g}",
        "batch_size": row.batch_size,
        "weight_decay": f"{row.weight_decay:g}",
        "optimizer": row.optimizer,
        "standardize": int(row.standardize),
        "options": json.dumps(dict(row.options)),
        "at_edge": " ".join(f"{name}={edge}" for name, edge in row.at_edge.items()),
        "epochs": " ".join(str(seed.epoch) for seed in row.seeds),
        "settings_tried": row.settings_tried,
        "seconds": f"{row.seconds:.2f}",
    }


def _trial_row(trial: Mapping[str, Any]) -> dict[str, Any]:
    cells = {**trial, **{name: int(trial[name]) for name in ("selected", "standardize")}}
    cells |= {name: f"{trial[name]:g}" for name in ("weight_decay", "lr")}
    return cells | {"options": json.dumps(dict(trial["options"])), "score": _format(trial["score"])}


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    return csv_text(rows[0], (row.values() for row in rows)) if rows else ""
