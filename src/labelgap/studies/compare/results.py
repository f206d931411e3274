"""The results of a comparison as typed values, and the model of ``compare.json``, which may come from anybody."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from labelgap.data.readers.recipe import DrawArguments, StoredRecipe
from labelgap.studies.compare.significance import GapToBest
from labelgap.studies.compare.variants import variant_name

FORMAT: Final = 1
BASELINE: Final = "logistic regression"
"""The row that every comparison has: scikit-learn's, of each class alone, with unknown labels as absent."""
STRICT: Final = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Count = Annotated[int, Field(ge=0, le=10**12)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Text = Annotated[str, StringConstraints(max_length=10_000)]
MethodName = Annotated[str, StringConstraints(min_length=1, max_length=300)]


def _check_metrics(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the metrics of a split: numbers or None; of the classes one such mapping, and one of lists of numbers."""
    per_class, estimated = metrics.get("average_precision") or {}, metrics.get("estimated") or {}
    if not isinstance(per_class, Mapping) or not isinstance(estimated, Mapping):
        raise ValueError("average_precision or estimated is not a mapping")
    plain = {name: value for name, value in metrics.items() if name not in ("average_precision", "estimated")}
    rows = [(name, value) for name, row in estimated.items() for value in (row if isinstance(row, list) else [row])]
    for name, value in (*plain.items(), *per_class.items(), *rows):
        if value is not None and (not isinstance(value, int | float) or not 0 <= value <= 10**12):
            raise ValueError(f"{name[:80]!r} is no metric")
    return metrics


@dataclass(frozen=True)
class ComparisonMetric:
    """The metric that orders the methods: the best that the known labels support.

    Attributes:
        name: "test mAP", "val mAP", "out-of-fold mAP", "observed ranking on test", "observed ranking on val" or
            "observed ranking out of fold"; "" where there is none.
        is_accuracy: False for the observed ranking.
        classes_counted: number of classes it is a mean over.
        reason: why there is no better metric; "" for test mAP.
    """

    __pydantic_config__ = STRICT

    name: Text
    is_accuracy: bool
    classes_counted: Count
    reason: Text


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
        train_map: mAP on the training images against their truth, out of fold where there is no val; None where it is
            not known.
        seconds: its share of the training time of its group.
        scores: of val after each epoch, by the rule that selected one; empty under "last", and without val.
        known_labels: number of training labels that it saw, present and absent; None in files of earlier versions.
    """

    __pydantic_config__ = STRICT

    seed: Count
    label_seed: int | None
    value: Share | None
    epoch: Count
    score: float | None
    test: Annotated[Mapping[str, Any], AfterValidator(_check_metrics)] | None
    train_map: Share | None
    seconds: Seconds
    scores: Annotated[tuple[Share, ...], Field(max_length=100_000)] = ()
    known_labels: Count | None = None


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
        weight_decay: the selected weight decay.
        optimizer: of its heads.
        standardize: whether they were trained on standardized features.
        variant: the values that set it apart from other rows of the same method, where these were asked for.
        baseline: whether it is plain logistic regression, with unknown labels as absent; trained as the method `an`.
        at_edge: "weight_decay" and "lr" → "lowest" or "highest", where one beyond those that were compared may be
            better; "epoch" → "last".
    """

    __pydantic_config__ = STRICT

    method: MethodName
    options: Mapping[str, Any]
    lr: Annotated[float, Field(gt=0)]
    batch_size: Annotated[Count, Field(ge=1)]
    label_view: Text
    extra_labels: bool
    settings_tried: Count
    seconds: Seconds
    seeds: Annotated[tuple[SeedResult, ...], Field(min_length=1, max_length=10_000)]
    gap: GapToBest | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    optimizer: Text = "adam"
    standardize: bool = False
    variant: Mapping[str, Any] = field(default_factory=dict)
    baseline: bool = False
    at_edge: Mapping[str, Literal["lowest", "highest", "last"]] = field(default_factory=dict)

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
class SkippedMethod:
    """A method that could not run, and why."""

    __pydantic_config__ = STRICT

    method: MethodName
    reason: Text


@dataclass(frozen=True)
class Trial:
    """One head that was trained, with its score on val or out of fold. Test is evaluated for selected heads only."""

    method: str
    options: Mapping[str, Any]
    lr: float
    batch_size: int
    weight_decay: float
    optimizer: str
    standardize: bool
    seed: int
    epoch: int
    score: float | None
    selected: bool
    failed: str | None


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


class StoredComparison(BaseModel):
    """``compare.json``."""

    model_config = STRICT

    format: Literal[1]
    title: Text
    metadata: _Metadata
    rule: Literal["clean", "known", "observed", "last"]
    metric: ComparisonMetric
    methods: Annotated[tuple[MethodResult, ...], Field(max_length=1000)]
    skipped: tuple[SkippedMethod, ...]
    seconds: Seconds

    @model_validator(mode="after")
    def _consistent(self) -> StoredComparison:
        """Check what the table and the figure rely on: the same seeds for all, and a gap where there is a value."""
        for row in self.methods:
            if len(row.seeds) != len(self.methods[0].seeds):
                raise ValueError(f"{row.method} has another number of seeds than {self.methods[0].method}")
            if (row.gap is None) != (row.extra_labels or row.mean is None):
                raise ValueError(f"the gap of {row.method} does not agree with its values")
            if row.gap is not None and (row.gap.half_width is None) != (len(row.seeds) == 1):
                raise ValueError(f"the interval of {row.method} does not agree with its seeds")
        return self
