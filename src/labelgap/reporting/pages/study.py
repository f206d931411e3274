"""The words, numbers and figures of a study's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from labelgap.data.dataset import Dataset
from labelgap.reporting.example_images import disagreement_examples
from labelgap.reporting.figures.run import memorization_panels, method_map_figure, modified_label_panels
from labelgap.reporting.formatting import join_names, modified_caption, selection_rule_text
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.reporting.memorization import memorization_by_label
from labelgap.reporting.run_description import data_rows, method_description, settings_rows
from labelgap.reporting.style import single_line
from labelgap.reporting.tables.study import STUDY_COLUMNS, StudyRow, study_notes, study_rows
from labelgap.studies import Study, StudyMember
from labelgap.training import Run

__all__ = ["REPORT_FILE", "study_page"]

REPORT_FILE = "report.html"

StudyRuns = Sequence[tuple[StudyMember, Run]]


def study_page(study: Study, data: Dataset | None, *, images: bool) -> dict[str, Any]:
    """Return everything that the template of a study asks for."""
    runs, rows, figures = study.runs, study_rows(study), FigureRenderer()
    apart = {row.label: row.map for row in rows if row.extra_labels}
    plays = {member.label: run for member, run in runs if not member.extra_labels}
    return {
        "title": single_line(study.title),
        "lead": _lead(runs),
        "finding": _finding(runs, rows),
        "comparison": _comparison(rows, figures),
        "comparison_caption": ("Dashed: a run that saw more labels than the others. " if apart else "")
        + "The axis does not begin at zero.",
        "columns": STUDY_COLUMNS,
        "groups": [[(row, _address(study, row)) for row in group] for group in _groups(rows)],
        "notes": study_notes(rows),
        "reading": _reading(runs, rows),
        **_memorization(runs, data, figures),
        "examples": disagreement_examples(plays, data) if images and data is not None else [],
        "methods": [(single_line(member.label), single_line(method_description(run.config))) for member, run in runs],
        **_settings(runs),
    }


def _lead(runs: StudyRuns) -> str:
    names = sorted({str(run.config.data.get("name", "")) for _, run in runs} - {""})
    many = f"{len(runs)} runs" if len(runs) != 1 else "One run"
    return single_line(f"{many} on {join_names(names)}." if names else f"{many}.")


def _finding(runs: StudyRuns, rows: Sequence[StudyRow]) -> str:
    """Say what missing labels cost and what the best method wins back, where the study shows both."""
    methods = {member.label: run.config.method for member, run in runs}
    ceilings = [row for row in rows if row.extra_labels and row.map is not None]
    naive = [row for row in rows if not row.extra_labels and methods[row.label] == "an" and row.map is not None]
    best = next((row for row in rows if row.best), None)
    if len(ceilings) != 1 or len(naive) != 1 or best is None or len({row.classes_counted for row in rows}) != 1:
        return ""
    top, low, high = ceilings[0].map, naive[0].map, best.map
    if top is None or low is None or high is None or top <= low:
        return ""
    cost = f"Taking every unknown label as absent costs {100 * (top - low):.1f} points of mAP here"
    if best is naive[0] or high <= low:
        return f"{cost}, and no method of this study won any of them back."
    return f"{cost}; {single_line(best.label)} wins {100 * (high - low):.1f} of them back."


def _comparison(rows: Sequence[StudyRow], figures: FigureRenderer) -> ResponsiveFigure | None:
    if all(row.map is None for row in rows):
        return None
    methods = {row.label: row.map for row in rows if not row.extra_labels}
    ceilings = {row.label: row.map for row in rows if row.extra_labels}
    told = "; ".join(f"{row.label} {row.cells[0]}" for row in rows)
    return figures.render(lambda width: method_map_figure(methods, ceilings, width=width), f"Test mAP: {told}.")


def _groups(rows: Sequence[StudyRow]) -> list[list[StudyRow]]:
    groups = [[row for row in rows if not row.extra_labels], [row for row in rows if row.extra_labels]]
    return [group for group in groups if group]


def _address(study: Study, row: StudyRow) -> str:
    """Return the relative address of a run's report, or nothing while it has none."""
    if not (study.path / row.folder / REPORT_FILE).is_file():
        return ""
    return quote(f"{row.folder}/{REPORT_FILE}".replace("\\", "/"), safe="/")


def _reading(runs: StudyRuns, rows: Sequence[StudyRow]) -> list[str]:
    said = []
    if any(row.map is not None for row in rows):
        said.append(
            "mAP is the mean over classes of how well each is ranked on the test images; F1 is at thresholds chosen on "
            "val. The highest test mAP is in bold."
        )
    said.append(
        "Each row is one training with one seed. A difference of about a point may be chance: repeat it with other "
        "seeds before you believe it."
    )
    ceilings = [single_line(row.label) for row in rows if row.extra_labels]
    if ceilings:
        said.append(
            f"Below the line stands what saw labels that were hidden from the others ({join_names(ceilings)}). It is "
            "no competitor: it shows what the missing labels cost."
        )
    rules = {run.config.select for _, run in runs}
    if len(rules) == 1:
        said.append(selection_rule_text(rules.pop()))
    else:
        said.append("The runs chose their epochs by different rules, so the comparison is not quite fair.")
    return said


def _memorization(runs: StudyRuns, data: Dataset | None, figures: FigureRenderer) -> dict[str, Any]:
    found = memorization_by_label({member.label: run for member, run in runs}, data)
    drawn: dict[str, Any] = {"memorization": None, "modified": None, "modified_caption": ""}
    if not found:
        return drawn
    told = "; ".join(f"{label} {values.false_negative[-1]:.2f}" for label, values in found.items())
    drawn["memorization"] = figures.render(
        lambda width: memorization_panels(found, width=width),
        f"Mean loss of false negatives in the last epoch: {told}.",
    )
    large_loss = {member.label for member, run in runs if run.config.method.startswith("ll-")}
    modified = {
        label: values.modified for label, values in found.items() if label in large_loss and values.modified is not None
    }
    if modified:
        names = join_names([single_line(label) for label in modified])
        drawn["modified"] = figures.render(
            lambda width: modified_label_panels(modified, width=width), f"Labels modified by {names} per epoch."
        )
        drawn["modified_caption"] = modified_caption(names)
    return drawn


def _settings(runs: StudyRuns) -> dict[str, list[tuple[str, str]]]:
    """Part the settings into those that all runs share and those that differ."""
    each = [dict([*data_rows(run.config), *settings_rows(run.config)]) for _, run in runs]
    names = list(dict.fromkeys(name for pairs in each for name in pairs if name not in ("method", "options")))
    shared, different = [], []
    for name in names:
        values = [pairs.get(name, "not given") for pairs in each]
        if len(set(values)) == 1:
            shared.append((name, values[0]))
        else:
            told = "; ".join(
                f"{single_line(member.label)}: {value}" for (member, _), value in zip(runs, values, strict=True)
            )
            different.append((name, told))
    return {"shared": shared, "different": different}
