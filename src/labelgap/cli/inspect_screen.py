"""The output of ``labelgap inspect``: counts, warnings, what the labels allow, the next command."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from labelgap.cli.printing import some_names
from labelgap.core.text import truncate_text

if TYPE_CHECKING:
    from labelgap.data.summary import ClassSummary, DatasetSummary

LABEL_WIDTH: Final = 13
"""Width of the column of headings."""

_MAX_NAMES: Final = 8
_NO_BREAK_SPACE: Final = "\u00a0"


def inspect_lines(summary: DatasetSummary, seconds: float, estimate: str | None = None, width: int = 80) -> list[str]:
    """Return the lines to print; only commands may be longer than ``width``, so that they can be copied."""
    counts = f"{summary.whole.images:,} {summary.image_word}s, {len(summary.classes):,} {summary.class_words}"
    first, took = f"{summary.name}: {counts}", f"read in {seconds:.1f} s"
    wrong, read, split = _findings(summary)
    if len(read) == 1 and len(first) + len(read[0]) + len(took) + 6 <= width:
        first += f" ({read.pop()})"
    lines = _beside(first, took, width, "")
    lines += _states(summary, width)
    lines += _rarest(summary, width)
    warnings = [
        f"{each}: {some_names(each.names)}" if each.names else str(each)
        for each in summary.warnings
        if each.kind != "few_present"
    ]
    lines += _block("looks wrong", [*warnings, *wrong], width)
    lines += _block("read as", read, width) + _block("split", split, width)
    lines += _block("you can", summary.can, width) + _block("you cannot", summary.cannot, width)
    if summary.next:
        command = f"{'next':<{LABEL_WIDTH}}{summary.next}"
        lines += [command] if estimate is None else _beside(command, estimate, width, " " * LABEL_WIDTH)
    return lines


def class_table(summary: DatasetSummary) -> list[str]:
    """Return a line per class: present, absent, unknown, and the splits on which it can be measured."""
    longest = max((len(row.name) for row in summary.classes), default=0)
    left = min(max(longest, len(summary.class_word)), 40) + 2
    head = f"{summary.class_word:<{left}}{'present':>10}{'absent':>10}{'unknown':>10}   measurable on"
    return [head, *(_class_row(row, left) for row in summary.classes)]


def _class_row(row: ClassSummary, left: int) -> str:
    counts = f"{row.present:>10,}{row.absent:>10,}{row.unknown:>10,}"
    return f"{truncate_text(row.name, left - 2):<{left}}{counts}   {', '.join(row.measurable) or '–'}"


def _states(summary: DatasetSummary, width: int) -> list[str]:
    """Return the table of label counts: all images, then each split."""
    rows = {"all": summary.whole, **{f"  {name}": split for name, split in summary.splits.items()}}
    cells = {
        name: [f"{value:,}" for value in (row.images, row.present, row.absent, row.unknown)]
        for name, row in rows.items()
    }
    header = [f"{summary.image_word}s", "present", "absent", "unknown"]
    wide = [max(map(len, column)) + 3 for column in zip(header, *cells.values(), strict=True)]

    def line(name: str, texts: Sequence[str]) -> str:
        return f"{name:<{LABEL_WIDTH - 3}}" + "".join(f"{text:>{size}}" for text, size in zip(texts, wide, strict=True))

    labels = summary.whole.present + summary.whole.absent + summary.whole.unknown
    share = _percent(summary.whole.unknown, labels)
    given = summary.class_words if summary.present_per_image != 1 else summary.class_word
    note = f"{summary.present_per_image:.1f} {given} given per {summary.image_word}, {share} of labels unknown"
    first = _beside(line("all", cells.pop("all")), note, width, " " * LABEL_WIDTH, gap=6)
    return [line("", header), *first, *(line(name, texts) for name, texts in cells.items())]


def _percent(part: int, whole: int) -> str:
    """Return a share in percent; only nothing is 0 % and only everything is 100 %."""
    if part in (0, whole):
        return "0 %" if part == 0 else "100 %"
    value = round(100 * part / whole)
    return "under 1 %" if value < 1 else "over 99 %" if value > 99 else f"{value} %"


def _rarest(summary: DatasetSummary, width: int) -> list[str]:
    from labelgap.data.summary import RARE_BELOW

    few = sum(0 < row.present < RARE_BELOW for row in summary.classes)
    rows = summary.rarest(min(few, _MAX_NAMES) or 3)
    if not rows:
        return []
    text = " · ".join(f"{truncate_text(row.name)} {row.present:,}".replace(" ", _NO_BREAK_SPACE) for row in rows)
    if not few:
        return _block("rarest", [text], width)
    left = few - len(rows)
    text += f" and {left:,} more" if left > 0 else ""
    note = f"fewer than {RARE_BELOW} {summary.image_word}s: expect little from these"
    if LABEL_WIDTH + len(text) + 3 + len(note) <= width:
        return [f"{'rarest':<{LABEL_WIDTH}}{text.replace(_NO_BREAK_SPACE, ' ')}   {note}"]
    return _block("rarest", [text, note], width)


def _findings(summary: DatasetSummary) -> tuple[list[str], list[str], list[str]]:
    """Return what looks wrong, how labels were read, and how they were split; the table shows the counts."""
    wrong = [str(finding) for finding in summary.findings if finding.warning]
    shown = [finding for finding in summary.findings if finding.topic != "counts" and not finding.warning]
    read = [str(finding) for finding in shown if finding.topic != "split"]
    return wrong, read, [str(finding) for finding in shown if finding.topic == "split"]


def _block(label: str, texts: Sequence[str], width: int) -> list[str]:
    """Return texts beside a heading, each on a new line, wrapped to a width."""
    lines = [
        line.replace(_NO_BREAK_SPACE, " ")
        for text in texts
        for line in textwrap.wrap(text, max(width - LABEL_WIDTH, 20), break_long_words=False, break_on_hyphens=False)
    ]
    return [f"{label if number == 0 else '':<{LABEL_WIDTH}}{line}" for number, line in enumerate(lines)]


def _beside(text: str, note: str, width: int, indent: str, gap: int = 8) -> list[str]:
    """Return a note to the right of a text if it fits, else below it."""
    gap_width = width - len(text) - len(note)
    if gap_width >= 3:
        return [text + " " * min(gap, gap_width) + note]
    return [text, *(indent + line for line in textwrap.wrap(note, max(width - len(indent), 20)))]
