"""The section on labels of single images as the method of a run changed them over the epochs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.analysis.label_changes import LabelChanges, label_changes
from labelgap.reporting.example_images import thumbnail_data_url
from labelgap.reporting.figures.label_changes import label_change_figure
from labelgap.reporting.formatting import format_count, format_measure, single_line
from labelgap.reporting.html import FigureRenderer
from labelgap.training import Run

_STATES: Final = {PRESENT: "present", ABSENT: "absent", UNKNOWN: "unknown"}


def label_changes_section(run: Run, data: Dataset | None, figures: FigureRenderer, *, images: bool) -> dict[str, Any]:
    """Return some training images with their given, changed and true labels; nothing where no label was changed.

    Args:
        run: one run.
        data: that it was trained on; None leaves the section out.
        figures: of the page.
        images: whether the page may contain the images; their names and labels are in it anyway.
    """
    changes = None if data is None else label_changes(run, data)
    if changes is None:
        return {"label_changes": None}
    images = images and _readable(changes)
    classes, names = changes.split.labels.classes, changes.split.labels.images
    epochs, count = changes.states.shape
    figures.keep(
        lambda width: label_change_figure(changes, images=images, width=width),
        "Labels of single images, as the method changed them over the epochs.",
        name="label-changes",
        data={
            "image": [names[row] for row in np.repeat(changes.rows, epochs).tolist()],
            "class": [classes[column] for column in np.repeat(changes.columns, epochs).tolist()],
            "epoch": np.tile(np.arange(1, epochs + 1), count),
            "observed": [_STATES[state] for state in np.repeat(changes.observed, epochs).tolist()],
            "taken_for": [_STATES[state] if state != UNKNOWN else None for state in changes.states.T.ravel().tolist()],
            "truth": [_STATES[state] for state in np.repeat(changes.truth, epochs).tolist()],
        },
    )
    return {
        "label_changes": {
            "rejected": changes.rejected,
            "total": format_count(changes.total),
            "complete": changes.complete,
            "judged": changes.judged,
            "partly": 0 < changes.judged < changes.total,
            "right": format_measure(changes.right / changes.judged) if changes.judged and changes.complete else "",
            "epochs": epochs,
            "images": [_image(changes, row, images) for row in dict.fromkeys(changes.rows.tolist())],
        }
    }


def _readable(changes: LabelChanges) -> bool:
    """Whether the images can be shown: data of features have none, and a file may be gone."""
    try:
        return bool([thumbnail_data_url(changes.split, row) for row in np.unique(changes.rows).tolist()])
    except (InputError, OSError):
        return False


def _image(changes: LabelChanges, row: int, images: bool) -> dict[str, Any]:
    places = np.flatnonzero(changes.rows == row).tolist()
    return {
        "name": single_line(changes.split.labels.images[row]),
        "thumbnail": thumbnail_data_url(changes.split, row) if images else "",
        "labels": [_label(changes, place) for place in places],
    }


def _label(changes: LabelChanges, place: int) -> dict[str, Any]:
    """Return what a label was taken for and whether rightly: "right", "wrong", "unknown", "missed" or "given"."""
    given, taken, truth = (int(each[place]) for each in (changes.observed, changes.taken_for, changes.truth))
    if given != UNKNOWN:
        outcome, state = "given", given
    elif taken == UNKNOWN:
        outcome, state = "missed", truth
    else:
        outcome, state = "unknown" if truth == UNKNOWN else "right" if taken == truth else "wrong", taken
    return {
        "name": single_line(changes.split.labels.classes[changes.columns[place]]),
        "outcome": outcome,
        "text": _STATES[state],
        "when": _spans_text(changes.states[:, place]),
        "spans": _spans(changes.states[:, place]),
    }


def _spans(states: NDArray[np.int8]) -> list[tuple[int, int]]:
    """Return the first epoch, from 1, and the length of every run of epochs with a changed label."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], states != UNKNOWN, [False]]).astype(np.int8)))
    return [(first + 1, last - first) for first, last in edges.reshape(-1, 2).tolist()]


def _spans_text(states: NDArray[np.int8]) -> str:
    """Return the epochs of a changed label: ``2, 4–6``."""
    return ", ".join(str(first) if length == 1 else f"{first}–{first + length - 1}" for first, length in _spans(states))
