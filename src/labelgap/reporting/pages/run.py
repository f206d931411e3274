"""The values of a run's page, for ``run.html``."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.reporting.example_images import random_examples
from labelgap.reporting.figures.run import average_precision_bars, learning_curves, selection_score_name
from labelgap.reporting.formatting import (
    format_class_count,
    format_count,
    format_elapsed,
    format_measure,
    join_names,
    selection_rule_text,
    single_line,
)
from labelgap.reporting.html import FigureRenderer, ResponsiveFigure
from labelgap.reporting.pages.memorization import memorization_section
from labelgap.reporting.run_description import describe_data, describe_method_choice, describe_settings
from labelgap.training import Run
from labelgap.training.checkpoints.history import trained_epochs
from labelgap.training.config.describe import PROTOCOLS
from labelgap.training.config.review_commands import run_review_commands
from labelgap.training.config.schema import RunConfig
from labelgap.training.evaluation import describe_estimated, describe_kept_epoch, has_accuracy, unseen_splits

__all__ = ["MAX_CLASS_ROWS", "run_page"]

MAX_CLASS_ROWS: Final = 1000
_THRESHOLD_SOURCES: Final = {
    "measured": "measured {where}",
    "estimated": "estimated from few known labels",
    "borrowed": "taken from the other classes, because too few labels are known",
    "default": "left at 0.5, because the known labels support none",
}
_SPLITS: Final = {
    "test": "test",
    "val": "val (used to select the epoch and the thresholds)",
    "train": "train (against the labels hidden from training)",
}
_OUT_OF_FOLD: Final = "out of fold"
_FINAL_HEAD: Final = "The final head was trained on all images, with the settings that cross-validation chose."
_MEASURES: Final = {
    "mAP": "map",
    "chance": "chance",
    "mAP per image": "map_samples",
    "F1 micro": "f1_micro",
    "F1 macro": "f1_macro",
}


def run_page(run: Run, data: Dataset | None, *, images: bool) -> dict[str, Any]:
    """Return the values of the template."""
    config, figures = run.config, FigureRenderer()
    measured = {split: run.metrics[split] for split in _SPLITS if run.metrics.get(split) is not None}
    return {
        "name": single_line(run.path.resolve().name),
        "lead": _lead(config),
        "run": run,
        "tiles": _tiles(run, measured),
        "kept": _kept(run),
        "measured": measured,
        "measures": _measures(measured, config.folds),
        "unseen": unseen_splits(run.metrics),
        "estimated": {split: text for split, each in measured.items() if (text := describe_estimated(each))},
        "review_commands": () if has_accuracy(run.metrics) else run_review_commands(run.path, config, data, share=True),
        "selection": _FINAL_HEAD if config.folds else selection_rule_text(config.select),
        "compared": _compared(run),
        "groups": _groups(run),
        "curves": _curves(run, figures),
        **memorization_section({config.method: run}, data, figures),
        **_classes(run, data, figures),
        "examples": random_examples(run, data) if images and data is not None else [],
        "findings": [single_line(str(finding)) for finding in data.findings] if data is not None else [],
        "label_counts": _label_counts(run, data),
        "data": describe_data(config),
        "method": describe_method_choice(config),
        "revisions": _revisions(run),
        "settings": describe_settings(config),
    }


def _lead(config: RunConfig) -> str:
    name = config.data.get("name", "")
    first = "" if config.linear is None else f"{config.linear.epochs} + "
    epochs = f"{first}{pluralize(config.epochs, 'epoch')}"
    text = f"{config.method}, {config.backbone}, {PROTOCOLS[config.protocol]}, {epochs}"
    return single_line(f"{name}: {text}" if name else text)


def _tiles(run: Run, measured: dict[str, dict[str, Any]]) -> list[tuple[str, str, str]]:
    if not run.finished:
        return []
    split, heading = next(iter(unseen_splits(run.metrics).items()), (None, ""))
    best = measured.get(split or "") or {}
    if run.config.folds and best and best["map"] is None and best.get("map_estimated") is not None:
        tiles = [("estimated mAP", format_measure(best["map_estimated"]), "if missing at random")]
    else:
        tiles = [
            (f"{heading} {name}", format_measure(best[_MEASURES[name]]), "")
            for name in ("mAP", "F1 micro", "F1 macro")
            if best
        ]
    if run.config.folds:
        tiles.append(("cross-validation", str(run.config.folds), "folds"))
    else:
        tiles.append(("epoch kept", str(run.metrics["best_epoch"]), f"of {run.metrics['epochs']}"))
    time = format_elapsed(run.metrics.get("seconds")).split(" ")
    return [*tiles, ("training time", " ".join(time[:2]), " ".join(time[2:]))]


def _kept(run: Run) -> str:
    """Return what a reader of the tiles should know: the linear head was kept, or the training diverged."""
    if not run.finished or (run.metrics["best_epoch"] and not run.metrics.get("divergences")):
        return ""
    return describe_kept_epoch(run.metrics)


def _compared(run: Run) -> list[tuple[str, list[str]]]:
    """Return a row for every setting that cross-validation compared, the best first: method, weight decay, score."""
    lines = (run.metrics.get("cross_validation") or {}).get("compared", [])
    ranked = sorted(lines, key=lambda line: -(line["score"] or 0.0))
    return [(line["method"], [f"{line['weight_decay']:.3g}", format_measure(line["score"])]) for line in ranked]


def _measures(measured: dict[str, dict[str, Any]], folds: int) -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        (
            _OUT_OF_FOLD if folds and split == "train" else _SPLITS[split],
            [
                *((name, format_measure(values.get(key))) for name, key in _MEASURES.items()),
                ("classes counted", format_class_count(values["classes_counted"], values["classes"])),
                ("images", format_count(values["images"])),
            ],
        )
        for split, values in measured.items()
    ]


def _groups(run: Run) -> list[tuple[str, list[str]]]:
    """Return a row for every group of classes, measured on the best evidence that there is."""
    split = next(iter(unseen_splits(run.metrics)), "")
    return [
        (
            f"G{row['group']}",
            [
                format_measure(row["map"]),
                format_class_count(row["classes_counted"], row["classes"]),
                *(format_count(row[state]) for state in ("present", "absent")),
            ],
        )
        for row in (run.metrics.get(split) or {}).get("groups", [])
    ]


def _curves(run: Run, figures: FigureRenderer) -> ResponsiveFigure | None:
    history, config = run.history, run.config
    if not history:
        return None
    loss = [_number(record["loss"]) for record in history]
    scores = [_number(record.get("score")) for record in history]
    scored = config.select != "last" and any(np.isfinite(scores))
    counted = [record["classes_counted"] for record in history if record.get("classes_counted") is not None]
    rule = selection_score_name(config.select, max(counted, default=None), len(config.classes)) if scored else ""
    chosen = run.metrics.get("best_epoch")

    return figures.render(
        lambda width: learning_curves(
            loss, scores if scored else None, rule=rule, chosen=chosen, first=history[0]["epoch"], width=width
        ),
        f"Training loss{' and ' + rule if scored else ''} over {pluralize(trained_epochs(history), 'epoch')}.",
    )


def _classes(run: Run, data: Dataset | None, figures: FigureRenderer) -> dict[str, Any]:
    """Return average precision, thresholds and label counts per class."""
    names = run.config.classes
    split, heading = next(iter(unseen_splits(run.metrics).items()), ("test", "test"))
    split, heading = ("test", "test") if split == "val" else (split, heading)
    test = run.metrics.get(split) or {}
    each: dict[str, float | None] = test.get("average_precision", {})
    bars = None
    if any(value is not None for value in each.values()):
        bars = figures.render(
            lambda width: average_precision_bars(each, test["map"], width=width),
            "Average precision of every class that counts.",
        )
    columns, cells = _class_cells(run, data, each, heading)
    return {
        "bars": bars,
        "class_heading": "the test images" if split == "test" else "all images, out of fold",
        "uncounted": join_names([single_line(name) for name in names if each.get(name) is None]) if each else "",
        "threshold_sources": _threshold_sources(run),
        "class_count": len(names),
        "class_columns": columns,
        "classes": [(single_line(name), row) for name, row in zip(names, cells, strict=True)][:MAX_CLASS_ROWS]
        if columns
        else [],
        "classes_omitted": len(names) > MAX_CLASS_ROWS,
        "max_class_rows": MAX_CLASS_ROWS,
    }


def _class_cells(
    run: Run, data: Dataset | None, each: dict[str, float | None], heading: str
) -> tuple[list[str], list[list[str]]]:
    """Return the columns that have values, and a row of cells for every class."""
    columns: list[str] = []
    cells: list[list[str]] = [[] for _ in run.config.classes]
    if data is not None:
        counts = data.train.labels.counts()
        for name in ("present", "absent", "unknown"):
            columns.append(f"train {name}")
            for row, value in zip(cells, getattr(counts, name), strict=True):
                row.append(format_count(int(value)))
    if each:
        columns.append(f"{heading} AP")
        for row, name in zip(cells, run.config.classes, strict=True):
            row.append(format_measure(each.get(name)))
    if run.finished:
        columns += ["threshold", "source"]
        found = run.thresholds
        for row, value, mark in zip(cells, found.values, found.marks, strict=True):
            row += [f"{value:.3f}", mark]
    return columns, cells


def _threshold_sources(run: Run) -> list[str]:
    if not run.finished:
        return []
    marks, where = run.thresholds.marks, _OUT_OF_FOLD if run.config.folds else "on val"
    found = ((marks.count(mark), text) for mark, text in _THRESHOLD_SOURCES.items() if mark in marks)
    return [f"{count} {text.format(where=where)}" for count, text in found]


def _label_counts(run: Run, data: Dataset | None) -> list[tuple[str, list[str]]]:
    """Count the observed labels of each split; without the data set, those of train if the trace has them all."""
    if data is not None:
        return [(split.name, _label_count_cells(len(split), *split.labels.counts().total)) for split in data.splits]
    if run.config.trace == "all" and run.trace:
        observed = run.trace["observed"]
        found = [int((observed == state).sum()) for state in (PRESENT, ABSENT, UNKNOWN)]
        return [("train", _label_count_cells(len(observed) // len(run.config.classes), *found))]
    return []


def _label_count_cells(images: int, present: int, absent: int, unknown: int) -> list[str]:
    share = unknown / max(present + absent + unknown, 1)
    return [*map(format_count, (images, present, absent)), f"{unknown:,} ({100 * share:.0f} %)"]


def _revisions(run: Run) -> str:
    revisions = run.revisions
    if len(revisions) == 0:
        return "No label was revised permanently."
    counts = pc.value_counts(revisions.to_table()["source"]).to_pylist()
    by = ", ".join(f"{item['counts']:,} by {single_line(item['values'])}" for item in counts)
    return f"{len(revisions):,} labels were revised ({by}); the observed labels are kept, see revisions.parquet."


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
