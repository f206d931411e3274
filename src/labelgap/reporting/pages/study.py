"""A study: its page, its table, and the test mAP of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labelgap.core.text import join_names
from labelgap.reporting import style
from labelgap.reporting.descriptions import describe_data, describe_method_choice, describe_settings
from labelgap.reporting.formatting import (
    NO_VALUE,
    SELECTION_RULES,
    ResultRow,
    ResultTable,
    describe_cost,
    format_class_count,
    format_elapsed,
    format_measure,
    single_line,
)
from labelgap.reporting.page import REPORT_FILE, Page, render_template
from labelgap.reporting.sections.curves import epoch_scores_section
from labelgap.reporting.sections.examples import disagreements_section
from labelgap.reporting.sections.label_scores import label_scores_section
from labelgap.reporting.sections.localization import localization_section
from labelgap.reporting.sections.memorization import memorization_section
from labelgap.reporting.sections.modified_labels import modified_labels_section
from labelgap.reporting.sections.parameter_effects import parameter_effects_section
from labelgap.studies import Study, StudyMember
from labelgap.training import Run
from labelgap.training.history import describe_estimated

STUDY_COLUMNS: Final = ("test mAP", "F1 micro", "F1 macro", "classes", "epoch kept", "time")
"""The headers, after the label."""


@dataclass(frozen=True)
class StudyRow:
    """One run of a study in its table."""

    member: StudyMember
    run: Run
    shown: ResultRow  # bold where its test mAP is the highest of the runs that saw the same labels

    @property
    def test(self) -> Mapping[str, Any]:
        """What was measured on test; empty where nothing was."""
        return self.run.metrics.get("test") or {}

    @property
    def map(self) -> float | None:
        """Test mAP from 0 to 1; None if the known labels support none."""
        return self.test.get("map")


def study_rows(study: Study) -> list[StudyRow]:
    """Return the rows of a study in its order; runs that saw more labels come last."""
    runs = sorted(
        ((member, run, run.metrics.get("test") or {}) for member, run in study.runs),
        key=lambda each: each[0].extra_labels,
    )
    highest = max((test.get("map") or 0.0 for member, _, test in runs if not member.extra_labels), default=0.0)
    rows = []
    for member, run, test in runs:
        cells = (
            *(format_measure(test.get(key)) for key in ("map", "f1_micro", "f1_macro")),
            format_class_count(test.get("classes_counted"), len(run.config.classes)),
            f"{run.metrics['best_epoch']} of {run.metrics['epochs']}" if run.finished else NO_VALUE,
            format_elapsed(run.metrics.get("seconds")),
        )
        best = not member.extra_labels and test.get("map") == highest
        rows.append(StudyRow(member, run, ResultRow(member.label, cells, best, member.extra_labels)))
    return rows


def study_notes(rows: Sequence[StudyRow]) -> list[str]:
    """Return the notes under the table: what a dash means, and what must not be compared."""
    counts = [(row.test.get("classes_counted"), len(row.run.config.classes)) for row in rows]
    finished = [row.run.finished for row in rows]
    estimates = {row.member.label: describe_estimated(row.test) for row in rows if row.map is None}
    unsupported = "The known labels support no number: no class has both a known present and a known absent"
    notes = {
        f"{NO_VALUE} The run is not finished.": not all(finished),
        f"{NO_VALUE} There is no test split, so nothing was measured on one.": any(
            done and counted is None for done, (counted, _) in zip(finished, counts, strict=True)
        ),
        f"{NO_VALUE} {unsupported} on the test images.": any(counted == 0 for counted, _ in counts),
        **{f"{single_line(label)}: estimated mAP {text}.": bool(text) for label, text in estimates.items()},
        "The means are not over the same classes and must not be compared.": len({n for n, _ in counts if n}) > 1,
        "A class counts where both a present and an absent label are known on the test images.": any(
            counted and counted < classes for counted, classes in counts
        ),
    }
    return [note for note, said in notes.items() if said]


def study_table(study: Study) -> ResultTable:
    """Return the table of a study for the terminal."""
    rows = study_rows(study)
    extra = join_names([single_line(row.member.label) for row in rows if row.member.extra_labels])
    notes = [f"{extra}: saw labels that were hidden from the others."] if extra else []
    table = ResultTable(study.title, STUDY_COLUMNS, [row.shown for row in rows], [*notes, *study_notes(rows)])
    return table


def method_map_figure(
    measured: Mapping[str, float], limits: Mapping[str, float], *, width: float = style.WIDE
) -> Figure:
    """Draw the test mAP of methods as dots, and of runs that saw more labels than the others as lines."""
    figure, (axis,) = style.make_figure(width=width, height=0.95 + 0.36 * max(len(measured), 1))
    values, places = [100 * value for value in measured.values()], np.arange(len(measured))
    everything = [*values, *(100 * value for value in limits.values())]
    low, high = min(everything), max(everything)
    pad = max(0.12 * (high - low), 1.0)
    axis.set_xlim(max(low - 2 * pad, 0), min(high + 2 * pad, max(high, 100) + 0.3 * pad))
    axis.hlines(places, axis.get_xlim()[0], values, color=style.GRID_COLOR, linewidth=1.2)
    style.draw_line(axis, values, places, style.BLUE, linestyle="none", linewidth=1.5, markersize=9)
    for place, value in enumerate(values):
        style.draw_value(axis, f"{value:.1f}", value, place)
    for number, (name, value) in enumerate(zip(style.fit_names(limits, width), everything[len(values) :], strict=True)):
        axis.axvline(value, color=style.TEXT_COLOR, linewidth=1.4, linestyle=(0, (5, 3)))
        axis.annotate(
            f"{name} {value:.1f}",
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
    style.set_rows(axis, places, style.fit_names(measured, width), 12)
    axis.grid(False)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axis.set_xlabel("test mAP")
    return figure


def study_page(study: Study, page: Page) -> Markup:
    """Return the page; the data set adds unseen scores and examples."""
    rows = study_rows(study)
    runs = {member.label: run for member, run in study.runs}
    competitors = {member.label: run for member, run in study.runs if not member.extra_labels}
    rules = {run.config.select for run in runs.values()}
    names = {single_line(str(run.config.data.get("name", ""))) for run in runs.values()} - {""}
    shared, different = _settings(runs)
    shown, limits = (
        {row.member.label: row.map for row in rows if row.map is not None and row.member.extra_labels is more}
        for more in (False, True)
    )
    figure = None
    if shown or limits:
        description = f"Test mAP: {'; '.join(f'{row.shown.label} {row.shown.cells[0]}' for row in rows)}."
        columns = {
            "run": [row.member.label for row in rows],
            "extra_labels": [row.member.extra_labels for row in rows],
            "map": [row.map for row in rows],
        }
        figure = page.figure("test-map", description, columns, method_map_figure, shown, limits)
    return render_template(
        "pages/study.html",
        title=study.title,
        run_count=len(runs),
        data_names=join_names(sorted(names)),
        finding=_finding(rows),
        figure=figure,
        extra_labels=join_names([row.member.label for row in rows if row.member.extra_labels]),
        columns=STUDY_COLUMNS,
        rows=[row.shown for row in rows],
        links={
            member.label: quote(f"{member.folder}/{REPORT_FILE}".replace("\\", "/"), safe="/")
            for member in study.members
            if (study.path / member.folder / REPORT_FILE).is_file()
        },
        notes=study_notes(rows),
        selection=SELECTION_RULES[rules.pop()] if len(rules) == 1 else "",
        sections=[
            parameter_effects_section(study, page),
            epoch_scores_section(study, page),
            memorization_section(runs, page),
            modified_labels_section(runs, page),
            label_scores_section(runs, page),
            localization_section(runs, page),
            disagreements_section(competitors, page),
        ],
        methods=[(label, describe_method_choice(run.config)) for label, run in runs.items()],
        shared=shared,
        different=different,
        has_images=page.images and page.data is not None,
    )


def _finding(rows: Sequence[StudyRow]) -> str:
    measured = [(row, (row.shown.label, row.map)) for row in rows if row.map is not None]
    upper = [each for row, each in measured if row.member.extra_labels]
    lower = [each for row, each in measured if not row.member.extra_labels and row.run.config.method == "an"]
    best = [each for row, each in measured if row.shown.bold]
    alike = len({row.test.get("classes_counted") for row in rows}) == 1
    return describe_cost(upper[0], lower[0], best[0]) if alike and best and len(upper) == len(lower) == 1 else ""


def _settings(runs: Mapping[str, Run]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    each = [dict([*describe_data(run.config), *describe_settings(run.config)]) for run in runs.values()]
    names = dict.fromkeys(name for settings in each for name in settings if name not in ("method", "options"))
    values = {name: [settings.get(name, "not given") for settings in each] for name in names}
    shared = [(name, found[0]) for name, found in values.items() if len(set(found)) == 1]
    by_run = ((name, zip(runs, found, strict=True)) for name, found in values.items() if len(set(found)) > 1)
    return shared, [(name, "; ".join(map(": ".join, pairs))) for name, pairs in by_run]
