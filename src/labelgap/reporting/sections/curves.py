"""Curves over epochs: loss and score of val of a run, and of several trainings (Zhou et al. 2022, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from labelgap.core.text import pluralize
from labelgap.reporting import style
from labelgap.reporting.formatting import val_score_name
from labelgap.reporting.page import Page, ResponsiveFigure, render_template, stack_columns
from labelgap.studies import Study
from labelgap.studies.compare.results import Comparison
from labelgap.training import Run
from labelgap.training.history import trained_epochs

MAX_CURVES: Final = 12  # curves in one figure; of more, those with the highest scores are drawn
MAX_BANDS: Final = 4  # curves with a band for their seeds; of more, bands would cover each other


def learning_curves(
    loss: ArrayLike,
    score: ArrayLike | None = None,
    rule: str = "val mAP",
    chosen: int | None = None,
    first: int = 1,
    *,
    width: float = style.WIDE,
) -> Figure:
    """Draw the training loss ``(E,)``, and the score that chooses epochs (``rule``); epoch 0 is the linear head."""
    losses = np.asarray(loss, dtype=np.float64)
    figure, axes, columns = style.make_panels(1 if score is None else 2, width=width, each=2.7)
    low = chosen is None or not losses[chosen - first] > 0.7 * np.nanmax(losses, initial=0.0)
    _curve(axes[0], losses, "training loss", chosen, first, f"epoch {chosen}", top=bool(low))
    axes[0].set_ylim(bottom=min(0.0, float(np.nanmin(losses, initial=0.0))))
    if score is not None:
        scores = 100 * np.asarray(score, dtype=np.float64)
        label = "" if chosen is None else f"epoch {chosen}: {scores[chosen - first]:.1f}"
        _curve(axes[1], scores, rule, chosen, first, label, top=False)
    style.label_panels(axes, columns, "epoch")
    return figure


def _curve(
    axis: Axes, values: NDArray[np.float64], title: str, chosen: int | None, first: int, label: str, top: bool
) -> None:
    axis.plot(np.arange(first, first + len(values)), values, color=style.BLUE, linewidth=2, solid_capstyle="round")
    axis.set_title(title, loc="left")
    style.set_epoch_axis(axis, first + len(values) - 1, first)
    if chosen is not None and np.isfinite(values[chosen - first]):
        axis.axvline(chosen, color=style.MUTED_COLOR, linewidth=0.8, linestyle=style.DASHED, zorder=1)
        style.draw_line(
            axis, [chosen], [values[chosen - first]], style.BLUE, linewidth=1.5, markersize=8, clip_on=False
        )
        right = chosen > 0.6 * len(values)
        axis.annotate(
            label,
            (chosen, 1.0 if top else 0.0),
            xycoords=("data", "axes fraction"),
            xytext=(-6 if right else 6, -2 if top else 4),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top" if top else "bottom",
            color=style.MUTED_COLOR,
            fontsize=11,
        )


def render_learning_curves(run: Run, page: Page) -> ResponsiveFigure | None:
    """Draw the learning curves of a run; None before its first epoch. Only a measured score is called mAP."""
    history, config = run.history, run.config
    if not history:
        return None
    loss, scores = (np.array([record.get(name) for record in history], dtype=np.float64) for name in ("loss", "score"))
    columns = {"epoch": [record["epoch"] for record in history], "loss": loss, "score": scores}
    rule = "observed ranking (not an accuracy)"
    if config.select != "observed":
        counted = max((record.get("classes_counted") or 0 for record in history), default=0)
        rule = "val mAP" if counted == len(config.classes) else f"val mAP, {counted} of {len(config.classes)} classes"
    shown = scores if config.select != "last" and np.isfinite(scores).any() else None
    epochs = f"over {pluralize(trained_epochs(history), 'epoch')}"
    description = f"Training loss {epochs}." if shown is None else f"Training loss and {rule} {epochs}."
    given = loss, shown, rule, run.metrics.get("best_epoch"), history[0]["epoch"]
    return page.figure("learning-curves", description, columns, learning_curves, *given)


@dataclass(frozen=True, eq=False)
class EpochScores:
    """The score of val after each of E epochs of a method, with S seeds."""

    scores: NDArray[np.float64]  # (S, E) from 0 to 1; NaN after the end of a training that stopped early
    best: NDArray[np.int64]  # (S,) the epoch that was kept
    test: NDArray[np.float64]  # (S,) test mAP of that epoch; NaN where it was not measured
    name: str  # what the score is
    first: int = 1  # number of the first epoch; 0 where it is the linear head before the training of a network

    @property
    def epochs(self) -> NDArray[np.int64]:
        """``(E,)`` the numbers of the epochs."""
        return np.arange(self.first, self.first + self.scores.shape[1])

    @property
    def mean(self) -> NDArray[np.float64]:
        """``(E,)`` the mean over the seeds that have trained so far."""
        return np.asarray(np.nanmean(self.scores, axis=0), dtype=np.float64)


def epoch_scores(what: Comparison | Study | Mapping[str, Run]) -> dict[str, EpochScores]:
    """Return the score of val after each epoch, by label; of a comparison every method has its selected setting."""
    found: dict[str, EpochScores | None] = {}
    if isinstance(what, Comparison):
        for row in what.methods:
            tests = [(seed.test or {}).get("map") for seed in row.seeds]
            series, best = [seed.scores for seed in row.seeds], [seed.epoch for seed in row.seeds]
            found[row.name] = scores_of_seeds(series, best, tests, val_score_name(what.rule))
        return {label: scores for label, scores in found.items() if scores is not None}
    runs = {member.label: run for member, run in what.runs} if isinstance(what, Study) else what
    for label, run in runs.items():
        scores = {record["epoch"]: record["score"] for record in run.history if record.get("score") is not None}
        if scores and run.finished:
            test, name = (run.metrics.get("test") or {}).get("map"), val_score_name(run.config.select)
            given = [[*scores.values()]], [run.metrics["best_epoch"]], [test], name, next(iter(scores))
            found[label] = scores_of_seeds(*given)
    return {label: scores for label, scores in found.items() if scores is not None}


def scores_of_seeds(
    scores: Sequence[Sequence[float]], best: Sequence[int], test: Sequence[float | None], name: str, first: int = 1
) -> EpochScores | None:
    """Put the scores of several seeds into a table; None where no epoch was scored."""
    epochs = max(map(len, scores), default=0)
    if not epochs or not all(map(len, scores)):
        return None
    table = np.full((len(scores), epochs), np.nan)
    for seed, values in enumerate(scores):
        table[seed, : len(values)] = values
    return EpochScores(table, np.array(best, dtype=np.int64), np.array(test, dtype=np.float64), name, first)


def epoch_scores_figure(curves: Mapping[str, EpochScores], *, width: float = style.WIDE) -> Figure:
    """Draw the score of val after each epoch, the mean over seeds, of at most ``MAX_CURVES``; the kept is marked."""
    narrow = width <= style.NARROW
    highest = sorted(curves, key=lambda label: -float(np.nanmax(curves[label].mean)))[:MAX_CURVES]
    shown = [label for label in curves if label in highest]
    figure, (axis,) = style.make_figure(width=width, height=3.6 + (0.22 if narrow else 0.1) * len(shown))
    lines, drawn = [], list[NDArray[np.float64]]()
    edge: dict[str, Any] = {"markeredgecolor": style.BACKGROUND_COLOR}
    for number, (label, name) in enumerate(zip(shown, style.fit_names(shown, width, 24, 36), strict=True)):
        values, (color, marker, dash) = curves[label], style.curve_style(number)
        means = 100 * values.mean
        drawn.append(means)
        axis.plot(values.epochs, means, color=color, linewidth=1.8, linestyle=dash)
        if len(values.scores) > 1 and len(shown) <= MAX_BANDS:
            low, high = (100 * limit(values.scores, axis=0) for limit in (np.nanmin, np.nanmax))
            axis.fill_between(values.epochs, low, high, color=color, alpha=0.12, linewidth=0)
            drawn += [low, high]
        kept = int(np.clip(round(float(np.median(values.best))), values.epochs[0], values.epochs[-1]))
        axis.plot([kept], [means[kept - values.first]], marker=marker, markersize=8, color=color, **edge)
        lines.append(Line2D([], [], color=color, linestyle=dash, marker=marker, label=name, **edge))
    first = min(values.first for values in curves.values())
    style.set_epoch_axis(axis, max(int(values.epochs[-1]) for values in curves.values()), first)
    axis.set_title(", ".join(dict.fromkeys(values.name for values in curves.values())), loc="left")
    axis.set_xlabel("epoch")
    _clip_low(axis, drawn)
    style.add_legend(figure, lines=lines)
    return figure


def _clip_low(axis: Axes, curves: list[NDArray[np.float64]]) -> None:
    """Begin the axis at the lower quarter of the last scores' range below them: the first epochs may be far lower."""
    ends = [float(curve[np.isfinite(curve)][-1]) for curve in curves]
    tops = [float(np.nanmax(curve)) for curve in curves]
    low, high = min([*ends, *tops]), max(tops)
    reach, bottom = max(high - low, 1.0), min(float(np.nanmin(curve)) for curve in curves)
    axis.set_ylim(bottom=max(bottom - 0.1 * reach, low - 1.5 * reach), top=high + 0.15 * reach)


def epoch_scores_section(what: Comparison | Study, page: Page) -> Markup:
    """Return the figure of val after each epoch, where two or more trainings were scored by val."""
    curves = epoch_scores(what)
    return render_epoch_scores(curves, page, "epoch-scores", "Epoch by epoch") if len(curves) > 1 else Markup("")


def render_epoch_scores(curves: Mapping[str, EpochScores], page: Page, name: str, title: str, level: int = 2) -> Markup:
    """Return the figure of val after each epoch, named ``name``, with a title and a caption."""
    best = "; ".join(
        f"{label} {100 * float(np.nanmax(values.mean)):.1f} in epoch "
        f"{', '.join(map(str, dict.fromkeys(values.best.tolist())))}"
        for label, values in curves.items()
    )
    columns = {
        label: {
            "seed": np.arange(len(values.scores))[:, None],
            "epoch": values.epochs,
            "score": values.scores,
            "kept": (kept := values.epochs == values.best[:, None]),
            "test_map": np.where(kept, values.test[:, None], np.nan),
        }
        for label, values in curves.items()
    }
    description = f"Score of val after each epoch. The highest: {best}."
    return render_template(
        "sections/epoch_scores.html",
        title=title,
        level=level,
        figure=page.figure(name, description, stack_columns("training", columns), epoch_scores_figure, curves),
        count=len(curves),
        seeds=max(len(values.scores) for values in curves.values()),
        max_curves=MAX_CURVES,
        max_bands=MAX_BANDS,
    )
