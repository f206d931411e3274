"""The effect of a hyperparameter: score of val, test mAP and best epoch against its values (Kim et al. 2022, figure 5).

Where other settings differ as well, each value is shown with those that are best on val: test chooses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from labelgap.losses import method_options
from labelgap.reporting import style
from labelgap.reporting.descriptions import find_method
from labelgap.reporting.formatting import format_spread, truncate_label, val_score_name
from labelgap.reporting.page import Page, render_template
from labelgap.studies import Study
from labelgap.studies.compare.results import Comparison
from labelgap.studies.sweep.results import Sweep
from labelgap.training import Run
from labelgap.training.config import RunConfig

MAX_ROWS: Final = 30  # values in the table below a figure; the figure and its numbers have all
LOG_RATIO: Final = 20  # the largest value to the smallest from which an axis is logarithmic
_MAX_VALUES: Final = 8  # values of a parameter that each have a tick
_LETTER: Final = 0.105  # width of a letter of a tick's label, in inches
_IGNORED: Final = ("format", "classes", "why", "options", "seed", "trace", "checkpoint_minutes", "precision", "linear")
"""Of a configuration: what does not tell two runs of a study apart."""


@dataclass(frozen=True, eq=False)
class ParameterEffect:
    """What V values of a hyperparameter do to a method, with S seeds."""

    method: str
    name: str  # of the option or setting
    values: tuple[Any, ...]  # numbers in increasing order, others as they came
    val: NDArray[np.float64]  # (V, S) score of val in the best epoch, 0 to 1; NaN where there is none
    test: NDArray[np.float64]  # (V, S) test mAP of that epoch; NaN where it was not measured
    epoch: NDArray[np.float64]  # (V, S) the best epoch; NaN where there is none
    tried: NDArray[np.int64]  # (V,) how many settings of the others were tried with each value; the best is shown
    val_name: str  # what the score of val is

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


Point = tuple[float | None, float | None, int | None]
Setting = tuple[Mapping[str, Any], list[Point]]
"""Values of the parameters, and with each seed the score of val, the test mAP and the best epoch."""


def parameter_effects(what: Comparison | Sweep | Study) -> list[ParameterEffect]:
    """Return the effect of every hyperparameter that has several values; empty where none has."""
    if isinstance(what, Study):
        return _study_effects([run for member, run in what.runs if not member.extra_labels and run.finished])
    if isinstance(what, Sweep):
        trials: list[Setting] = [(trial.values, [(trial.score, None, trial.epoch)]) for trial in what.ranked]
        names = [parameter.name for parameter in what.space]
        return _effects(what.method, trials, names, val_score_name(what.rule, folds=bool(what.folds)))
    label, effects = val_score_name(what.rule, folds=bool(what.metadata.get("folds"))), list[ParameterEffect]()
    for method in dict.fromkeys(row.method for row in what.methods if row.variant):
        rows = [row for row in what.methods if row.method == method]
        settings: list[Setting] = [
            (row.variant, [(seed.score, (seed.test or {}).get("map"), seed.epoch) for seed in row.seeds])
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
        names = dict.fromkeys(name for each in settings for name in each)
        different = {name for name in names if len({str(each.get(name)) for each in settings}) > 1}
        name, *others = sorted(different - {"backbone_lr"} if "lr" in different else different) or ("",)
        if not name or others or any(isinstance(each.get(name), dict | list) for each in settings):
            continue  # other data, for example, are no value of a setting
        found: dict[str, Setting] = {}
        for each, measured in zip(settings, (run.metrics for run in own), strict=True):
            point = measured.get("score"), (measured.get("test") or {}).get("map"), measured.get("best_epoch")
            found.setdefault(str(each.get(name)), ({name: each.get(name)}, []))[1].append(point)
        label = val_score_name(own[0].config.select, folds=bool(own[0].config.folds))
        effects += _effects(method, [*found.values()], [name], label)
    return effects


def _flatten(config: RunConfig) -> dict[str, Any]:
    """Return settings and options, defaults included; the seeds of drawn labels are left out of the data."""
    stored = config.model_dump(mode="json", exclude=set(_IGNORED))
    for step in stored["data"].get("steps", ()):
        for arguments in step.values():
            arguments.pop("seed", None)
    options = method_options(config.method) if find_method(config.method) is not None else {}
    return {**stored, **options, **config.options}


def _effects(method: str, settings: Sequence[Setting], names: Iterable[str], val_name: str) -> list[ParameterEffect]:
    """Return the effect of every name with several values, each value at its best setting on val."""

    def mean_score(points: Sequence[Point]) -> float:
        known = [score for score, _, _ in points if score is not None]
        return float(np.mean(known)) if known else -1.0

    effects = []
    for name in names:
        groups: dict[Any, list[Any]] = {}
        for values, points in settings:
            if values.get(name) is not None:
                groups.setdefault(values[name], []).append(points)
        if len(groups) < 2:
            continue
        numbers = all(isinstance(value, int | float) for value in groups)
        groups = {value: groups[value] for value in (sorted(groups) if numbers else groups)}
        best = [max(group, key=mean_score) for group in groups.values()]
        table = np.full((3, len(best), max(map(len, best))), np.nan)
        for place, points in enumerate(best):
            table[:, place, : len(points)] = np.array(points, dtype=np.float64).T  # None becomes NaN
        tried = np.array([len(group) for group in groups.values()])
        val, test, epoch = table
        effects.append(ParameterEffect(method, name, tuple(groups), val, test, epoch, tried, val_name))
    return effects


def parameter_effect_figure(effect: ParameterEffect, *, width: float = style.WIDE) -> Figure:
    """Draw the score of val and the test mAP against the values of a parameter, and beside them the best epoch."""
    figure, axes, _ = style.make_panels(2, width=width, each=2.6, extra=0.4)
    places = np.array(effect.values, dtype=np.float64) if effect.numeric else np.arange(len(effect.values), dtype=float)
    connected = len(places) <= _MAX_VALUES or bool((effect.tried == 1).all() and len(places) <= 3 * _MAX_VALUES)
    dash = "-" if connected else "none"
    shown = ((effect.val_name, effect.val, style.BLUE, "o"), ("test mAP", effect.test, style.VERMILLION, "s"))
    for label, table, color, marker in shown:
        if np.isfinite(table).any():
            style.draw_spread(axes[0], places, 100 * table, color, marker, dash, label)
    style.draw_spread(axes[1], places, effect.epoch, style.GREEN, "^", dash)
    axes[0].set_title("mAP" if effect.val_name.endswith("mAP") else "score", loc="left")
    axes[1].set_title("best epoch", loc="left")
    axes[1].yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes[1].set_ylim(bottom=0)
    for axis in axes:
        _value_axis(axis, effect, places)
    style.add_legend(figure, columns=2)
    return figure


def _value_axis(axis: Axes, effect: ParameterEffect, places: NDArray[np.float64]) -> None:
    axis.set_xlabel(truncate_label(effect.name.replace("_", " ")))
    log = bool(effect.numeric and places.min() > 0 and places.max() >= LOG_RATIO * places.min())
    if log:
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
    if len(places) <= _MAX_VALUES:
        axis.xaxis.set_major_locator(FixedLocator(places.tolist()))
        _label_values(axis, effect, places, np.log(places) if log else places)
    elif not log:
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6))


def _label_values(axis: Axes, effect: ParameterEffect, places: NDArray[Any], along: NDArray[Any]) -> None:
    """Label places, ``along`` on a linear scale: numbers that have no room are left out, names are turned."""
    inches = axis.get_figure(root=True).get_figwidth() * axis.get_position().width  # type: ignore[union-attr]
    centers = inches * (along - along.min()) / max(float(np.ptp(along)), 1e-12)
    if not effect.numeric:
        labels = [truncate_label(str(value), 14) for value in effect.values]
        crowded = len(labels) > 1 and _LETTER * (max(map(len, labels)) + 1) > inches / (len(labels) - 1)
        turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axis.set_xticks(places, labels, parse_math=False, **turned)
        return
    texts = [f"{value:g}" if len(f"{value:g}") <= 6 else f"{value:.2g}" for value in places]
    shown, end = [], -np.inf
    for text, center in zip(texts, centers, strict=True):
        half = _LETTER * len(text) / 2
        fits = center - half > end
        shown.append(text if fits else "")
        end = center + half + _LETTER if fits else end
    axis.set_xticks(places, shown, parse_math=False)


def figure_name(*parts: str) -> str:
    """Return a name for the files of a figure: ``effect-ll-ct-delta-rel``."""
    return "-".join(re.findall("[a-z0-9]+", " ".join(parts).lower()))


def parameter_effects_section(what: Comparison | Sweep | Study, page: Page) -> Markup:
    """Return the figure and the table of every hyperparameter that has several values."""
    effects = [_effect(effect, page) for effect in parameter_effects(what)]
    return render_template("sections/parameter_effects.html", effects=effects)


def _effect(effect: ParameterEffect, page: Page) -> dict[str, Any]:
    texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in effect.values]
    tested, several = bool(np.isfinite(effect.test).any()), bool((effect.tried > 1).any())
    cells = {
        effect.val_name: [format_spread(100 * row) for row in effect.val],
        **({"test mAP": [format_spread(100 * row) for row in effect.test]} if tested else {}),
        "best epoch": [format_spread(row, int(np.isfinite(row).sum() > 1)) for row in effect.epoch],
        **({"settings tried": effect.tried.tolist()} if several else {}),
    }
    shown = "; ".join(f"{text}: {cell}" for text, cell in zip(texts, cells[effect.val_name], strict=True))
    columns = {
        effect.name: np.array(effect.values, dtype=object)[:, None],
        "seed": np.arange(effect.val.shape[1]),
        **{name: getattr(effect, name) for name in ("val", "test", "epoch")},
        "settings_tried": effect.tried[:, None],
    }
    description = f"{effect.val_name} against {effect.name} of {effect.method}. {shown}."
    name = figure_name("effect", effect.method, effect.name)
    return {
        "effect": effect,
        "figure": page.figure(name, description, columns, parameter_effect_figure, effect),
        "several": several,
        "tested": tested,
        "columns": ["", *cells],
        "rows": list(zip(texts, zip(*cells.values(), strict=True), strict=True))[:MAX_ROWS],
    }
