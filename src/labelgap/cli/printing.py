"""What the commands print: one screen, the numbers that matter, what they allow."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelgap.data import Dataset
    from labelgap.inference.predict.prediction_file import PredictionSummary
    from labelgap.training import Run

__all__ = ["print_data", "print_evaluation", "print_metrics", "print_predicted", "print_run"]

_NAMED = 8
_WIDEST_NAME = 28


def print_data(data: Dataset) -> None:
    """Say what was understood: images, classes, rules, and labels of each state per split."""
    print(f"{data.name}: {sum(map(len, data.splits)):,} images, {len(data.classes):,} classes")
    for finding in data.findings:
        print(f"  {finding}")
    print(f"{'':<8}{'images':>10}{'present':>12}{'absent':>12}{'unknown':>12}")
    for split in data.splits:
        present, absent, unknown = split.labels.counts().total
        print(f"{split.name:<8}{len(split):>10,}{present:>12,}{absent:>12,}{unknown:>12,}")


def print_metrics(name: str, measured: Mapping[str, Any]) -> None:
    """Say how good a run is on a split, with intervals where they were found; or why that cannot be said."""
    if measured["map"] is None:
        print(f"{name:<10}no class has both a known present and a known absent: no accuracy can be measured here")
        return
    ranges = measured.get("intervals") or {}
    values = {key: _percent(measured[key]) + _range(ranges.get(key)) for key in measured if key.startswith("map")}
    values |= {key: _percent(measured[key]) + _range(ranges.get(key)) for key in measured if key.startswith("f1")}
    counted = f"{measured['classes_counted']} of {measured['classes']} classes"
    print(f"{name:<10}mAP {values['map']} over {counted}; per image {values['map_samples']}")
    print(
        f"{'':<10}F1 micro {values['f1_micro']}, macro {values['f1_macro']} at the run's "
        f"thresholds; {values['f1_micro_at_half']}, {values['f1_macro_at_half']} at 0.5"
    )


def print_evaluation(name: str, measured: Mapping[str, Any]) -> None:
    """Say how good a run is: the means, a row per class, and how to get the numbers that there are none of."""
    print_metrics(name, measured)
    rows = measured["per_class"]
    width = min(max([len("class"), *(len(row["name"]) for row in rows)]), _WIDEST_NAME)
    head = f"{'present':>8}{'absent':>8}{'AP':>8}  {'95 % interval':<16}{'threshold':<17}"
    print(f"\n{'class':<{width}}{head}{'precision':>9}{'recall':>8}{'F1':>8}")
    for row in rows:
        cells = f"{row['present']:>8,}{row['absent']:>8,}{_percent(row['average_precision']):>8}  "
        cells += f"{_range(row['interval']).strip():<16}{row['threshold']:<7.3f}{row['mark']:<10}"
        decided = "".join(f"{_percent(row[key]):>{size}}" for key, size in (("precision", 9), ("recall", 8), ("f1", 8)))
        print(f"{_short(row['name'], width):<{width}}{cells}{decided}")
    ranges = measured.get("intervals")
    if ranges:
        print(f"\n{'intervals':<10}95 %, by {ranges['resamples']:,} resamples of the {measured['images']:,} images")
    for line in _not_supported(measured):
        print(line)


def _not_supported(measured: Mapping[str, Any]) -> list[str]:
    """Say which numbers the labels do not support, and the way to get them."""
    lines = []
    missing = set(measured.get("classes_missing", ()))
    for why in ("present", "absent", "label"):
        names = [
            row["name"]
            for row in measured["per_class"]
            if (row["why"] or "").startswith(f"no known {why}") and row["name"] not in missing
        ]
        if names:
            lines.append(f"{'no number':<10}{_named(names)}: no known {why}{' at all' if why == 'label' else ''}")
    if missing:
        lines.append(f"{'no number':<10}{_named(sorted(missing))}: not a class of these data (--rename old=new)")
    if extra := measured.get("classes_extra"):
        lines.append(f"{'left out':<10}{_named(extra)}: the run does not know {'it' if len(extra) == 1 else 'them'}")
    few = [row["name"] for row in measured["per_class"] if (row["why"] or "").startswith("fewer")]
    if few:
        lines.append(f"{'few':<10}{_named(few)}: fewer than 5 known present or absent, no interval")
    if few or any(line.startswith("no number") and "not a class" not in line for line in lines):
        lines.append(f"{'to get it':<10}have a few hundred random images of this split labelled in full, then evaluate")
    return lines


def print_predicted(run: Run, made: PredictionSummary) -> None:
    """Say what was predicted, what the labels rest on, and what could not be read."""
    marks = Counter(run.thresholds.marks)
    said = ", ".join(f"{marks[mark]:,} {mark}" for mark in ("measured", "estimated", "default") if marks[mark])
    print(f"{'labels':<10}{made.present:,} present, {made.absent:,} absent, {made.unsure:,} unsure; thresholds: {said}")
    line = run.calibration
    if line is None:
        known = "calibration" in run.metrics
        why = "val has too few labels to calibrate them" if known else "the run was not calibrated when it was trained"
        print(f"{'scores':<10}rank, and are no probabilities: {why}")
    else:
        partly = "" if line.known == 1 else f", of which {100 * line.known:.0f} % are known: right if those are random"
        print(f"{'calibrated':<11}on labels of val: {sum(line.classes):,} classes have a probability{partly}")
    if made.unreadable:
        count = f"{made.unreadable:,} image{'s' if made.unreadable > 1 else ''}"
        print(f"labelgap: {count} could not be read, the rows are blank:", file=sys.stderr)
        for reason in made.errors:
            print(f"  {reason}", file=sys.stderr)
        more = made.unreadable - len(made.errors)
        print(f"  {f'…and {more:,} more; ' if more else ''}all of them: {made.error_file}", file=sys.stderr)
    print(f"{'wrote':<10}{made.path}: {made.images:,} images")


def print_run(run: Run, report: Path) -> None:
    """Say what a run came to and what to do next."""
    summary = run.metrics
    print(
        f"{run.config.method:<10}epoch {summary['best_epoch']} of {summary['epochs']} kept, {summary['seconds']:.0f} s"
    )
    for name in ("val", "test"):
        if name in summary:
            print_metrics(name, summary[name])
    print(f"{'run':<10}{run.path}")
    print(f"{'report':<10}{report}")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _range(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"


def _short(name: str, width: int) -> str:
    """Return a name on one line, cut to a width."""
    line = " ".join(name.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(_short(name, _WIDEST_NAME) for name in names[:_NAMED]) + more
