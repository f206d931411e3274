"""The effect of a hyperparameter: score of val, test mAP and best epoch against its values (Kim et al. 2022, figure 5).

From a comparison with ``vary``, from the trials of a sweep, and from a study whose runs of a method differ in one
setting. Where other settings differ as well, each value is shown with those that are best on val: test chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.losses import method_options
from labelgap.reporting.run_description import find_method
from labelgap.studies import Study
from labelgap.studies.compare.results import Comparison
from labelgap.studies.sweep.results import Sweep
from labelgap.training import Run
from labelgap.training.config import RunConfig

_IGNORED: Final = ("format", "classes", "why", "options", "seed", "trace", "checkpoint_minutes", "precision", "linear")
"""Of a configuration: what does not tell two runs of a study apart."""


@dataclass(frozen=True, eq=False)
class ParameterEffect:
    """What a hyperparameter does to a method.

    Attributes:
        method: its name.
        name: of the option or setting.
        values: ``V`` values: numbers in increasing order, others as they came.
        val: ``(V, S)`` score of val in the best epoch, 0 to 1, one column for each seed; NaN where there is none.
        test: ``(V, S)`` test mAP of that epoch; NaN where it was not measured.
        epoch: ``(V, S)`` the best epoch; NaN where there is none.
        tried: ``(V,)`` how many settings of the others were tried with each value; the best on val is shown.
        val_name: what the score of val is.
    """

    method: str
    name: str
    values: tuple[Any, ...]
    val: NDArray[np.float64]
    test: NDArray[np.float64]
    epoch: NDArray[np.float64]
    tried: NDArray[np.int64]
    val_name: str

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@dataclass(frozen=True)
class _Setting:
    """Values of the parameters, and what came of them with each seed."""

    values: Mapping[str, Any]
    val: Sequence[float | None]
    test: Sequence[float | None]
    epoch: Sequence[int | None]


def parameter_effects(what: Comparison | Sweep | Study) -> list[ParameterEffect]:
    """Return the effect of every hyperparameter that has several values; empty where none has.

    Args:
        what: a comparison whose rows vary a value, a sweep, or a study whose runs of a method differ in one setting.
    """
    if isinstance(what, Sweep):
        trials = [_Setting(trial.values, [trial.score], [None], [trial.epoch]) for trial in what.ranked]
        names = [parameter.name for parameter in what.space]
        return _effects(what.method, trials, names, val_score_name(what.rule, folds=bool(what.folds)))
    if isinstance(what, Comparison):
        return _comparison_effects(what)
    return _study_effects([run for member, run in what.runs if not member.extra_labels and run.finished])


def val_score_name(rule: str, *, folds: bool = False) -> str:
    """Return what selects epochs and settings: an accuracy, or a ranking of the observed labels.

    Example:
        >>> val_score_name("clean"), val_score_name("observed"), val_score_name("known", folds=True)
        ('val mAP', 'observed ranking of val', 'out-of-fold mAP')
    """
    if folds:
        return "observed ranking out of fold" if rule == "observed" else "out-of-fold mAP"
    return "observed ranking of val" if rule == "observed" else "val mAP"


def _comparison_effects(comparison: Comparison) -> list[ParameterEffect]:
    label = val_score_name(comparison.rule, folds=bool(comparison.metadata.get("folds")))
    effects = []
    for method in dict.fromkeys(row.method for row in comparison.methods if row.variant):
        rows = [row for row in comparison.methods if row.method == method]
        settings = [
            _Setting(
                row.variant,
                [seed.score for seed in row.seeds],
                [(seed.test or {}).get("map") for seed in row.seeds],
                [seed.epoch for seed in row.seeds],
            )
            for row in rows
        ]
        effects += _effects(method, settings, rows[0].variant, label)
    return effects


def _study_effects(runs: Sequence[Run]) -> list[ParameterEffect]:
    """Return the effects in a study: of every method whose runs differ in one setting, apart from seeds."""
    effects = []
    for method in dict.fromkeys(run.config.method for run in runs):
        own = [run for run in runs if run.config.method == method]
        settings = [_flatten(run.config) for run in own]
        texts = {name: {str(each.get(name)) for each in settings} for each in settings for name in each}
        different = [name for name, values in texts.items() if len(values) > 1]
        if len(different) > 1 and {"lr", "backbone_lr"} == set(different):
            different = ["lr"]
        if len(different) != 1:
            continue
        (name,) = different
        if any(isinstance(each.get(name), dict | list) for each in settings):
            continue  # other data, for example, are no value of a setting
        found: dict[str, list[tuple[Any, Run]]] = {}
        for each, run in zip(settings, own, strict=True):
            found.setdefault(str(each.get(name)), []).append((each.get(name), run))
        points = [
            _Setting(
                {name: pairs[0][0]},
                [run.metrics.get("score") for _, run in pairs],
                [(run.metrics.get("test") or {}).get("map") for _, run in pairs],
                [run.metrics.get("best_epoch") for _, run in pairs],
            )
            for pairs in found.values()
        ]
        effects += _effects(
            method, points, [name], val_score_name(own[0].config.select, folds=bool(own[0].config.folds))
        )
    return effects


def _flatten(config: RunConfig) -> dict[str, Any]:
    """Return settings and options, defaults included; the seeds of drawn labels are left out of the data."""
    stored = config.model_dump(mode="json", exclude=set(_IGNORED))
    for step in stored["data"].get("steps", ()):
        for arguments in step.values():
            arguments.pop("seed", None)
    options = method_options(config.method) if find_method(config.method) is not None else {}
    return {**stored, **options, **config.options}


def _effects(method: str, settings: Sequence[_Setting], names: Iterable[str], val_name: str) -> list[ParameterEffect]:
    """Return the effect of every name with several values, each value at its best setting on val."""
    effects = []
    for name in names:
        groups: dict[Any, list[_Setting]] = {}
        for setting in settings:
            if setting.values.get(name) is not None:
                groups.setdefault(setting.values[name], []).append(setting)
        values = list(groups)
        if len(values) < 2:
            continue
        if all(isinstance(value, int | float) for value in values):
            values.sort()
        best = [max(groups[value], key=lambda each: _mean(each.val)) for value in values]
        seeds = max(len(each.epoch) for each in best)
        val, test, epoch = (_table([getattr(each, part) for each in best], seeds) for part in ("val", "test", "epoch"))
        tried = np.array([len(groups[value]) for value in values])
        effects.append(ParameterEffect(method, name, tuple(values), val, test, epoch, tried, val_name))
    return effects


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else -1.0


def _table(rows: Sequence[Sequence[float | None]], width: int) -> NDArray[np.float64]:
    table = np.full((len(rows), width), np.nan)
    for number, row in enumerate(rows):
        table[number, : len(row)] = [np.nan if value is None else value for value in row]
    return table
