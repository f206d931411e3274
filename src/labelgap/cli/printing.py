"""What the commands print: texts behind headings, tables, JSON, and the screens that several commands share."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import labelgap as lg
from labelgap.core.files import display_path
from labelgap.core.terminal import make_console
from labelgap.core.text import escape_control, join_names, pluralize, truncate_text

if TYPE_CHECKING:
    from labelgap.inference.parts import PartsResult

Field = tuple[str, str | Path | Iterable[str] | None]
"""A heading, and the lines behind it; None or nothing leaves it out."""
_STYLES: Final = {"looks wrong": "yellow", "you cannot": "yellow", "warning": "yellow", "next": "bold"}
"""Color marks only what needs attention."""


def print_fields(*fields: Field, width: int = 10, wrap: bool = False, stderr: bool = False) -> None:
    """Print the lines of every field, the first behind its heading; they are copied whole unless ``wrap``."""
    console = make_console(stderr=stderr, soft_wrap=True)
    for heading, text in fields:
        lines = [str(text)] if isinstance(text, str | Path) else text or ()
        if wrap:
            space = max(console.width - width, 20)
            lines = [part for line in lines for part in textwrap.wrap(line, space, break_long_words=False)]
        for line in lines:
            if line:
                console.print(Text.assemble((f"{heading:<{width - 1}} ", _STYLES.get(heading, "")), line))
                heading = ""


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table without borders; the columns named in ``right`` are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        table.add_column(title, overflow="fold", justify="right" if title in right else "left")
    for row in rows:
        table.add_row(*map(escape_control, row))
    print_rich(table)


def print_rich(*values: RenderableType) -> None:
    """Print tables, and texts wrapped to the terminal, without markup."""
    make_console().print(*values, sep="\n")


def print_json(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON, in ASCII: it is the same whatever the encoding of standard output."""
    print(json.dumps(value, default=str, indent=indent))


def print_data(data: lg.Dataset) -> None:
    """Print how the data were read, and the labels of each state per split."""
    images, classes = pluralize(sum(map(len, data.splits)), "image"), pluralize(len(data.classes), "class")
    print("\n  ".join([f"{data.name}: {images}, {classes}", *map(str, data.findings)]))
    print(f"{'':<8}{'images':>10}{'present':>12}{'absent':>12}{'unknown':>12}")
    for split in data.splits:
        present, absent, unknown = split.labels.counts().total
        print(f"{split.name:<8}{len(split):>10,}{present:>12,}{absent:>12,}{unknown:>12,}")


def print_skipped(data: lg.Dataset) -> None:
    """Print which images or shards are left out; nothing where all are read."""
    from labelgap.data.findings import ImagesNotListed, ImagesSkipped, ShardsSkipped

    skipped = (ImagesNotListed, ImagesSkipped, ShardsSkipped)
    print_fields(*(("skipped", str(finding)) for finding in data.findings if isinstance(finding, skipped)))


def print_parts(result: PartsResult, part: tuple[int, int], following: str) -> None:
    """Print what is done of a prediction in parts, and what could not be read."""
    done = f"{len(result.summaries):,} of {result.shards:,} done, {result.computed:,} of them now"
    if count := result.total("unreadable"):
        first = [error for each in result.summaries for error in each.errors][:5]
        about = f"{pluralize(count, 'image')} could not be read, the column error says why, e.g."
        print_fields(("labelgap:", about), *(("", line) for line in first), width=2, stderr=True)
    done += "" if result.own else f"; none of them is of {part[0]}/{part[1]}"
    there = "wrote" if result.computed else "there"
    print_fields(("shards", done), (there, f"{result.address}: {pluralize(result.total('rows'), 'image')}"))
    print_fields(("next", following if result.complete else "the other shards, or the same command where some failed"))


def print_metrics(name: str, measured: Mapping[str, Any]) -> None:
    """Print the metrics of a split, with intervals when they were computed."""
    from labelgap.training.history import describe_estimated, describe_groups

    intervals = measured.get("intervals") or {}

    def value(key: str) -> str:
        return f"{percent(measured[key])} {interval(intervals.get(key))}".rstrip()

    estimate = describe_estimated(measured)
    estimated = f"estimated mAP {estimate}" if estimate else ""
    if measured["map"] is None:
        none = "no class has a known present and enough known absents: no accuracy can be measured here"
        return print_fields((name, [none, estimated]))
    counted = f"over {measured['classes_counted']} of {measured['classes']} classes"
    mean = f"mAP {value('map')} {counted} (chance {percent(measured['chance'])}); per image {value('map_samples')}"
    if sizes := measured.get("average_sizes"):
        mean += f"; at {' and '.join(map(str, sizes))} px"
    if measured.get("map_one_size") is not None:
        mean += f"; mAP at one size {percent(measured['map_one_size'])}"
    f1 = f"F1 micro {value('f1_micro')}, macro {value('f1_macro')} at the run's thresholds"
    f1 += f"; {value('f1_micro_at_half')}, {value('f1_macro_at_half')} at 0.5"
    return print_fields((name, [mean, estimated, f1, describe_groups(measured) or ""]))


def print_run(run: lg.Run, report: Path, data: lg.Dataset, seconds: float, *, audited: bool = False) -> None:
    """Print the metrics of a finished run, where its files are, and what to do next, also to get an accuracy.

    ``audited`` says that the audit of a run to which images were added is made again already.
    """
    from labelgap.training.history import describe_kept_epoch, has_accuracy, unseen_splits
    from labelgap.training.rerun import run_review_commands

    metrics, path = run.metrics, shlex.quote(display_path(run.path))
    kept = f"cross-validated over {run.config.folds} folds, trained on all images"
    kept = kept if run.config.folds else describe_kept_epoch(metrics)
    print_fields((run.config.method, f"{kept}, {seconds:.0f} s in all"))
    for split, heading in reversed(unseen_splits(metrics).items()):
        print_metrics(heading, {**metrics[split], "average_sizes": run.config.average_sizes})
    print_fields(("run", run.path), ("report", report))
    if not has_accuracy(metrics):
        remedy = to_get_it(run_review_commands(run.path, run.config, data))
        if all(split.labels.complete for split in data.splits):
            remedy = "to get it", f"measure on other labeled images: labelgap evaluate {path} DATA"
        print_fields(("accuracy", "not measured: the known labels support none"), remedy)
    if audited:
        print_fields(("audit", "made again, with the new images"), ("next", f"labelgap review {path}"))
    elif not data.train.labels.complete:
        print_fields(("next", f"labelgap audit {path}    ranks the labels that are probably missing"))


def to_get_it(commands: Sequence[str]) -> Field:
    """Return how to get an accuracy: label random images in full, by these commands where there are any."""
    if not commands:
        return "to get it", "label a few hundred random images in full, then evaluate again"
    return "to get it", ["label random images in full, then evaluate again:", *commands]


def percent(value: float | None) -> str:
    """Return a measure in percent."""
    return "–" if value is None else f"{100 * value:.2f}"


def interval(ends: Sequence[float] | None) -> str:
    """Return an interval in percent; empty where there is none."""
    return "" if ends is None else f"[{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"


def some_names(names: Sequence[str]) -> str:
    """Return the first few of many names, each shortened."""
    return join_names([truncate_text(name, 28) for name in names], 8)
