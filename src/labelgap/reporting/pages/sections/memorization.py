"""The sections of a page on what a network learned about missing labels, and on the labels that a method modified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from labelgap.core.text import join_names
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT
from labelgap.reporting.analysis.memorization import LabelLosses, label_losses, memorization_by_label
from labelgap.reporting.analysis.modified_labels import ModifiedLabels, modified_labels_from_run
from labelgap.reporting.figure_data import stack_columns
from labelgap.reporting.figures.memorization import memorization_panels, single_label_panels
from labelgap.reporting.figures.modified_labels import modified_label_panels
from labelgap.reporting.formatting import NO_VALUE, format_count, format_measure, single_line
from labelgap.reporting.html import FigureRenderer
from labelgap.training import Run

_KINDS: Final = {
    "TP": "observed present (true positive)",
    "FN": "unknown, truly present (false negative)",
    "TN": "unknown, truly absent (true negative)",
    "present": "observed present",
    "absent": "observed absent",
    "unknown": "unknown",
}
_RUN_COLUMNS: Final = ["label", "recorded", "mean loss, epoch 1", "last epoch", "highest in epoch 1"]
_STUDY_COLUMNS: Final = ["highest in epoch 1", "TP", "FN", "TN"]
_STATES: Final = {PRESENT: "present", ABSENT: "absent"}


def memorization_section(runs: Mapping[str, Run], data: Dataset | None, figures: FigureRenderer) -> dict[str, Any]:
    """Return figures and tables of the losses of labels by kind, and of the labels that methods modified.

    A page of one run also has the losses of single labels. Where the truth is not known, the losses are of the labels
    as observed.

    Args:
        runs: by label.
        data: that they were trained on; pseudo-labels and sampled traces need it.
        figures: of the page.
    """
    kinds = {label: label_losses(run.trace) for label, run in runs.items()}
    unseen = {label: found for label, found in kinds.items() if not found.keys().isdisjoint(("TN", "FN", "unknown"))}
    single = next(iter(unseen.values())) if len(runs) == len(unseen) == 1 else None
    columns, rows = (_STUDY_COLUMNS, _study_rows(unseen)) if single is None else (_RUN_COLUMNS, _run_rows(single))
    return {
        "memorization": _means(kinds, figures),
        "losses_known": any("unknown" not in found for found in unseen.values()),
        "losses_recorded": bool(unseen),
        "losses_off": not unseen and _has_unknown(data) and all(_could_trace(run) for run in runs.values()),
        "single_labels": None
        if single is None
        else _single_labels(single, next(iter(runs.values())).config.classes, figures),
        "loss_columns": columns,
        "loss_rows": rows,
        "modified": _modified(runs, data, figures),
    }


def _has_unknown(data: Dataset | None) -> bool:
    return data is not None and not data.train.labels.complete


def _could_trace(run: Run) -> bool:
    """Whether a run recorded no label though it could have."""
    return run.config.trace == "off" and run.config.optimizer != "newton" and not run.config.folds


def _means(kinds: Mapping[str, Mapping[str, LabelLosses]], figures: FigureRenderer) -> Any:
    found = memorization_by_label(kinds)
    if not found:
        return None
    ends = "; ".join(
        f"{label}: false negatives {_ends(values.false_negative)}, true negatives {_ends(values.true_negative)}"
        for label, values in found.items()
    )
    return figures.render(
        lambda width: memorization_panels(found, width=width),
        f"Mean loss in the first and the last epoch. {ends}.",
        name="memorization",
        data=stack_columns(
            "run",
            {
                label: {
                    "epoch": np.arange(1, values.epochs + 1),
                    "false_negative_loss": values.false_negative.mean,
                    "true_negative_loss": values.true_negative.mean,
                }
                for label, values in found.items()
            },
        ),
    )


def _ends(losses: LabelLosses) -> str:
    return f"{losses.mean[0]:.2f} to {losses.mean[-1]:.2f}"


def _single_labels(kinds: Mapping[str, LabelLosses], classes: Sequence[str], figures: FigureRenderer) -> Any:
    """Draw unknown labels by their truth, or observed present beside unknown ones where that is not known."""
    names = ("FN", "TN") if "unknown" not in kinds else ("present", "unknown")
    shown = {_KINDS[name].partition(" (")[0]: kinds[name] for name in names if name in kinds}
    counts = ", ".join(f"{losses.single.shape[1]} {name}" for name, losses in shown.items())
    return figures.render(
        lambda width: single_label_panels(shown, width=width),
        f"Loss of single labels per epoch: {counts}.",
        name="single-labels",
        data=stack_columns("kind", {name: _single_columns(losses, classes) for name, losses in shown.items()}),
    )


def _single_columns(losses: LabelLosses, classes: Sequence[str]) -> dict[str, Any]:
    """Return a row for every single label and epoch; the image is its row number in the training set."""
    epochs, labels = losses.single.shape
    return {
        "image": np.repeat(losses.row, epochs),
        "class": [classes[column] for column in losses.column for _ in range(epochs)],
        "epoch": np.tile(np.arange(1, epochs + 1), labels),
        "loss": losses.single.T.ravel(),
    }


def _run_rows(kinds: Mapping[str, LabelLosses]) -> list[tuple[str, list[str]]]:
    return [
        (
            text,
            [
                format_count(kinds[name].count),
                *(f"{value:.3f}" if value == value else NO_VALUE for value in kinds[name].mean[[0, -1]]),
                format_measure(kinds[name].first_epoch),
            ],
        )
        for name, text in _KINDS.items()
        if name in kinds
    ]


def _study_rows(kinds: Mapping[str, Mapping[str, LabelLosses]]) -> list[tuple[str, list[str]]]:
    return [
        (
            single_line(label),
            [format_measure(found[name].first_epoch if name in found else None) for name in _STUDY_COLUMNS[1:]],
        )
        for label, found in kinds.items()
        if "unknown" not in found
    ]


def _modified(runs: Mapping[str, Run], data: Dataset | None, figures: FigureRenderer) -> list[dict[str, Any]]:
    """Return figure, caption and, of one run, the numbers per epoch, for labels taken as present and as absent."""
    every = {label: modified_labels_from_run(run, data) for label, run in runs.items()}
    parts = []
    for state, name in _STATES.items():
        methods = {label: found[state] for label, found in every.items() if state in found}
        if methods:
            names = join_names([single_line(label) for label in methods])
            figure = figures.render(
                lambda width, methods=methods, name=name: modified_label_panels(methods, name, width=width),  # type: ignore[misc]
                f"Labels modified by {names} per epoch.",
                name=f"modified-labels-{name}",
                data=stack_columns("run", {label: _modified_columns(found) for label, found in methods.items()}),
            )
            rows = _epoch_rows(next(iter(methods.values()))) if len(runs) == 1 else []
            parts.append({"figure": figure, "caption": _caption(methods, name), "rows": rows})
    return parts


def _modified_columns(values: ModifiedLabels) -> dict[str, Any]:
    epochs = len(values.share)
    return {
        "epoch": np.arange(1, epochs + 1),
        **{name: getattr(values, name) for name in ("share", "precision", "recall")},
        "random_precision": [values.base_rate] * epochs,
    }


def _caption(methods: Mapping[str, ModifiedLabels], state: str) -> str:
    names = join_names([single_line(label) for label in methods])
    text = f"The unknown labels that {names} modified as probably {state}"
    kept = [single_line(label) for label, values in methods.items() if values.accumulated]
    if kept:
        text += ", all of them up to an epoch" if len(kept) == len(methods) else f" ({join_names(kept)}: all so far)"
    recall = f"how many of the truly {state} unknown labels are among them (recall)"
    if any(np.isfinite(values.precision).any() for values in methods.values()):
        random = "The dashed line is the precision of modifying at random."
        return f"{text}; how many of those are truly {state} (precision); and {recall}. {random}"
    if any(np.isfinite(values.recall).any() for values in methods.values()):
        return f"{text}: {recall}. Only some labels were recorded: the rest needs the data set, see `labelgap report`."
    return f"{text}. How many of them are truly {state} is not known here."


def _epoch_rows(values: ModifiedLabels) -> list[tuple[str, list[str]]]:
    return [
        (str(epoch), [format_measure(float(value)) for value in measured])
        for epoch, measured in enumerate(zip(values.share, values.precision, values.recall, strict=True), start=1)
    ]
