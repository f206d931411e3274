"""The table of a study, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from labelgap.core.text import join_names
from labelgap.reporting.formatting import NO_VALUE, format_class_count, format_elapsed, format_measure, single_line
from labelgap.reporting.tables.terminal import terminal_table
from labelgap.studies import Study
from labelgap.training.history import describe_estimated

STUDY_COLUMNS = ("test mAP", "F1 micro", "F1 macro", "classes", "epoch kept", "time")
"""The headers, after the label."""


@dataclass(frozen=True)
class StudyRow:
    """One run of a study in its table.

    Attributes:
        label: its name.
        folder: of its run, relative to the study's.
        extra_labels: whether it saw labels that were hidden from the others.
        best: whether its test mAP is the highest of the runs that saw the same labels.
        finished: whether the run is finished.
        map: test mAP from 0 to 1; None if the known labels support none.
        classes_counted: how many classes the means are over; None without a test split.
        classes: how many there are.
        estimate: where there is no test mAP, what is estimated, in words; empty if nothing is.
        cells: under ``STUDY_COLUMNS``; a dash where there is no number.
    """

    label: str
    folder: str
    extra_labels: bool
    best: bool
    finished: bool
    map: float | None
    classes_counted: int | None
    classes: int
    estimate: str
    cells: tuple[str, ...]


def study_rows(study: Study) -> list[StudyRow]:
    """Return the rows of a study in its order; runs that saw more labels come last."""
    runs = sorted(study.runs, key=lambda pair: pair[0].extra_labels)
    tests = [run.metrics.get("test") or {} for _, run in runs]
    measured = [test.get("map") for (member, _), test in zip(runs, tests, strict=True) if not member.extra_labels]
    highest = max((value for value in measured if value is not None), default=None)
    rows = []
    for (member, run), test in zip(runs, tests, strict=True):
        value, counted, classes = test.get("map"), test.get("classes_counted"), len(run.config.classes)
        cells = (
            *(format_measure(test.get(key)) for key in ("map", "f1_micro", "f1_macro")),
            format_class_count(counted, classes),
            f"{run.metrics['best_epoch']} of {run.metrics['epochs']}" if run.finished else NO_VALUE,
            format_elapsed(run.metrics.get("seconds")),
        )
        best = not member.extra_labels and value is not None and value == highest
        about = (member.label, member.folder, member.extra_labels, best, run.finished)
        estimate = "" if value is not None else describe_estimated(test) or ""
        rows.append(StudyRow(*about, value, counted, classes, estimate, cells))
    return rows


def study_notes(rows: Sequence[StudyRow]) -> list[str]:
    """Return the notes under the table: what a dash means, and what must not be compared."""
    notes = []
    if any(not row.finished for row in rows):
        notes.append(f"{NO_VALUE} The run is not finished.")
    if any(row.finished and row.classes_counted is None for row in rows):
        notes.append(f"{NO_VALUE} There is no test split, so nothing was measured on one.")
    if any(row.classes_counted == 0 for row in rows):
        notes.append(
            f"{NO_VALUE} The known labels support no number: no class has both a known present and a known absent "
            "on the test images."
        )
    notes += [f"{single_line(row.label)}: estimated mAP {row.estimate}." for row in rows if row.estimate]
    if len({row.classes_counted for row in rows if row.classes_counted}) > 1:
        notes.append("The means are not over the same classes and must not be compared.")
    if any(row.classes_counted and row.classes_counted < row.classes for row in rows):
        notes.append("A class counts where both a present and an absent label are known on the test images.")
    return notes


def study_table(study: Study) -> Table:
    """Return the table of a study for the terminal."""
    rows = study_rows(study)
    extra = join_names([single_line(row.label) for row in rows if row.extra_labels])
    notes = [f"{extra}: saw labels that were hidden from the others."] if extra else []
    cells = [(row.label, row.cells, row.best, row.extra_labels) for row in rows]
    return terminal_table(study.title, STUDY_COLUMNS, cells, [*notes, *study_notes(rows)])
