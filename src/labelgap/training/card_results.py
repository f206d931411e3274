"""The part of a model card that has numbers: what was measured, by what rule, and what it can mean."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from labelgap.data.dataset import Dataset, Split
from labelgap.metrics import Thresholds
from labelgap.training.markdown import escape_markdown, markdown_table
from labelgap.training.run import Run

__all__ = ["RARE_CLASS_LIMIT", "headline", "results", "revisions", "thresholds"]

RARE_CLASS_LIMIT: Final = 10
"""A class with fewer known presents than this may be good or bad by chance."""

_ENDS: Final = 5
_NONE: Final = "–"
_STAR: Final = " \\*"
_SELECTION: Final = {
    "clean": "It is the one with the highest val mAP; every label of val is known.",
    "known": "It is the one with the highest val mAP, over the classes that have known presents and absents there.",
    "observed": "It was chosen by the rule *observed*: it ranks the val labels known to be present highest, with every "
    "unknown label counted as absent. That puts epochs in order where too little is known for an accuracy. It is none "
    "itself, so no number of it is given.",
    "last": "It is the last one; val had no say.",
}
_MARKS: Final = {
    "measured": "measured on val (the highest F1 there)",
    "estimated": "estimated on val from labels known to be present alone",
    "default": "left at 0.5 for want of labels",
}


def headline(run: Run) -> str:
    """Return the one number that matters, or the sentence that says why there is none."""
    for split in ("test", "val"):
        measured = run.metrics.get(split)
        if measured is not None and measured["map"] is not None:
            images = f"{measured['images']:,} {split} images"
            return f"**mAP {_percent(measured['map'])}** over {_counted(measured)} on {images}."
    return "The known labels support no accuracy, so none is claimed."


def results(run: Run, data: Dataset) -> list[str]:
    """Return the section of results."""
    summary = run.metrics
    splits = [split for split in reversed(data.splits) if split.name in summary]
    kept = f"Epoch {summary['best_epoch']} of {summary['epochs']} was kept. {_SELECTION[run.config.select]}"
    if not splits:
        return [kept, "", "Nothing was measured: there is neither a val nor a test split."]
    rows = [_row(split, summary[split.name]) for split in splits]
    columns = ("", "images", "mAP", "counted", "mAP per image", "F1 micro", "F1 macro")
    return [*markdown_table(columns, rows), "", kept, "", *_meaning(run, splits), *_classes(run, data)]


def _row(split: Split, measured: dict[str, Any]) -> list[str]:
    numbers = [_percent(measured[field]) for field in ("map", "map_samples", "f1_micro", "f1_macro")]
    return [split.name, f"{measured['images']:,}", numbers[0], _counted(measured), *numbers[1:]]


def _meaning(run: Run, splits: list[Split]) -> list[str]:
    """Say what the numbers rest on and where they flatter."""
    said = []
    summary, names = run.metrics, [split.name for split in splits]
    if any(summary[name]["map"] is not None for name in names):
        said.append(
            "mAP asks how well the images of a class are ranked above the others, mAP per image how well the classes "
            "of an image are; F1 asks how well they are told apart at the thresholds below. A class counts in the "
            "means where a present and an absent label of it are known."
        )
    for split in splits:
        said += _support(split, summary[split.name])
    said += _unmeasured([split for split in splits if summary[split.name]["map"] is not None])
    if "val" in names and summary["val"]["map"] is not None:
        chose = [*(["the epoch"] if run.config.select != "last" else [])]
        chose += ["the thresholds"] if set(run.thresholds.marks) != {"default"} else []
        if chose:
            test = " Test had no say in this training." if "test" in names else ""
            said.append(f"Val chose {' and '.join(chose)}, so its own numbers are a little too good.{test}")
    if "train" in names:
        said.append(
            "Train is what it learned from, measured against all labels, those it never saw included: that tells what "
            "it made of the gaps, not how good it is on new images."
        )
    if "test" not in names:
        said.append("There is no test split: nothing was measured on images that had no say in the training.")
    return [f"- {sentence}" for sentence in said]


def _support(split: Split, measured: dict[str, Any]) -> list[str]:
    if measured["map"] is None:
        return [
            f"{split.name}: the known labels support no accuracy, since no class has both a known present and a known "
            "absent. To get a true estimate, label a few hundred random images in full."
        ]
    if split.name != "test":
        return []
    return [f"Ranked by chance, these test labels would give an mAP of about {_percent(_by_chance(split))}."]


def _unmeasured(splits: list[Split]) -> list[str]:
    """Say how much of the splits nobody knows, and what that may do to the numbers."""
    shares = []
    for split in splits:
        present, absent, unknown = split.evaluation_labels.counts().total
        if unknown:
            shares.append(f"{100 * unknown / (present + absent + unknown):.0f} % of the {split.name} labels")
    if not shares:
        return []
    unknown_part = f"{' and '.join(shares)} are unknown and were not measured."
    return [f"{unknown_part} If what people labelled is no fair sample, the numbers are none either."]


def _by_chance(split: Split) -> float:
    counts = split.evaluation_labels.counts()
    both = (counts.present > 0) & (counts.absent > 0)
    return float((counts.present[both] / (counts.present[both] + counts.absent[both])).mean())


def _classes(run: Run, data: Dataset) -> list[str]:
    """Return the strongest and the weakest classes, with what their numbers rest on."""
    split = data.test if data.test is not None else data.val
    measured = None if split is None else run.metrics.get(split.name)
    if split is None or measured is None:
        return []
    each = {name: value for name, value in measured["average_precision"].items() if value is not None}
    if len(each) < 2:
        return []
    order = sorted(each, key=lambda name: -each[name])
    whole = len(order) <= 2 * _ENDS
    held, seen = split.evaluation_labels.counts().present, data.train.labels.counts().present
    place = {name: number for number, name in enumerate(data.classes)}
    groups = [order] if whole else [order[:_ENDS], order[-_ENDS:]]
    found = run.thresholds
    rows = [
        [f"{escape_markdown(name)}{_STAR if held[place[name]] < RARE_CLASS_LIMIT else ''}", _percent(each[name])]
        + [f"{counts[place[name]]:,}" for counts in (held, seen)]
        + [f"{found.values[place[name]]:.2f}, {found.marks[place[name]]}"]
        for group in groups
        for name in group
    ]
    if not whole:
        rows.insert(_ENDS, ["…"] * 5)
    title = "every class that counts" if whole else f"the {_ENDS} strongest and the {_ENDS} weakest classes"
    lines = ["", f"On {split.name}, {title}:", ""]
    known = (f"known present in {split.name}", "known present in train")
    lines += markdown_table(("", "average precision", *known, "threshold"), rows)
    if any(row[0].endswith(_STAR) for row in rows):
        lines += ["", f"{_STAR.strip()} fewer than {RARE_CLASS_LIMIT} known presents: its number may be chance."]
    return lines


def thresholds(found: Thresholds) -> str:
    """Return how many thresholds rest on what, and between what they lie."""
    kinds = [f"{found.marks.count(mark)} {words}" for mark, words in _MARKS.items() if mark in found.marks]
    low, high = np.min(found.values), np.max(found.values)
    range_ = f" They lie between {low:.2f} and {high:.2f}." if high > low else ""
    return f"A class is called present from a threshold of its own on: {', '.join(kinds)}.{range_}"


def revisions(run: Run) -> str:
    """Return what labels the method changed, and how many of them rightly where that is known."""
    if not len(run.revisions):
        return "It changed no label for good."
    said = [f"It made {len(run.revisions):,} revisions of labels as it learned; what was observed is kept beside them."]
    quality = run.metrics.get("revisions")
    if quality and quality["precision"] is not None:
        of = f"{quality['correct']:,} of {quality['known_truth']:,}"
        said.append(f"Where the truth is known, {_percent(quality['precision'])} % of them are right ({of}).")
    if quality and quality["found"]:
        of = f"{quality['found']:,} of {quality['hidden_present']:,}"
        said.append(f"It found {_percent(quality['recall'])} % of the present labels that were hidden ({of}).")
    return " ".join(said)


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.1f}"


def _counted(measured: dict[str, Any]) -> str:
    return f"{measured['classes_counted']:,} of {measured['classes']:,} classes"
