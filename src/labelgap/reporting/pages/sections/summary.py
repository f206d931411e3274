"""The first screen of a run's page: what was measured or, where the labels support no accuracy, what can be said."""

from __future__ import annotations

from typing import Any, Final

from labelgap.core.text import pluralize
from labelgap.data.dataset import Dataset
from labelgap.reporting.analysis.class_table import ClassTable, evidence_split
from labelgap.reporting.analysis.partial_evidence import PartialEvidence, partial_evidence
from labelgap.reporting.formatting import (
    chosen_by_val,
    format_class_count,
    format_count,
    format_elapsed,
    format_measure,
)
from labelgap.training import Run
from labelgap.training.history import describe_estimated, describe_kept_epoch, has_accuracy, unseen_splits
from labelgap.training.rerun import run_audit_commands, run_review_commands

_SPLITS: Final = {
    "test": "test",
    "val": "val (used to select {chosen})",
    "train": "train (against the labels hidden from training)",
}
_OUT_OF_FOLD: Final = "out of fold"
_MEASURES: Final = {
    "mAP": "map",
    "chance": "chance",
    "mAP per image": "map_samples",
    "F1 micro": "f1_micro",
    "F1 macro": "f1_macro",
}

Tile = tuple[str, str, str]


def summary_section(run: Run, data: Dataset | None, table: ClassTable) -> dict[str, Any]:
    """Return the values of ``sections/summary.html``."""
    measured = {split: run.metrics[split] for split in _SPLITS if run.metrics.get(split) is not None}
    split, accurate = evidence_split(run.metrics), has_accuracy(run.metrics)
    complete = data is not None and all(each.labels.complete for each in data.splits)
    evidence = partial_evidence(run, data, table) if run.finished and not accurate else None
    return {
        "tiles": _tiles(run, split, evidence),
        "kept": _kept(run),
        "measured": measured,
        "shown": measured.get(split) if accurate else None,
        "measures": _measures(measured, run.config.folds, run.config.select),
        "chosen": chosen_by_val(run.config.select),
        "unsupported": [name for name, values in measured.items() if values["map"] is None],
        "estimated": {
            name: text
            for name, each in measured.items()
            if each["map"] is not None and (text := describe_estimated(each))
        },
        "facts": [] if evidence is None else _facts(evidence, bool(split)),
        "review": "" if evidence is None or complete else _review(evidence),
        "audit_commands": () if evidence is None else run_audit_commands(run.path, run.config, data, share=True),
        "review_commands": () if accurate else run_review_commands(run.path, run.config, data, share=True),
    }


def _tiles(run: Run, split: str, evidence: PartialEvidence | None) -> list[Tile]:
    if not run.finished:
        return []
    if evidence is None:
        heading, best = unseen_splits(run.metrics)[split], run.metrics[split]
        tiles = [
            (f"{heading} {name}", format_measure(best[_MEASURES[name]]), "") for name in ("mAP", "F1 micro", "F1 macro")
        ]
    else:
        tiles = _evidence_tiles(evidence)
    if run.config.folds:
        tiles.append(("cross-validation", str(run.config.folds), "folds"))
    else:
        tiles.append(("epoch kept", str(run.metrics["best_epoch"]), f"of {run.metrics['epochs']}"))
    time = format_elapsed(run.metrics.get("seconds")).split(" ")
    return [*tiles, ("training time", " ".join(time[:2]), " ".join(time[2:]))]


def _evidence_tiles(evidence: PartialEvidence) -> list[Tile]:
    """Return tiles of what is known without an accuracy, each with what it is not."""
    tiles = []
    if evidence.estimate is not None:
        tiles.append(("estimated mAP", format_measure(evidence.estimate["map_estimated"]), "if missing at random"))
    if evidence.ranking is not None:
        tiles.append(("observed ranking", format_measure(evidence.ranking.kept), "not an accuracy"))
    if evidence.known is not None and any(evidence.known):
        known = evidence.known[0] + evidence.known[1]
        tiles.append(("labels known", _percent(known / sum(evidence.known)), "% of train"))
    if evidence.missing is not None:
        tiles.append(("probably missing", format_count(evidence.missing), "labels"))
    return tiles


def _facts(evidence: PartialEvidence, scored: bool) -> list[tuple[str, str]]:
    """Return what can be said as pairs of name and sentence; ``scored``: whether there are scores of unseen images."""
    facts = []
    if evidence.estimate is not None:
        text = describe_estimated(evidence.estimate)
        facts.append(
            (
                "estimated mAP",
                f"{text}. A guide, not a measurement.",
            )
        )
    elif scored:
        facts.append(("estimated mAP", "none: too few presents are known, or the scores rank them too weakly."))
    if ranking := evidence.ranking:
        chance = "" if ranking.random is None else f"; random scores reach {format_measure(ranking.random)}"
        facts.append(
            (
                "observed ranking",
                f"{format_measure(ranking.kept)}, and {format_measure(ranking.first)} in the first epoch{chance}. "
                "It says how high the known presents of val rank if every unknown label counts as absent. It orders "
                "epochs and is no accuracy: if labels are missing at random, the true mAP is higher on the average.",
            )
        )
    if evidence.known is not None:
        present, absent, unknown = evidence.known
        known = f"{present:,} present and {absent:,} absent of {sum(evidence.known):,} labels of train are known"
        facts.append(("known labels", f"{known}; {unknown:,} are unknown."))
    if evidence.missing is not None:
        ends = "" if evidence.missing_range is None else "; {:,} to {:,} are possible".format(*evidence.missing_range)
        missing = pluralize(evidence.missing, "unknown label")
        facts.append(("missing labels", f"about {missing} are probably present, says the audit in this folder{ends}."))
    return facts


def _review(evidence: PartialEvidence) -> str:
    """Return how far a review of random images would narrow the mAP."""
    images = pluralize(evidence.review_images, "random image")
    if evidence.half_width is None or evidence.images_for_point is None:
        return f"Label {images} in full. A class gets an interval of about ±10 points from 100 images that have it."
    source = "if labels are missing at random" if evidence.estimate else "as far as the known presents tell"
    over = pluralize(evidence.review_classes, "class")
    width = f"about ±{100 * evidence.half_width:.1f} points or better"
    text = f"Label {images} in full: the mAP over {over} is then known to {width}, {source}."
    available = evidence.available_images
    if available is not None and evidence.images_for_point > available:
        return f"{text} ±1 point may take {evidence.images_for_point:,}, more than the {available:,} that there are."
    return f"{text} ±1 point takes {evidence.images_for_point:,} at most." if evidence.half_width > 0.01 else text


def _kept(run: Run) -> str:
    """Return what a reader of the tiles should know: the linear head was kept, or the training diverged."""
    if not run.finished or (run.metrics["best_epoch"] and not run.metrics.get("divergences")):
        return ""
    return describe_kept_epoch(run.metrics)


def _measures(measured: dict[str, dict[str, Any]], folds: int, rule: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return a row for every split with a number."""
    return [
        (
            _OUT_OF_FOLD if folds and split == "train" else _SPLITS[split].format(chosen=chosen_by_val(rule)),
            [
                *((name, format_measure(values.get(key))) for name, key in _MEASURES.items()),
                ("classes counted", format_class_count(values["classes_counted"], values["classes"])),
                ("images", format_count(values["images"])),
            ],
        )
        for split, values in measured.items()
        if values["map"] is not None
    ]


def _percent(share: float) -> str:
    return "< 0.1" if 0 < share < 0.001 else f"{100 * share:.1f}".removesuffix(".0")
