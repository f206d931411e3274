"""The page of a run: a list of sections, and how it was made."""

from __future__ import annotations

from typing import Final

import pyarrow.compute as pc
from markupsafe import Markup

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.descriptions import describe_data, describe_method_choice, describe_settings, revises_labels
from labelgap.reporting.formatting import SELECTION_RULES, format_measure
from labelgap.reporting.gradients import gradients_section
from labelgap.reporting.page import Page, render_template
from labelgap.reporting.sections.classes import class_table, classes_section
from labelgap.reporting.sections.curves import render_learning_curves
from labelgap.reporting.sections.examples import examples_section
from labelgap.reporting.sections.label_changes import label_changes_section
from labelgap.reporting.sections.label_scores import label_scores_section
from labelgap.reporting.sections.localization import localization_section
from labelgap.reporting.sections.memorization import memorization_section
from labelgap.reporting.sections.modified_labels import modified_labels_section
from labelgap.reporting.sections.prior import prior_section
from labelgap.reporting.sections.summary import summary_section
from labelgap.training import Run
from labelgap.training.settings import PROTOCOLS

_FINAL_HEAD: Final = "The final head was trained on all images, with the settings that cross-validation chose."


def run_page(run: Run, page: Page) -> Markup:
    """Return the page; the data set adds label counts and examples."""
    config, table, runs = run.config, class_table(run, page.data), {run.config.method: run}
    counts: dict[str, tuple[int, ...]] = {}
    if page.data is not None:
        counts = {split.name: (len(split), *split.labels.counts().total) for split in page.data.splits}
    elif config.trace == "all" and run.trace:  # those of train, which are all there
        observed = run.trace["observed"]
        found = [int((observed == state).sum()) for state in (PRESENT, ABSENT, UNKNOWN)]
        counts = {"train": (len(observed) // len(config.classes), *found)}
    label_counts = [
        (name, [images, *states[:2], f"{states[2]:,} ({100 * states[2] / max(sum(states), 1):.0f} %)"])
        for name, (images, *states) in counts.items()
    ]
    return render_template(
        "pages/run.html",
        title=run.path.resolve().name,
        name=config.data.get("name", ""),
        protocol=PROTOCOLS[config.protocol],
        run=run,
        sections=[
            summary_section(run, table, page),
            classes_section(run, table, page),
            prior_section(run, page),
            examples_section(run, page),
            localization_section(runs, page),
            _learning_section(run, page),
            memorization_section(runs, page),
            modified_labels_section(runs, page),
            label_scores_section(runs, page),
            gradients_section(run, page),
            label_changes_section(run, page),
        ],
        findings=[] if page.data is None else [str(finding) for finding in page.data.findings],
        label_counts=label_counts,
        data=describe_data(config),
        method=describe_method_choice(config),
        revisions=pc.value_counts(run.revisions.to_table()["source"]).to_pylist(),
        revises=revises_labels(config.method),
        settings=describe_settings(config),
        has_images=page.images and page.data is not None,
    )


def _learning_section(run: Run, page: Page) -> Markup:
    lines = (run.metrics.get("cross_validation") or run.metrics.get("search") or {}).get("compared", [])
    ranked = sorted(lines, key=lambda line: -(line["score"] or 0.0))
    splits = [run.metrics[split] for split in ("test", "val", "train") if run.metrics.get(split) is not None]
    return render_template(
        "sections/learning.html",
        figure=render_learning_curves(run, page),
        selection=_FINAL_HEAD if run.config.folds else SELECTION_RULES[run.config.select],
        compared=[(line["method"], [f"{line['weight_decay']:.3g}", format_measure(line["score"])]) for line in ranked],
        folds=run.config.folds,
        unsupported=any(measured["map"] is None for measured in splits),
    )
