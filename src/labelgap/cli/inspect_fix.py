"""The output of ``labelgap inspect --fix``: every change with its line, what was written, the next command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from labelgap.cli.inspect_screen import LABEL_WIDTH
from labelgap.core.errors import Problem, merge_repeated
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.data.cleaning import FixedTable

_SHOWN: Final = 20
_HEADINGS: Final = {
    "left_out": ("left out", "row"),
    "merged": ("merged", "row"),
    "unknown": ("unknown", "label"),
    "split": ("split", "cell"),
    "columns": ("columns", "column"),
    "classes": ("tags", "tag"),
    "copies": ("copies", "photo"),
}
"""Kind of change → heading, and what is counted."""


def fix_lines(fixed: FixedTable, command: str) -> list[str]:
    """Return the lines to print; ``command`` is what to do next."""
    photos = sum(map(len, fixed.data.splits))
    tags = pluralize(len(fixed.data.classes), "tag")
    lines = [f"{fixed.source}: {pluralize(fixed.rows, 'row')}; {fixed.path}: {pluralize(photos, 'photo')}, {tags}"]
    for kind, (heading, noun) in _HEADINGS.items():
        changes = [change for change in fixed.changes if change.kind == kind]
        if not changes:
            continue
        note = " named, not changed" if kind == "copies" else ""
        lines.append(f"{heading:<{LABEL_WIDTH}}{pluralize(len(changes), noun)}{note}")
        unit, listed = fixed.unit, [Problem(each.line, each.text) for each in changes]
        listed = listed if len(listed) <= _SHOWN else merge_repeated(listed)
        lines += [f"  {f'{unit} {each.line}':<{LABEL_WIDTH - 2}}{each.message}" for each in listed[:_SHOWN]]
        if len(listed) > _SHOWN:
            lines.append(f"{'':<{LABEL_WIDTH}}…and {len(listed) - _SHOWN:,} more: {fixed.changes_path}")
    if not fixed.changes:
        lines.append(f"{'changed':<{LABEL_WIDTH}}nothing: it can be used as it is")
    for number, proposal in enumerate(fixed.proposals):
        lines.append(f"{'perhaps' if not number else '':<{LABEL_WIDTH}}{proposal}")
    if fixed.proposals:
        lines.append(f"{'':<{LABEL_WIDTH}}nothing was done about these: repeat the command with --force and --rename")
    lines.append(f"{'wrote':<{LABEL_WIDTH}}{fixed.path} and {fixed.changes_path}; {fixed.source} is as it was")
    lines.append(f"{'next':<{LABEL_WIDTH}}{command}")
    return lines
