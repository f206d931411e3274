"""``metrics.jsonl``: a line per epoch and a last one with the summary of the run, and what its measures say."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from labelgap.core.files import write_text
from labelgap.core.stored import MAX_JSON_VALUES, damaged, parse_json, read_bytes, reading, validate
from labelgap.core.text import pluralize
from labelgap.metrics.validation import MAX_CHANCE, ThresholdMark
from labelgap.training.settings import Name, NotNegative, Options, Rate

METRICS_FILE: Final = "metrics.jsonl"
_REMEDY: Final = "Restore it from a copy; in an unfinished run remove it, and --resume writes it again."
_MIN_LIFT: Final = 3 / 4
"""How far from chance to 1 an estimated mAP has to be: scores that rank weakly leave the prevalence open, and the
estimate is then too high, by tens of points."""

Count = Annotated[int, Field(ge=0, le=10**15)]
Epoch = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=-1e-6, le=1 + 1e-6)]
Value = Annotated[float, Field(ge=-1e39, le=1e39)]
Offset = Annotated[float, Field(ge=-1e30, le=1e30)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Positive = Annotated[float, Field(gt=0, le=1e30)]
Text = Annotated[str, StringConstraints(max_length=10_000)]
Rule = Literal["clean", "known", "observed", "last"]


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EpochRecord(_Stored):
    """A line of an epoch; a number that was not finite is None. Epoch 0 is the linear head of linear-init."""

    epoch: Epoch
    loss: Value | None
    seconds: Seconds
    select: Rule | None = None
    score: Share | None = None
    classes_counted: Count | None = None
    revisions: Count | None = None
    revisions_precision: Share | None = None
    lr_factor: Share | None = None
    restarted: bool = False


class _GroupMeasures(_Stored):
    group: Count
    classes: Count
    classes_counted: Count
    map: Share | None
    present: Count
    absent: Count


class _SplitMeasures(_Stored):
    """What ``evaluate_scores`` returns."""

    images: Count
    classes: Count
    classes_counted: Count
    map: Share | None
    map_one_size: Share | None = None
    chance: Share | None = None
    known_absent: Count = 0
    map_estimated: Share | None = None
    chance_estimated: Share | None = None
    classes_estimated: Count = 0
    estimated: dict[str, tuple[Share, Share]] = {}
    map_samples: Share | None
    images_counted: Count
    f1_micro: Share | None
    f1_micro_at_half: Share | None
    f1_macro: Share | None
    f1_macro_at_half: Share | None
    average_precision: dict[str, Share | None]
    groups: list[_GroupMeasures] = []


class _Thresholds(_Stored):
    values: list[Share]
    marks: list[ThresholdMark]


class _Calibration(_Stored):
    method: Literal["platt"]
    scale: Positive
    offset: Offset | list[Offset]
    classes: list[bool]
    present: Count
    absent: Count
    known: Share


class _RevisionQuality(_Stored):
    revised: Count
    known_truth: Count
    correct: Count
    precision: Share | None
    hidden_present: Count
    found: Count
    recall: Share | None


class _Weights(_Stored):
    """Where the initial weights of the backbone come from, and the size of its images."""

    source: Text
    license: Text
    size: Count


class SearchedSettings(_Stored):
    """The settings that a search chooses."""

    method: Name
    options: Options
    lr: Rate
    backbone_lr: Rate
    weight_decay: NotNegative


class ComparedSettings(SearchedSettings):
    """Settings of a head, and their score on val or out of fold; None where nothing could be ranked."""

    score: Share | None


class _Search(_Stored):
    compared: list[ComparedSettings]
    folds: Count | None = None  # of a cross-validation


class SourceRecord(_Stored):
    """What a source of a prior is worth, as it was calibrated."""

    source: Text
    labels: Count  # of train, of which it says something
    called: Count  # those of them that it calls present
    right: Share | None  # the share of these that is present, as far as known labels and a model tell
    added: Count  # unknown labels that are more likely present than not by it, and not without it
    slopes: list[Positive | Literal[0]]  # of each class, log-odds per standard deviation; 0 where it says nothing
    curve: list[tuple[Count, Share | None, Share | None]]  # in ten bins: labels, the mean of what it says, the share

    @property
    def counts(self) -> int:
        """The number of classes of which it says something."""
        return sum(slope > 0 for slope in self.slopes)

    @property
    def mean_slope(self) -> float:
        """The log-odds that a standard deviation of it adds, in the mean over classes."""
        return sum(self.slopes) / max(len(self.slopes), 1)


class PriorRecord(_Stored):
    """What a training made of a prior, and how a linear head ranks known labels with it and without it."""

    used: bool
    calibrated: bool = True  # not where too few labels judge it: it is believed as it stands
    every: bool = False  # whether each unknown label had a target, not those alone that are probably present
    score: Share | None = None
    score_without: Share | None = None
    judge: Literal["train", "val"] = "train"
    sources: list[SourceRecord]


class _RunSummary(_Stored):
    """The last line of a finished run."""

    best_epoch: Epoch
    epochs: Annotated[Epoch, Field(ge=1)]
    divergences: Count = 0
    interrupted: bool
    seconds: Seconds
    select: Rule
    score: Share | None
    weights: _Weights | None = None
    calibration: _Calibration | None = None
    thresholds: _Thresholds
    class_groups: list[Annotated[int, Field(ge=1, le=1000)]] | None = None
    train: _SplitMeasures | None = None
    val: _SplitMeasures | None = None
    test: _SplitMeasures | None = None
    revisions: _RevisionQuality | None = None
    cross_validation: _Search | None = None
    search: _Search | None = None
    prior: PriorRecord | None = None


def write_history(folder: Path, history: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None = None) -> None:
    """Replace the whole file; a number that is not finite is written as null."""
    lines = [*history, *([{"summary": summary}] if summary is not None else [])]
    text = "".join(json.dumps(finite(line), ensure_ascii=False) + "\n" for line in lines)
    write_text(folder / METRICS_FILE, text)


def read_history(folder: Path, classes: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the epochs and the summary of a run with these classes; the summary is empty until it is finished."""
    path = folder / METRICS_FILE
    if not os.path.lexists(path):
        return [], {}
    content = read_bytes(path, remedy=_REMEDY)
    with reading(path, _REMEDY):
        if content.count(b"\n") > MAX_JSON_VALUES:
            raise ValueError(f"it has more than {MAX_JSON_VALUES:,} lines")
        lines = content.split(b"\n")
        values = parse_json(b"[%b]" % b",".join(line for line in lines if line))
    if lines[-1] or not all(isinstance(value, dict) for value in values):
        raise damaged(path, "a line is not a complete JSON object", _REMEDY)
    summary = values.pop()["summary"] if values and values[-1].keys() == {"summary"} else None
    for value in values:
        validate(value, EpochRecord, path, _REMEDY)
    with reading(path, _REMEDY):
        check_epochs(values, trained_epochs(values))
        if summary is not None:
            _check_summary(validate(summary, _RunSummary, path, _REMEDY), values, classes)
    return values, summary or {}


def trained_epochs(history: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of epochs in a history; epoch 0, the network before its training, does not count."""
    return history[-1]["epoch"] if history else 0


def check_epochs(history: Sequence[Mapping[str, Any]], epochs: int) -> None:
    """Raise ``ValueError`` unless a history has the epochs from 0 or 1 to ``epochs``."""
    first = 0 if history and history[0]["epoch"] == 0 else 1
    if [record["epoch"] for record in history] != list(range(first, epochs + 1)):
        raise ValueError("an epoch is missing")


def _check_summary(summary: _RunSummary, history: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> None:
    """Raise ``ValueError`` where the summary is not one of a run with these epochs and classes."""
    if summary.epochs != trained_epochs(history) or summary.best_epoch not in {record["epoch"] for record in history}:
        raise ValueError("its summary is of other epochs")
    calibration, measured = summary.calibration, (summary.train, summary.val, summary.test)
    per_class: list[object] = [summary.thresholds.values, summary.thresholds.marks, summary.class_groups]
    per_class += [] if calibration is None else [calibration.classes, calibration.offset]
    named = {name for split in measured if split is not None for name in split.average_precision}
    lengths = {len(values) for values in per_class if isinstance(values, list)}
    if lengths != {len(classes)} or not named <= set(classes):
        raise ValueError("its summary is of other classes")


def finite(value: Any) -> Any:
    """Return a value as it is stored: numbers that are not finite are None."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def has_estimate(measured: Mapping[str, Any]) -> bool:
    """Return whether a split has an estimated mAP that is far enough from its chance; an older version stored any."""
    value, chance = measured.get("map_estimated"), measured.get("chance_estimated")
    if value is None or chance is None:
        return False
    return bool(chance <= MAX_CHANCE and value - chance >= _MIN_LIFT * (1 - chance))


def has_accuracy(metrics: Mapping[str, Any]) -> bool:
    """Return whether the known labels support an accuracy of a run on images it has not seen, by its ``metrics``."""
    return any(metrics[split]["map"] is not None for split in unseen_splits(metrics))


def unseen_splits(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return headings of the splits scored by models that have not seen their labels, the best evidence first."""
    names = {"test": "test", "val": "val"}
    if metrics.get("cross_validation"):
        names["train"] = "out-of-fold"
    return {split: heading for split, heading in names.items() if metrics.get(split)}


def describe_kept_epoch(metrics: Mapping[str, Any]) -> str:
    """Return which epoch of a finished run was kept, and how often its training diverged."""
    kept = f"epoch {metrics['best_epoch']} of {metrics['epochs']} was kept"
    if metrics["best_epoch"] == 0:
        epochs = pluralize(metrics["epochs"], "epoch")
        kept = f"the linear head was kept: training the whole network for {epochs} did not improve the val score"
    times = metrics.get("divergences", 0)
    count = "once" if times == 1 else f"{times} times"
    return f"{kept}; training diverged {count}, and the learning rates were halved" if times else kept


def describe_estimated(measured: Mapping[str, Any]) -> str | None:
    """Return the estimated mAP of a split with its chance and its assumption; None where there is none."""
    if not has_estimate(measured):
        return None
    value, chance = (100 * measured[name] for name in ("map_estimated", "chance_estimated"))
    absent = measured["known_absent"]
    known = pluralize(absent, "absent label is", "absent labels are") if absent else "no absent label is"
    over = f"{measured['classes_estimated']:,} of {measured['classes']:,} classes"
    return f"about {value:.1f} over {over} (chance {chance:.1f}), if labels are missing at random; {known} known"


def describe_groups(measured: Mapping[str, Any]) -> str | None:
    """Return the mAP of the groups of classes, with the known absent labels of each; None where there are none."""
    values = [
        f"G{row['group']} {'–' if row['map'] is None else format(100 * row['map'], '.2f')} ({row['absent']:,})"
        for row in measured.get("groups") or ()
    ]
    return f"mAP by known training labels, fewest first (known absent): {', '.join(values)}" if values else None
