"""Curves over epochs: loss and score of val of a run, and val after each epoch of several trainings (Zhou et al. 2022,
figure 3). Test is measured once, in the epoch that val chose, so that nobody chooses by it.
"""

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
from labelgap.reporting.page import FigureRenderer, ResponsiveFigure, render_template, stack_columns, table_columns
from labelgap.studies import Study
from labelgap.studies.compare.results import Comparison
from labelgap.training import Run
from labelgap.training.history import trained_epochs

MAX_CURVES: Final = 12  # curves in one figure; of more, those with the highest scores are drawn
MAX_BANDS: Final = 4  # curves with a band for their seeds; of more, bands would cover each other


def selection_score_name(rule: str, counted: int | None = None, classes: int | None = None) -> str:
    """Say what the score of an epoch is under a selection rule; only a measured one is called mAP."""
    if rule == "observed":
        return "observed ranking (not an accuracy)"
    return "val mAP" if counted == classes else f"val mAP, {counted} of {classes} classes"


def learning_curves(
    loss: ArrayLike,
    score: ArrayLike | None = None,
    *,
    rule: str = "val mAP",
    chosen: int | None = None,
    first: int = 1,
    width: float = style.WIDE,
) -> Figure:
    """Draw the training loss ``(E,)``, and the score that epochs are chosen by, 0 to 1, per epoch.

    There is no score when the last epoch is kept unseen; ``rule`` is its name. The epoch that was kept is marked. The
    first one is 0 where it is the linear head before the training, which has no loss.
    """
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
    """Draw one curve with the chosen epoch marked on it, the mark's label where the curve is not."""
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


def render_learning_curves(run: Run, figures: FigureRenderer) -> ResponsiveFigure | None:
    """Render the learning curves of a run; None before its first epoch."""
    history, config = run.history, run.config
    if not history:
        return None
    loss, scores = (np.array([record.get(name) for record in history], dtype=np.float64) for name in ("loss", "score"))
    scored = config.select != "last" and bool(np.isfinite(scores).any())
    counted = [record["classes_counted"] for record in history if record.get("classes_counted") is not None]
    rule = selection_score_name(config.select, max(counted, default=None), len(config.classes)) if scored else ""
    chosen, first = run.metrics.get("best_epoch"), history[0]["epoch"]
    return figures.render(
        lambda width: learning_curves(
            loss, scores if scored else None, rule=rule, chosen=chosen, first=first, width=width
        ),
        f"Training loss{' and ' + rule if scored else ''} over {pluralize(trained_epochs(history), 'epoch')}.",
        name="learning-curves",
        data={"epoch": [record["epoch"] for record in history], "loss": loss, "score": scores},
    )


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
    """Return the score of val after each epoch, by label; trainings that were not scored by val are left out.

    Of a comparison every method has its selected setting.
    """
    found: dict[str, EpochScores | None] = {}
    if isinstance(what, Comparison):
        for row in what.methods:
            tests = [(seed.test or {}).get("map") for seed in row.seeds]
            series, best = [seed.scores for seed in row.seeds], [seed.epoch for seed in row.seeds]
            found[row.name] = scores_of_seeds(series, best, tests, val_score_name(what.rule))
    else:
        for label, run in (
            [(member.label, run) for member, run in what.runs] if isinstance(what, Study) else what.items()
        ):
            records = [record for record in run.history if record.get("score") is not None]
            if records and run.finished:
                test, name = (run.metrics.get("test") or {}).get("map"), val_score_name(run.config.select)
                best, scores = [run.metrics["best_epoch"]], [record["score"] for record in records]
                found[label] = scores_of_seeds([scores], best, [test], name, records[0]["epoch"])
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
    """Draw the score of val after each epoch, the mean over seeds, with a mark at the epoch that was kept.

    A band is the range of the seeds, where there are few curves. Of more than ``MAX_CURVES`` those with the highest
    scores are drawn.
    """
    narrow = width <= style.NARROW
    highest = sorted(curves, key=lambda label: -float(np.nanmax(curves[label].mean)))[:MAX_CURVES]
    shown = [label for label in curves if label in highest]
    figure, (axis,) = style.make_figure(width=width, height=3.6 + (0.22 if narrow else 0.1) * len(shown))
    lines, drawn = [], list[NDArray[np.float64]]()
    edge: dict[str, Any] = {"markeredgecolor": style.BACKGROUND_COLOR}
    for number, label in enumerate(shown):
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
        lines.append(Line2D([], [], color=color, linestyle=dash, marker=marker, **edge))
    first = min(values.first for values in curves.values())
    style.set_epoch_axis(axis, max(int(values.epochs[-1]) for values in curves.values()), first)
    axis.set_title(", ".join(dict.fromkeys(values.name for values in curves.values())), loc="left")
    axis.set_xlabel("epoch")
    _clip_low(axis, drawn)
    style.add_legend(figure, lines, style.fit_names(shown, width, 24, 36))
    return figure


def _clip_low(axis: Axes, curves: list[NDArray[np.float64]]) -> None:
    """Begin the axis at the lower quarter of the last scores' range below them: the first epochs may be far lower."""
    ends = [float(curve[np.isfinite(curve)][-1]) for curve in curves]
    tops = [float(np.nanmax(curve)) for curve in curves]
    low, high = min([*ends, *tops]), max(tops)
    everything = min(float(np.nanmin(curve)) for curve in curves)
    reach = max(high - low, 1.0)
    axis.set_ylim(bottom=max(everything - 0.1 * reach, low - 1.5 * reach), top=high + 0.15 * reach)


def epoch_scores_section(what: Comparison | Study, figures: FigureRenderer) -> Markup:
    """Return the figure of val after each epoch, where two or more trainings were scored by val."""
    curves = epoch_scores(what)
    if len(curves) < 2:
        return Markup("")
    return render_epoch_scores(curves, figures, "epoch-scores", "Epoch by epoch")


def render_epoch_scores(
    curves: Mapping[str, EpochScores], figures: FigureRenderer, name: str, title: str, level: int = 2
) -> Markup:
    """Return the figure of val after each epoch, named ``name``, with a title and a caption."""
    best = "; ".join(
        f"{label} {100 * float(np.nanmax(values.mean)):.1f} in epoch "
        f"{', '.join(map(str, dict.fromkeys(values.best.tolist())))}"
        for label, values in curves.items()
    )
    kept = {label: values.epochs == values.best[:, None] for label, values in curves.items()}
    columns = {
        label: table_columns(
            seed=np.arange(len(values.scores))[:, None],
            epoch=values.epochs,
            score=values.scores,
            kept=kept[label],
            test_map=np.where(kept[label], values.test[:, None], np.nan),
        )
        for label, values in curves.items()
    }
    figure = figures.render(
        lambda width: epoch_scores_figure(curves, width=width),
        f"Score of val after each epoch. The highest: {best}.",
        name=name,
        data=stack_columns("training", columns),
    )
    return render_template(
        "sections/epoch_scores.html",
        title=title,
        level=level,
        figure=figure,
        count=len(curves),
        seeds=max(len(values.scores) for values in curves.values()),
        max_curves=MAX_CURVES,
        max_bands=MAX_BANDS,
    )
