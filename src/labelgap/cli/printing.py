"""What the commands print."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from labelgap.core.files import display_path
from labelgap.core.text import escape_control, join_names, pluralize, truncate_text

if TYPE_CHECKING:
    from labelgap.data import Dataset
    from labelgap.inference.predict.assembly import PredictionSummary
    from labelgap.training import Run

_MAX_NAMES = 8
_MAX_NAME_LENGTH = 28


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table without borders; the columns named in ``right`` are right-aligned."""
    from rich.table import Table

    from labelgap.core.terminal.console import make_console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        table.add_column(title, overflow="fold", justify="right" if title in right else "left")
    for row in rows:
        table.add_row(*map(escape_control, row))
    make_console().print(table)


def print_json(value: Any) -> None:
    """Print a value as JSON, in ASCII: it is the same whatever the encoding of standard output."""
    print(json.dumps(value, default=str))


def print_data(data: Dataset) -> None:
    """Print how the data were read, and the labels of each state per split."""
    images, classes = pluralize(sum(map(len, data.splits)), "image"), pluralize(len(data.classes), "class")
    print(f"{data.name}: {images}, {classes}")
    for finding in data.findings:
        print(f"  {finding}")
    print(f"{'':<8}{'images':>10}{'present':>12}{'absent':>12}{'unknown':>12}")
    for split in data.splits:
        present, absent, unknown = split.labels.counts().total
        print(f"{split.name:<8}{len(split):>10,}{present:>12,}{absent:>12,}{unknown:>12,}")


def print_skipped(data: Dataset) -> None:
    """Print which images or shards are left out; nothing where all are read."""
    from labelgap.data.findings import ImagesNotListed, ImagesSkipped, ShardsSkipped

    for finding in data.findings:
        if isinstance(finding, (ImagesNotListed, ImagesSkipped, ShardsSkipped)):
            print(f"{'skipped':<10}{finding}")


def print_metrics(name: str, measured: Mapping[str, Any]) -> None:
    """Print the metrics of a split, with intervals when they were computed."""
    from labelgap.training.history import describe_estimated, describe_groups

    estimated = describe_estimated(measured)
    if measured["map"] is None:
        print(f"{name:<9} no class has a known present and enough known absents: no accuracy can be measured here")
        if estimated:
            print(f"{'':<10}estimated mAP {estimated}")
        return
    intervals = measured.get("intervals") or {}
    values = {
        key: _percent(value) + _interval(intervals.get(key))
        for key, value in measured.items()
        if key in ("map", "map_samples") or key.startswith("f1")
    }
    counted = f"{measured['classes_counted']} of {measured['classes']} classes"
    chance = f"chance {100 * measured['chance']:.2f}"
    print(f"{name:<9} mAP {values['map']} over {counted} ({chance}); per image {values['map_samples']}")
    if estimated:
        print(f"{'':<10}estimated mAP {estimated}")
    print(
        f"{'':<10}F1 micro {values['f1_micro']}, macro {values['f1_macro']} at the run's "
        f"thresholds; {values['f1_micro_at_half']}, {values['f1_macro_at_half']} at 0.5"
    )
    if groups := describe_groups(measured):
        print(f"{'':<10}{groups}")


def print_evaluation(name: str, measured: Mapping[str, Any], commands: Sequence[str] = ()) -> None:
    """Print the metrics of a split, a row per class, and the commands that get the missing numbers."""
    print_metrics(name, measured)
    rows = measured["per_class"]
    width = min(max([len("class"), *(len(row["name"]) for row in rows)]), _MAX_NAME_LENGTH)
    header = f"{'present':>8}{'absent':>8}{'AP':>8}  {'95 % interval':<16}{'threshold':<17}"
    print(f"\n{'class':<{width}}{header}{'precision':>9}{'recall':>8}{'F1':>8}")
    for row in rows:
        cells = f"{row['present']:>8,}{row['absent']:>8,}{_percent(row['average_precision']):>8}  "
        cells += f"{_interval(row['interval']).strip():<16}{row['threshold']:<7.3f}{row['mark']:<10}"
        cells += f"{_percent(row['precision']):>9}{_percent(row['recall']):>8}{_percent(row['f1']):>8}"
        print(f"{truncate_text(row['name'], width):<{width}}{cells}")
    intervals = measured.get("intervals")
    if intervals:
        images = pluralize(measured["images"], "image")
        print(f"\n{'intervals':<10}95 %, by {intervals['resamples']:,} resamples of {images}")
    if crossed := measured.get("out_of_fold_images"):
        images = pluralize(crossed, "image")
        print(f"{'scores':<10}of {images} that the run was trained on: by the models of the other folds")
    if shared := measured.get("trained_images"):
        print(f"{'warning':<10}the run was trained on {shared:,} of these images: the numbers are too high")
    for line in _unsupported(measured, commands):
        print(line)


def _unsupported(measured: Mapping[str, Any], commands: Sequence[str]) -> list[str]:
    """Return which numbers the labels do not support, and how to get them."""
    missing, extra = measured.get("classes_missing", ()), measured.get("classes_extra", ())
    reasons: dict[str, list[str]] = {}
    few, weak = [], []
    for row in measured["per_class"]:
        if row["name"] not in missing:
            if not row["present"] or not row["absent"]:
                state = (
                    "label at all" if not row["present"] + row["absent"] else "absent" if row["present"] else "present"
                )
                reasons.setdefault(state, []).append(row["name"])
            elif row["average_precision"] is None:
                weak.append(row["name"])
            elif row["why"] is not None:
                few.append(row["name"])
    lines = [
        f"{'no number':<10}{some_names(reasons[state])}: no known {state}"
        for state in ("present", "absent", "label at all")
        if state in reasons
    ]
    if weak:
        chance = "so few known absent beside the present that random scores would reach more than 50"
        lines.append(f"{'no number':<10}{some_names(weak)}: {chance}")
    if missing:
        lines.append(f"{'no number':<10}{some_names(sorted(missing))}: not a class of these data (--rename old=new)")
    if extra:
        lines.append(
            f"{'left out':<10}{some_names(extra)}: not {'a class' if len(extra) == 1 else 'classes'} of the run"
        )
    if few:
        lines.append(f"{'few':<10}{some_names(few)}: fewer than 5 known present or absent, no interval")
    if (few or weak or reasons) and any(row["unknown"] for row in measured["per_class"]):
        lines += _to_get_it(commands)
    return lines


def _to_get_it(commands: Sequence[str]) -> list[str]:
    """Return how to get an accuracy: label random images in full, by these commands where there are any."""
    images = "random images" if commands else "a few hundred random images"  # the commands say how many there are
    text = f"{'to get it':<10}label {images} in full, then evaluate again"
    return [f"{text}:", *(f"{'':<10}{command}" for command in commands)] if commands else [text]


def print_predictions(run: Run, result: PredictionSummary) -> None:
    """Print what was predicted, how labels were chosen, and what could not be read."""
    from labelgap.metrics.thresholds import ThresholdMark

    marks = Counter(run.thresholds.marks)
    sources = ", ".join(f"{marks[mark]:,} {mark}" for mark in get_args(ThresholdMark) if marks[mark])
    states = f"{result.present:,} present, {result.absent:,} absent, {result.unsure:,} unsure"
    print(f"{'labels':<10}{states}; thresholds: {sources}")
    undecided = marks["default"] * (result.images - result.unreadable)
    if near := result.unsure - undecided:
        share = 100 * near / (result.present + result.absent + result.unsure)
        print(f"{'unsure':<10}{pluralize(near, 'label')} ({share:.1f} %) too near the threshold to decide")
    if undecided:
        names = [name for name, mark in zip(run.config.classes, run.thresholds.marks, strict=True) if mark == "default"]
        labels = f"{pluralize(undecided, 'label')} of {some_names(names)}"
        print(f"{'unsure':<10}{labels}: the known labels support no threshold")
    calibration = run.calibration
    if calibration is None:
        known = "calibration" in run.metrics
        reason = "the known labels support no calibration" if known else "the run was trained without calibration"
        print(f"{'scores':<10}rank images, and are not probabilities: {reason}")
    else:
        known_share = f" (estimated: {100 * calibration.known:.0f} % of their labels are known)"
        partly = "" if calibration.known == 1 else known_share
        classes = pluralize(sum(calibration.classes), "class")
        where = "out of fold" if run.config.folds else "on held-out images"
        print(f"{'calibrated':<11}{where}: a probability for {classes}{partly}")
    if result.unreadable:
        count = pluralize(result.unreadable, "image")
        print(f"labelgap: {count} could not be read, the rows are blank:", file=sys.stderr)
        for reason in result.errors:
            print(f"  {reason}", file=sys.stderr)
        more = result.unreadable - len(result.errors)
        print(f"  {f'…and {more:,} more; ' if more else ''}all of them: {result.error_file}", file=sys.stderr)
    print(f"{'wrote':<10}{result.path}: {pluralize(result.images, 'image')}")


def print_run(run: Run, report: Path, data: Dataset, seconds: float | None = None) -> None:
    """Print the metrics of a run, where its files are, and what to do next: without an accuracy, to get one.

    Args:
        run: a finished run.
        report: its report.
        data: that it was trained on.
        seconds: of everything, with features, cross-validation and report; None for those of its epochs alone.
    """
    from labelgap.training.config.review_commands import run_review_commands
    from labelgap.training.history import describe_kept_epoch, has_accuracy, unseen_splits

    metrics = run.metrics
    kept = describe_kept_epoch(metrics)
    if run.config.folds:
        kept = f"cross-validated over {run.config.folds} folds, trained on all images"
    spent = f"{metrics['seconds']:.0f} s" if seconds is None else f"{seconds:.0f} s in all"
    print(f"{run.config.method:<9} {kept}, {spent}")
    for split, heading in reversed(unseen_splits(metrics).items()):
        print_metrics(heading, metrics[split])
    print(f"{'run':<10}{run.path}")
    print(f"{'report':<10}{report}")
    run_path = shlex.quote(display_path(run.path))
    if not has_accuracy(metrics):
        print(f"{'accuracy':<10}not measured: the known labels support none")
        if all(split.labels.complete for split in data.splits):
            print(f"{'to get it':<10}measure on other labeled images: labelgap evaluate {run_path} DATA")
        else:
            print("\n".join(_to_get_it(run_review_commands(run.path, run.config, data))))
    if not data.train.labels.complete:
        print(f"{'next':<10}labelgap audit {run_path}    ranks the labels that are probably missing")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"


def some_names(names: Sequence[str]) -> str:
    """Return the first few of many names, each shortened."""
    return join_names([truncate_text(name, _MAX_NAME_LENGTH) for name in names], _MAX_NAMES)
