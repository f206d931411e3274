"""The values of a study's page, for ``study.html``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from labelgap.core.text import join_names
from labelgap.data.dataset import Dataset
from labelgap.reporting.example_images import disagreement_examples
from labelgap.reporting.figures.study import method_map_figure
from labelgap.reporting.formatting import selection_rule_text, single_line
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.reporting.pages.sections.curves import epoch_scores_section, parameter_effects_section
from labelgap.reporting.pages.sections.label_scores import label_scores_section
from labelgap.reporting.pages.sections.localization import localization_section
from labelgap.reporting.pages.sections.memorization import memorization_section
from labelgap.reporting.run_description import describe_data, describe_method_choice, describe_settings
from labelgap.reporting.tables.study import STUDY_COLUMNS, StudyRow, study_notes, study_rows
from labelgap.studies import Study
from labelgap.training import Run

REPORT_FILE = "report.html"


def study_page(study: Study, data: Dataset | None, figures: FigureRenderer, *, images: bool) -> dict[str, Any]:
    """Return the values of the template."""
    rows = study_rows(study)
    runs = {member.label: run for member, run in study.runs}
    competitors = {member.label: run for member, run in study.runs if not member.extra_labels}
    methods = {label: run.config.method for label, run in runs.items()}
    rules = {run.config.select for run in runs.values()}
    return {
        "title": single_line(study.title),
        "run_count": len(runs),
        "data_names": join_names(
            sorted({single_line(str(run.config.data.get("name", ""))) for run in runs.values()} - {""})
        ),
        "finding": _finding(methods, rows),
        "comparison": _comparison(rows, figures),
        "measured": any(row.map is not None for row in rows),
        "extra_labels": join_names([single_line(row.label) for row in rows if row.extra_labels]),
        "columns": STUDY_COLUMNS,
        "groups": [
            [(row, _report_address(study, row)) for row in rows if row.extra_labels is extra]
            for extra in (False, True)
            if any(row.extra_labels is extra for row in rows)
        ],
        "notes": study_notes(rows),
        "selection": selection_rule_text(rules.pop()) if len(rules) == 1 else "",
        **parameter_effects_section(study, figures),
        **epoch_scores_section(study, figures),
        **memorization_section(runs, data, figures),
        **label_scores_section(runs, data, figures),
        **localization_section(runs, data, figures, images=images),
        "examples": disagreement_examples(competitors, data) if images and data is not None else [],
        "methods": [
            (single_line(label), single_line(describe_method_choice(run.config))) for label, run in runs.items()
        ],
        **_settings(runs),
    }


def _finding(methods: dict[str, str], rows: Sequence[StudyRow]) -> str:
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
    return f"{cost}; {single_line(best.label)} recovers {100 * (highest - lowest):.1f} of them."


def _comparison(rows: Sequence[StudyRow], figures: FigureRenderer) -> ResponsiveFigure | None:
    if all(row.map is None for row in rows):
        return None
    methods, extra = ({row.label: row.map for row in rows if row.extra_labels is e} for e in (False, True))
    values = "; ".join(f"{row.label} {row.cells[0]}" for row in rows)
    return figures.render(
        lambda width: method_map_figure(methods, extra, width=width),
        f"Test mAP: {values}.",
        name="test-map",
        data={
            "run": [row.label for row in rows],
            "extra_labels": [row.extra_labels for row in rows],
            "map": [row.map for row in rows],
        },
    )


def _report_address(study: Study, row: StudyRow) -> str:
    """Return the relative URL of a run's report, or nothing if it has none."""
    if not (study.path / row.folder / REPORT_FILE).is_file():
        return ""
    return quote(f"{row.folder}/{REPORT_FILE}".replace("\\", "/"), safe="/")


def _settings(runs: dict[str, Run]) -> dict[str, list[tuple[str, str]]]:
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
            different.append((name, "; ".join(f"{single_line(label)}: {value}" for label, value in pairs)))
    return {"shared": shared, "different": different}
