"""The words, numbers and figures of a run's report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from labelgap.data.dataset import Dataset
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.example_images import random_examples
from labelgap.reporting.figures.run import (
    average_precision_bars,
    learning_curves,
    memorization_panels,
    modified_label_panels,
    selection_score_name,
)
from labelgap.reporting.formatting import (
    NO_VALUE,
    format_class_count,
    format_count,
    format_elapsed,
    format_measure,
    join_names,
    modified_caption,
    selection_rule_text,
)
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.reporting.memorization import memorization_from_run
from labelgap.reporting.run_description import data_rows, method_description, settings_rows
from labelgap.reporting.style import single_line
from labelgap.training import Run
from labelgap.training.config.describe import PROTOCOLS
from labelgap.training.config.schema import RunConfig

__all__ = ["MAX_CLASS_ROWS", "run_page"]

MAX_CLASS_ROWS = 1000
_MARKS = {
    "measured": "measured on val",
    "estimated": "estimated from known positives alone",
    "default": "0.5 for want of labels",
}
_AGAINST = {
    "train": "train (against the labels hidden from training)",
    "val": "val (chose the epoch and the thresholds)",
    "test": "test",
}


def run_page(run: Run, data: Dataset | None, *, images: bool) -> dict[str, Any]:
    """Return everything that the template of a run asks for."""
    config, figures = run.config, FigureRenderer()
    return {
        "name": single_line(run.path.resolve().name),
        "lead": _lead(config),
        "state": _state(run),
        "tiles": _tiles(run),
        "meaning": _meaning(run),
        "measures": _measures(run),
        "notes": _notes(run),
        "selection": selection_rule_text(config.select),
        "curves": _curves(run, figures),
        **_memorization(run, data, figures),
        **_classes(run, data, figures),
        "examples": random_examples(run, data) if images and data is not None else [],
        "rules": [single_line(str(finding)) for finding in data.findings] if data is not None else [],
        "states": _states(run, data),
        "recipe": data_rows(config),
        "method": method_description(config),
        "revisions": _revisions(run),
        "settings": settings_rows(config),
    }


def _lead(config: RunConfig) -> str:
    name = config.data.get("name", "")
    how = f"{PROTOCOLS[config.protocol]} trained" if config.protocol != "linear-init" else PROTOCOLS[config.protocol]
    epochs = f"{config.epochs} epochs" if config.linear is None else f"{config.linear.epochs} + {config.epochs} epochs"
    said = f"{config.method}, {config.backbone}, {how}, {epochs}"
    return single_line(f"{name}: {said}" if name else said)


def _state(run: Run) -> str:
    if not run.finished:
        return f"This run is not finished: {len(run.history)} of {run.config.epochs} epochs are done. Resume it."
    if run.metrics.get("interrupted"):
        return f"This run was stopped after {run.metrics['epochs']} of {run.config.epochs} epochs."
    return ""


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    if not run.finished:
        return []
    summary = run.metrics
    split = "test" if "test" in summary else "val" if "val" in summary else None
    measured = summary.get(split) or {} if split else {}
    tiles = [
        (f"{split} {name}", format_measure(measured.get(field)), "")
        for name, field in (("mAP", "map"), ("F1 micro", "f1_micro"), ("F1 macro", "f1_macro"))
        if split
    ]
    tiles.append(("epoch kept", str(summary["best_epoch"]), f"of {summary['epochs']}"))
    time = format_elapsed(summary.get("seconds")).split(" ")
    return [*tiles, ("training time", " ".join(time[:2]), " ".join(time[2:]))]


def _meaning(run: Run) -> list[str]:
    """Say what the numbers rest on, or why there are none."""
    if not run.finished:
        return []
    test, said = run.metrics.get("test"), []
    if test is None:
        said.append("There is no test split, so nothing here was measured on images that had no part in training.")
        test = run.metrics.get("val")
        if test is not None and test["map"] is not None:
            said.append("Val chose the epoch and the thresholds: expect a little less on new images.")
    if test is None:
        return said
    if test["map"] is None:
        return [
            *said,
            f"{NO_VALUE} The known labels support no accuracy: no class has both a known present and a known absent. "
            "To get a true estimate, have a few hundred random images labelled in full.",
        ]
    whole = test["classes_counted"] == test["classes"]
    over = f"all {test['classes']:,}" if whole else f"{format_class_count(test['classes_counted'], test['classes'])}"
    said.append(
        f"The means are over {over} classes, measured on {test['images']:,} images. mAP asks how well a class is "
        "ranked, F1 how well it is decided at the thresholds below."
    )
    if not whole:
        said.append("The other classes have no known present or no known absent there, and say nothing.")
    return said


def _measures(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    rows = []
    for split in ("test", "val", "train"):
        measured = run.metrics.get(split)
        if measured is None:
            continue
        pairs = [
            (name, format_measure(measured[field]))
            for name, field in (
                ("mAP", "map"),
                ("mAP per image", "map_samples"),
                ("F1 micro", "f1_micro"),
                ("F1 macro", "f1_macro"),
            )
        ]
        pairs.append(("classes counted", format_class_count(measured["classes_counted"], measured["classes"])))
        rows.append((_AGAINST[split], [*pairs, ("images", format_count(measured["images"]))]))
    return rows


def _notes(run: Run) -> list[str]:
    parts = [run.metrics[split] for split in ("test", "val", "train") if run.metrics.get(split)]
    if any(part["map"] is None for part in parts):
        return [
            f"{NO_VALUE} No class of that split has both a known present and a known absent: no number is supported."
        ]
    return []


def _curves(run: Run, figures: FigureRenderer) -> ResponsiveFigure | None:
    history, config = run.history, run.config
    if not history:
        return None
    loss = [_number(record["loss"]) for record in history]
    scores = [_number(record.get("score")) for record in history]
    scored = config.select != "last" and any(np.isfinite(scores))
    rule = (
        selection_score_name(config.select, history[-1].get("classes_counted"), len(config.classes)) if scored else ""
    )
    chosen = run.metrics.get("best_epoch")

    return figures.render(
        lambda width: learning_curves(loss, scores if scored else None, rule=rule, chosen=chosen, width=width),
        f"Training loss{' and ' + rule if scored else ''} over {len(history)} epochs.",
    )


def _memorization(run: Run, data: Dataset | None, figures: FigureRenderer) -> dict[str, Any]:
    found = memorization_from_run(run, data)
    drawn: dict[str, Any] = {"memorization": None, "modified": None, "modified_caption": ""}
    if found is None:
        return drawn
    name = run.config.method
    drawn["memorization"] = figures.render(
        lambda width: memorization_panels({name: found}, width=width),
        f"Mean loss of false negatives goes from {found.false_negative[0]:.2f} to {found.false_negative[-1]:.2f}, of "
        f"true negatives from {found.true_negative[0]:.2f} to {found.true_negative[-1]:.2f}.",
    )
    modified = found.modified
    if modified is not None and name.startswith("ll-"):
        drawn["modified"] = figures.render(
            lambda width: modified_label_panels({name: modified}, width=width), f"Labels modified by {name} per epoch."
        )
        drawn["modified_caption"] = modified_caption(name)
    return drawn


def _classes(run: Run, data: Dataset | None, figures: FigureRenderer) -> dict[str, Any]:
    """Bars, thresholds and label states of the classes."""
    names = run.config.classes
    test = run.metrics.get("test") or {}
    each: dict[str, float | None] = test.get("average_precision", {})
    bars = None
    if any(value is not None for value in each.values()):
        bars = figures.render(
            lambda width: average_precision_bars(each, test["map"], width=width),
            "Average precision of every class that counts.",
        )
    without = [single_line(name) for name in names if each.get(name) is None] if each else []
    columns, cells = _class_cells(run, data, each)
    uncounted = (
        f"Not counted, for want of a known present or a known absent on the test images: {join_names(without)}."
        if without
        else ""
    )
    return {
        "bars": bars,
        "bars_caption": "Average precision on the test images, by class.",
        "uncounted": uncounted,
        "threshold_note": _threshold_note(run),
        "classes_title": f"All {len(names):,} classes",
        "class_columns": columns,
        "classes": [(single_line(name), row) for name, row in zip(names, cells, strict=True)][:MAX_CLASS_ROWS]
        if columns
        else [],
        "classes_left_out": f"The first {MAX_CLASS_ROWS:,}; metrics.jsonl and config.json have all."
        if len(names) > MAX_CLASS_ROWS
        else "",
    }


def _class_cells(run: Run, data: Dataset | None, each: dict[str, float | None]) -> tuple[list[str], list[list[str]]]:
    """Return the columns that there is something to say under, and a row of cells for every class."""
    columns: list[str] = []
    cells: list[list[str]] = [[] for _ in run.config.classes]
    if data is not None:
        counts = data.train.labels.counts()
        for name in ("present", "absent", "unknown"):
            columns.append(f"train {name}")
            for row, value in zip(cells, getattr(counts, name), strict=True):
                row.append(format_count(int(value)))
    if each:
        columns.append("test AP")
        for row, name in zip(cells, run.config.classes, strict=True):
            row.append(format_measure(each.get(name)))
    if run.finished:
        columns += ["threshold", "which is"]
        found = run.thresholds
        for row, value, mark in zip(cells, found.values, found.marks, strict=True):
            row += [f"{value:.3f}", mark]
    return columns, cells


def _threshold_note(run: Run) -> str:
    if not run.finished:
        return ""
    marks = run.thresholds.marks
    found = [f"{marks.count(mark)} {words}" for mark, words in _MARKS.items() if mark in marks]
    return f"Thresholds, from which a class is called present: {', '.join(found)}."


def _states(run: Run, data: Dataset | None) -> list[tuple[str, list[str]]]:
    """Count the observed labels of each split; without the data, those of train if the trace holds them all."""
    if data is not None:
        return [(split.name, _state_cells(len(split), *split.labels.counts().total)) for split in data.splits]
    if run.config.trace == "all" and run.trace:
        observed = run.trace["observed"]
        found = [int((observed == state).sum()) for state in (PRESENT, ABSENT, UNKNOWN)]
        return [("train", _state_cells(len(observed) // len(run.config.classes), *found))]
    return []


def _state_cells(images: int, present: int, absent: int, unknown: int) -> list[str]:
    share = unknown / max(present + absent + unknown, 1)
    return [*map(format_count, (images, present, absent)), f"{unknown:,} ({100 * share:.0f} %)"]


def _revisions(run: Run) -> str:
    made = run.revisions
    if len(made) == 0:
        return "No label was revised for good."
    counts = pc.value_counts(made.to_table()["source"]).to_pylist()
    by = ", ".join(f"{item['counts']:,} by {single_line(item['values'])}" for item in counts)
    return (
        f"{len(made):,} labels were revised ({by}); the observed ones are kept, the revisions are in revisions.parquet."
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
