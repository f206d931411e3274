"""The table of a study, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from labelgap.reporting.formatting import (
    NO_VALUE,
    format_class_count,
    format_elapsed,
    format_measure,
    join_names,
    single_line,
)
from labelgap.studies import Study, StudyMember
from labelgap.training import Run

__all__ = ["STUDY_COLUMNS", "StudyRow", "study_notes", "study_rows", "study_table"]

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
        map: test mAP from 0 to 1; None when the known labels support none.
        f1_micro: at its thresholds.
        f1_macro: at its thresholds.
        classes_counted: how many classes the means are over; None without a test split.
        classes: how many there are.
        best_epoch: the epoch kept; None while the run is not finished.
        epochs: how many were trained.
        seconds: of training.
    """

    label: str
    folder: str
    extra_labels: bool
    best: bool
    map: float | None
    f1_micro: float | None
    f1_macro: float | None
    classes_counted: int | None
    classes: int
    best_epoch: int | None
    epochs: int | None
    seconds: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells under ``STUDY_COLUMNS``; a dash where there is no number."""
        epoch = NO_VALUE if self.best_epoch is None else f"{self.best_epoch} of {self.epochs}"
        measures = (format_measure(self.map), format_measure(self.f1_micro), format_measure(self.f1_macro))
        known = None if self.classes_counted is None else self.classes
        return (*measures, format_class_count(self.classes_counted, known), epoch, format_elapsed(self.seconds))


def study_rows(study: Study) -> list[StudyRow]:
    """Return the rows of a study in its order, ceilings last."""
    runs = sorted(study.runs, key=lambda pair: pair[0].extra_labels)
    measured = [
        value for member, run in runs if not member.extra_labels and (value := _test(run).get("map")) is not None
    ]
    highest = max(measured, default=None)
    return [_row(member, run, highest) for member, run in runs]


def study_notes(rows: Sequence[StudyRow]) -> list[str]:
    """Return the notes under the table: what a dash means, and what must not be compared."""
    notes = []
    if any(row.best_epoch is None for row in rows):
        notes.append(f"{NO_VALUE} The run is not finished.")
    if any(row.best_epoch is not None and row.classes_counted is None for row in rows):
        notes.append(f"{NO_VALUE} There is no test split, so nothing was measured on one.")
    if any(row.classes_counted == 0 for row in rows):
        notes.append(
            f"{NO_VALUE} The known labels support no number: no class has both a known present and a known absent "
            "on the test images."
        )
    if len({row.classes_counted for row in rows if row.classes_counted}) > 1:
        notes.append("The means are not over the same classes and must not be compared.")
    if any(row.classes_counted and row.classes_counted < row.classes for row in rows):
        notes.append("A class counts where both a present and an absent label are known on the test images.")
    return notes


def study_table(study: Study) -> Table:
    """Return the table of a study for the terminal."""
    rows = study_rows(study)
    ceilings = join_names([single_line(row.label) for row in rows if row.extra_labels])
    apart = [f"{ceilings}: saw labels that were hidden from the others."] if ceilings else []
    table = Table(
        title=escape(single_line(study.title)),
        caption=escape("\n".join([*apart, *study_notes(rows)])) or None,
        title_justify="left",
        caption_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for name in STUDY_COLUMNS:
        table.add_column(name, justify="right")
    for place, row in enumerate(rows):
        last = place + 1 < len(rows) and rows[place + 1].extra_labels and not row.extra_labels
        style = "dim" if row.extra_labels else "bold" if row.best else ""
        table.add_row(Text(single_line(row.label)), *row.cells, style=style, end_section=last)
    return table


def _row(member: StudyMember, run: Run, highest: float | None) -> StudyRow:
    test, summary = _test(run), run.metrics
    value = test.get("map")
    return StudyRow(
        label=member.label,
        folder=member.folder,
        extra_labels=member.extra_labels,
        best=not member.extra_labels and value is not None and value == highest,
        map=value,
        f1_micro=test.get("f1_micro"),
        f1_macro=test.get("f1_macro"),
        classes_counted=test.get("classes_counted"),
        classes=len(run.config.classes),
        best_epoch=summary.get("best_epoch"),
        epochs=summary.get("epochs"),
        seconds=summary.get("seconds"),
    )


def _test(run: Run) -> dict[str, Any]:
    return run.metrics.get("test") or {}
