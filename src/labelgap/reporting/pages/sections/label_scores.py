"""The sections of a page on the scores of training labels, and on how separable the scores of a class are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from labelgap.data.dataset import Dataset
from labelgap.metrics.validation import MIN_KNOWN_LABELS
from labelgap.reporting.analysis.label_scores import BINS, LabelKind, LabelScores, label_scores_from_run
from labelgap.reporting.analysis.separability import (
    ClassSeparability,
    UnknownPositives,
    separability_from_trace,
    separability_on_unseen,
    unknown_positives_from_run,
)
from labelgap.reporting.figure_data import Columns, stack_columns
from labelgap.reporting.figures.class_rows import outermost
from labelgap.reporting.figures.label_scores import (
    KIND_NAMES,
    absolute_logit_panels,
    positive_loss_figure,
    probability_panels,
)
from labelgap.reporting.figures.separability import MAX_CLASSES, score_density_figure, unknown_positive_bars
from labelgap.reporting.formatting import NO_VALUE, format_count, format_measure, single_line
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.training import Run

Methods = Mapping[str, Mapping[LabelKind, LabelScores]]
_TRAIN: Final = "train, unknown labels"
_KIND_COLUMNS: Final = ["label", "recorded", "median |logit|, epoch 1", "last epoch", "mean score"]
_METHOD_COLUMNS: Final = ["method", "observed present", "unknown, truly present", "AUC, train", "AUC, unseen"]
_CLASS_COLUMNS: Final = ["class", "present", "absent", "AUC", "overlap"]


def label_scores_section(runs: Mapping[str, Run], data: Dataset | None, figures: FigureRenderer) -> dict[str, Any]:
    """Return figures and tables of the scores of labels.

    A page of one run also has the densities per class, and the share of unknown positives. Where the truth of unknown
    labels is not known, observed positives are shown beside all unknown labels, and nothing is called separable.

    Args:
        runs: by label.
        data: that they were trained on; the scores of unseen images need it.
        figures: of the page.
    """
    methods = {label: found for label, run in runs.items() if (found := label_scores_from_run(run))}
    separable = {label: _separability(run, data) for label, run in runs.items()}
    hidden = {label: found for label, found in methods.items() if found.keys() - {"observed"}}
    section: dict[str, Any] = {"label_scores": None, "class_scores": None}
    if hidden:
        single = next(iter(hidden.values())) if len(runs) == 1 else None
        section["label_scores"] = {
            "known": any("unknown" not in found for found in hidden.values()),
            "epoch": None if single is None else next(iter(single.values())).epoch,
            **_figures(methods, hidden, figures),
            "columns": _METHOD_COLUMNS if single is None else _KIND_COLUMNS,
            "rows": _method_rows(hidden, separable) if single is None else _kind_rows(single),
        }
    if len(runs) == 1:
        ((label, run),) = runs.items()
        section["class_scores"] = _classes(run, data, separable[label], figures)
    return section


def _separability(run: Run, data: Dataset | None) -> dict[str, ClassSeparability]:
    """Return the measures on unseen images and on unknown training labels, those that are supported."""
    unseen = separability_on_unseen(run, data) if run.finished else None
    found = {} if unseen is None else dict([unseen])
    train = separability_from_trace(run.trace, run.config.classes, run.metrics.get("best_epoch"))
    if train is not None:
        found[_TRAIN] = train
    return {name: values for name, values in found.items() if len(values.counted)}


def _figures(methods: Methods, hidden: Methods, figures: FigureRenderer) -> dict[str, ResponsiveFigure | None]:
    """Draw losses of every method, and logits and scores of those that left labels unknown."""
    text = "; ".join(
        f"{label}, {KIND_NAMES[kind]}: absolute logit {values.magnitude[-1, 1]:.1f}, "
        f"score {values.mean_probability:.2f}"
        for label, kinds in hidden.items()
        for kind, values in kinds.items()
    )
    return {
        "loss": _positive_loss(methods, figures),
        "logits": figures.render(
            lambda width: absolute_logit_panels(hidden, width=width),
            f"Median absolute logit in the last epoch, and mean score. {text}.",
            name="absolute-logits",
            data=_stack(hidden, _quartiles),
        ),
        "probabilities": figures.render(
            lambda width: probability_panels(hidden, width=width),
            f"Distribution of the scores. {text}.",
            name="positive-probabilities",
            data=_stack(hidden, lambda values: {"from": np.arange(BINS) / BINS, "share": values.shares}),
        ),
    }


def _positive_loss(methods: Methods, figures: FigureRenderer) -> ResponsiveFigure | None:
    losses = {label: kinds["observed"].loss for label, kinds in methods.items() if "observed" in kinds}
    if not losses:
        return None
    ends = "; ".join(f"{label} {values[0]:.2f} to {values[-1]:.2f}" for label, values in losses.items())
    columns = {label: {"epoch": np.arange(1, len(loss) + 1), "loss": loss} for label, loss in losses.items()}
    return figures.render(
        lambda width: positive_loss_figure(methods, width=width),
        f"Mean loss of the observed positives in the first and the last epoch: {ends}.",
        name="observed-positive-loss",
        data=stack_columns("run", columns),
    )


def _quartiles(values: LabelScores) -> Columns:
    names = ("lower_quartile", "median", "upper_quartile")
    epochs = {"epoch": np.arange(1, len(values.loss) + 1)}
    return epochs | dict(zip(names, values.magnitude.T, strict=True))


def _stack(methods: Methods, columns: Callable[[LabelScores], Columns]) -> Columns:
    """Return the columns of every kind of every method below each other."""
    return stack_columns(
        "run",
        {
            label: stack_columns("kind", {KIND_NAMES[kind]: columns(values) for kind, values in kinds.items()})
            for label, kinds in methods.items()
        },
    )


def _kind_rows(kinds: Mapping[LabelKind, LabelScores]) -> list[tuple[str, list[str]]]:
    return [
        (
            KIND_NAMES[kind],
            [
                format_count(values.count),
                *(_decimals(value) for value in values.magnitude[[0, -1], 1].tolist()),
                _decimals(values.mean_probability),
            ],
        )
        for kind, values in kinds.items()
    ]


def _method_rows(hidden: Methods, separable: Mapping[str, Mapping[str, ClassSeparability]]) -> list[Any]:
    rows = []
    for label, kinds in hidden.items():
        measured = separable[label]
        unseen = next((values for name, values in measured.items() if name != _TRAIN), None)
        means = (None if values is None else values.mean()[0] for values in (measured.get(_TRAIN), unseen))
        shown = (kinds[kind].mean_probability if kind in kinds else None for kind in ("observed", "unknown_present"))
        rows.append((single_line(label), [_decimals(value) for value in (*shown, *means)]))
    return rows


def _classes(
    run: Run, data: Dataset | None, measured: Mapping[str, ClassSeparability], figures: FigureRenderer
) -> dict[str, Any] | None:
    """Return densities and measures per class of a run, and the share of unknown positives, None without either."""
    positives = unknown_positives_from_run(run, data)
    if not measured and positives is None:
        return None
    first_name, first = next(iter(measured.items()), ("", None))
    return {
        "densities": _densities(measured, figures) if measured else None,
        "first": first_name,
        "images": None if first is None else format_count(first.images),
        "means": [(name, *map(_decimals, values.mean()), len(values.counted)) for name, values in measured.items()],
        "minimum": MIN_KNOWN_LABELS,
        "class_count": len(run.config.classes),
        "columns": _CLASS_COLUMNS,
        "rows": [] if first is None else _class_rows(first),
        "positives": None if positives is None else _unknown_positives(positives, data, figures),
    }


def _densities(measured: Mapping[str, ClassSeparability], figures: FigureRenderer) -> ResponsiveFigure:
    means = "; ".join(f"{name}: mean AUC {values.mean()[0]:.2f}" for name, values in measured.items())
    return figures.render(
        lambda width: score_density_figure(measured, width=width),
        f"Densities of the scores of present and absent labels per class. {means}.",
        name="score-densities",
        data=stack_columns("labels", {name: _class_columns(values) for name, values in measured.items()}),
    )


def _class_columns(values: ClassSeparability) -> Columns:
    """Return every class: its counts and measures, and the shares of its labels from each probability on."""
    shares = {
        f"{state}_from_{place / BINS:.2f}": column
        for state, table in (("present", values.present_shares), ("absent", values.absent_shares))
        for place, column in enumerate(table.T)
    }
    counts = {"present": values.present, "absent": values.absent}
    return {"class": values.classes, **counts, "auc": values.auc, "overlap": values.overlap, **shares}


def _class_rows(values: ClassSeparability) -> list[tuple[str, list[str]]]:
    return [
        (
            single_line(values.classes[number]),
            [
                format_count(int(values.present[number])),
                format_count(int(values.absent[number])),
                _decimals(values.auc[number]),
                _decimals(values.overlap[number]),
            ],
        )
        for number in outermost(values.counted[::-1].tolist(), MAX_CLASSES)
    ]


def _unknown_positives(found: UnknownPositives, data: Dataset | None, figures: FigureRenderer) -> dict[str, Any]:
    missing, unknown = int(found.present.sum()), int(found.unknown.sum())
    share = format_measure(missing / unknown)
    figure = figures.render(
        lambda width: unknown_positive_bars(found, width=width),
        f"Unknown labels that are truly present, by class; of all classes {share} percent.",
        name="unknown-positives",
        data={"class": found.classes, "unknown": found.unknown, "truly_present": found.present, "share": found.share},
    )
    partly = data is not None and data.train.labels.counts().total[2] > unknown
    counts = {"missing": format_count(missing), "unknown": format_count(unknown)}
    return {"figure": figure, **counts, "share": share, "partly": partly}


def _decimals(value: float | None) -> str:
    return NO_VALUE if value is None or not np.isfinite(value) else f"{value:.2f}"
