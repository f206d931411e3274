"""A study: its page, its table, the test mAP of its runs, and a summary figure for a README or a talk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from labelgap.core.errors import RunError
from labelgap.core.text import join_names
from labelgap.data.dataset import Dataset
from labelgap.reporting import style
from labelgap.reporting.descriptions import describe_data, describe_method_choice, describe_settings
from labelgap.reporting.formatting import (
    NO_VALUE,
    SELECTION_RULES,
    ResultRow,
    ResultTable,
    format_class_count,
    format_elapsed,
    format_measure,
    single_line,
    truncate_label,
)
from labelgap.reporting.page import REPORT_FILE, FigureRenderer, render_template
from labelgap.reporting.sections import memorization
from labelgap.reporting.sections.curves import epoch_scores_section
from labelgap.reporting.sections.examples import disagreements_section
from labelgap.reporting.sections.label_scores import label_scores_section
from labelgap.reporting.sections.localization import localization_section
from labelgap.reporting.sections.modified_labels import modified_labels_section
from labelgap.reporting.sections.parameter_effects import parameter_effects_section
from labelgap.studies import Study
from labelgap.training import Run
from labelgap.training.history import describe_estimated

STUDY_COLUMNS: Final = ("test mAP", "F1 micro", "F1 macro", "classes", "epoch kept", "time")
"""The headers, after the label."""


@dataclass(frozen=True)
class StudyRow:
    """One run of a study in its table."""

    label: str
    folder: str  # of its run, relative to the study's
    extra_labels: bool  # whether it saw labels that were hidden from the others
    best: bool  # whether its test mAP is the highest of the runs that saw the same labels
    finished: bool
    map: float | None  # test mAP from 0 to 1; None if the known labels support none
    classes_counted: int | None  # how many classes the means are over; None without a test split
    classes: int  # how many there are
    estimate: str  # where there is no test mAP, what is estimated, in words; empty if nothing is
    cells: tuple[str, ...]  # under STUDY_COLUMNS; a dash where there is no number


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
    counts = [(row.classes_counted, row.classes) for row in rows]
    notes = []
    if any(not row.finished for row in rows):
        notes.append(f"{NO_VALUE} The run is not finished.")
    if any(row.finished and row.classes_counted is None for row in rows):
        notes.append(f"{NO_VALUE} There is no test split, so nothing was measured on one.")
    if any(counted == 0 for counted, _ in counts):
        notes.append(
            f"{NO_VALUE} The known labels support no number: no class has both a known present and a known absent "
            "on the test images."
        )
    notes += [f"{single_line(row.label)}: estimated mAP {row.estimate}." for row in rows if row.estimate]
    if len({counted for counted, _ in counts if counted}) > 1:
        notes.append("The means are not over the same classes and must not be compared.")
    if any(counted and counted < classes for counted, classes in counts):
        notes.append("A class counts where both a present and an absent label are known on the test images.")
    return notes


def study_table(study: Study) -> Table:
    """Return the table of a study for the terminal."""
    rows = study_rows(study)
    extra = join_names([single_line(row.label) for row in rows if row.extra_labels])
    notes = [f"{extra}: saw labels that were hidden from the others."] if extra else []
    return ResultTable(study.title, STUDY_COLUMNS, _result_rows(rows), [*notes, *study_notes(rows)]).for_terminal()


def _result_rows(rows: Sequence[StudyRow]) -> list[ResultRow]:
    return [ResultRow(row.label, row.cells, row.best, row.extra_labels) for row in rows]


def method_map_figure(rows: Sequence[StudyRow], *, width: float = style.WIDE) -> Figure:
    """Draw the test mAP of methods as dots, and of runs that saw more labels than the others as lines."""
    count = sum(not row.extra_labels for row in rows)
    figure, (axis,) = style.make_figure(width=width, height=0.95 + 0.36 * max(count, 1))
    draw_method_map(axis, rows, 24 if width > style.NARROW else 16)
    return figure


def draw_method_map(axis: Axes, rows: Sequence[StudyRow], length: int) -> None:
    """Draw into given axes; names are truncated to ``length``."""
    shown, limits = (
        {row.label: 100 * row.map for row in rows if row.map is not None and row.extra_labels is more}
        for more in (False, True)
    )
    values, places = list(shown.values()), np.arange(len(shown))
    everything = [*values, *limits.values()] or [0.0, 100.0]
    low, high = min(everything), max(everything)
    pad = max(0.12 * (high - low), 1.0)
    axis.set_xlim(max(low - 2 * pad, 0), min(high + 2 * pad, max(high, 100) + 0.3 * pad))
    axis.hlines(places, axis.get_xlim()[0], values, color=style.GRID_COLOR, linewidth=1.2)
    style.draw_line(axis, values, places, style.BLUE, linestyle="none", linewidth=1.5, markersize=9)
    for place, value in enumerate(values):
        style.draw_value(axis, f"{value:.1f}", value, place)
    for number, (name, value) in enumerate(limits.items()):
        axis.axvline(value, color=style.TEXT_COLOR, linewidth=1.4, linestyle=(0, (5, 3)))
        axis.annotate(
            f"{truncate_label(name, length)} {value:.1f}",
            (value, 1.0),
            (0, 5 + 14 * number),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if value > sum(axis.get_xlim()) / 2 else "left",
            va="bottom",
            color=style.TEXT_COLOR,
            fontsize=11,
            parse_math=False,
        )
    style.set_rows(axis, places, [truncate_label(name, length) for name in shown], 12)
    axis.grid(False)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axis.set_xlabel("test mAP")


def study_figure(study: Study) -> Figure:
    """Draw the memorization of every method in a panel of its own, and below them the test mAP.

    Save it with ``study_figure(study).savefig("demo.png", dpi=200)``; the background is white.
    """
    rows = study_rows(study)
    names = [row.label for row in rows if not row.extra_labels]
    panels = memorization.memorization_by_label(
        {member.label: memorization.label_losses(run.trace) for member, run in study.runs if not member.extra_labels}
    )
    if not panels and all(row.map is None for row in rows):
        raise RunError(f"{study.path} holds nothing to draw: no traces with known truth, and no test mAP.")
    longest = max((len(truncate_label(label)) for label in names), default=0)
    sides = {"left": 0.05 + 0.0115 * max(longest, 3), "right": 0.965}
    above, below = (4.3 if panels else 0.7), 1.15 + 0.38 * len(names)
    height = above + below
    figure = Figure(figsize=(10, height), facecolor="white")
    title, bold = truncate_label(study.title, 80), {"fontsize": 17, "fontweight": "bold", "color": style.TEXT_COLOR}
    figure.text(0.03, 1 - 0.3 / height, title, va="top", **bold)  # type: ignore[arg-type]
    if panels:
        top, bottom = 1 - 1.5 / height, (below + 0.5) / height
        grid = figure.add_gridspec(1, len(panels), top=top, bottom=bottom, wspace=0.16, **sides)
        for place, (label, losses) in enumerate(panels.items()):
            axis = figure.add_subplot(grid[place])
            style.style_axes(axis)
            memorization.draw_memorization(axis, losses)
            axis.set_title(truncate_label(label, 20), loc="left", fontsize=13, fontweight="bold", parse_math=False)
            axis.set_xlabel("epoch")
            axis.set_ylabel("mean training loss" if place == 0 else "")
        memorization.set_memorization_limits(figure.axes, panels.values(), len(panels))
        style.add_legend(figure, *memorization.memorization_legend(), columns=2, position=(0.022, 1 - 0.72 / height))
    grid = figure.add_gridspec(1, 1, top=(below - 0.5) / height, bottom=0.6 / height, **sides)
    axis = figure.add_subplot(grid[0])
    style.style_axes(axis)
    draw_method_map(axis, rows, 28)
    return figure


def study_page(study: Study, data: Dataset | None, figures: FigureRenderer, *, images: bool) -> Markup:
    """Return the page; ``data`` adds unseen scores and, where ``images`` may be in it, examples."""
    rows = study_rows(study)
    runs = {member.label: run for member, run in study.runs}
    competitors = {member.label: run for member, run in study.runs if not member.extra_labels}
    rules = {run.config.select for run in runs.values()}
    names = {single_line(str(run.config.data.get("name", ""))) for run in runs.values()} - {""}
    shared, different = _settings(runs)
    measured, figure = any(row.map is not None for row in rows), None
    if measured:
        figure = figures.render(
            lambda width: method_map_figure(rows, width=width),
            f"Test mAP: {'; '.join(f'{row.label} {row.cells[0]}' for row in rows)}.",
            name="test-map",
            data={
                "run": [row.label for row in rows],
                "extra_labels": [row.extra_labels for row in rows],
                "map": [row.map for row in rows],
            },
        )
    return render_template(
        "pages/study.html",
        title=study.title,
        run_count=len(runs),
        data_names=join_names(sorted(names)),
        finding=_finding({label: run.config.method for label, run in runs.items()}, rows),
        figure=figure,
        measured=measured,
        extra_labels=join_names([row.label for row in rows if row.extra_labels]),
        columns=STUDY_COLUMNS,
        rows=_result_rows(rows),
        links={row.label: _report_address(study, row) for row in rows},
        notes=study_notes(rows),
        selection=SELECTION_RULES[rules.pop()] if len(rules) == 1 else "",
        sections=[
            parameter_effects_section(study, figures),
            epoch_scores_section(study, figures),
            memorization.memorization_section(runs, data, figures),
            modified_labels_section(runs, data, figures),
            label_scores_section(runs, data, figures),
            localization_section(runs, data, figures, images=images),
            disagreements_section(competitors, data if images else None),
        ],
        methods=[(label, describe_method_choice(run.config)) for label, run in runs.items()],
        shared=shared,
        different=different,
        has_images=images and data is not None,
    )


def _finding(methods: Mapping[str, str], rows: Sequence[StudyRow]) -> str:
    """Return what missing labels cost and what the best method recovers, where the study shows both."""
    upper = [row.map for row in rows if row.extra_labels and row.map is not None]
    lower = [row for row in rows if not row.extra_labels and methods[row.label] == "an" and row.map is not None]
    best = next((row for row in rows if row.best), None)
    if len(upper) != 1 or len(lower) != 1 or best is None or len({row.classes_counted for row in rows}) != 1:
        return ""
    lowest, highest = lower[0].map or 0.0, best.map or 0.0
    if upper[0] <= lowest:
        return ""
    cost = f"Taking every unknown label as absent costs {100 * (upper[0] - lowest):.1f} points of mAP here"
    if highest <= lowest:
        return f"{cost}, and no method of this study recovers any of them."
    return f"{cost}; {best.label} recovers {100 * (highest - lowest):.1f} of them."


def _report_address(study: Study, row: StudyRow) -> str:
    """Return the relative URL of a run's report, or nothing if it has none."""
    if not (study.path / row.folder / REPORT_FILE).is_file():
        return ""
    return quote(f"{row.folder}/{REPORT_FILE}".replace("\\", "/"), safe="/")


def _settings(runs: Mapping[str, Run]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Separate the settings that all runs share from those that differ."""
    each = [dict([*describe_data(run.config), *describe_settings(run.config)]) for run in runs.values()]
    names = dict.fromkeys(name for settings in each for name in settings if name not in ("method", "options"))
    shared, different = [], []
    for name in names:
        values = [settings.get(name, "not given") for settings in each]
        if len(set(values)) == 1:
            shared.append((name, values[0]))
        else:
            pairs = zip(runs, values, strict=True)
            different.append((name, "; ".join(f"{label}: {value}" for label, value in pairs)))
    return shared, different
