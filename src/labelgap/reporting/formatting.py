"""Numbers, names and selection rules as text, and tables of results for the terminal."""

from __future__ import annotations

import math
import shlex
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

NO_VALUE: Final = "–"  # in place of a number that the known labels do not support

SELECTION_RULES: Final = {
    "clean": "Every label of val is known, so the epoch with the highest val mAP was kept.",
    "known": "The epoch with the highest val mAP was kept, over the classes with known present and absent labels.",
    "observed": "Too few labels of val are known to measure accuracy. Epochs were ordered by how high they rank the "
    "observed positives, which is not an accuracy. For a true estimate, label a few hundred random val images "
    "completely.",
    "last": "The last epoch was kept; val was not used to select it.",
}
"""How the epoch was selected, and what follows from it."""
Measured = tuple[str, float | None]  # the name of a method, and its measure from 0 to 1
_LABEL_WIDTH: Final = 24  # half of it is shown of a label in the narrowest terminal
_GAP: Final = 2  # between two columns


def format_number(value: float | None, digits: int = 2) -> str:
    """Return a number with so many decimals, or a dash when there is none."""
    return NO_VALUE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def format_measure(value: float | None, digits: int = 1) -> str:
    """Return a measure from 0 to 1 in percent, or a dash when there is none."""
    return format_number(None if value is None else 100 * value, digits)


def format_spread(values: ArrayLike, digits: int = 2) -> str:
    """Return the mean of the values that are known and, of several, their standard deviation."""
    every = np.asarray(values, dtype=np.float64)
    known = every[np.isfinite(every)]
    if not len(known):
        return NO_VALUE
    return f"{known.mean():.{digits}f}" + (f" ± {known.std(ddof=1):.{digits}f}" if len(known) > 1 else "")


def divide(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    """Return part / whole, and NaN where the whole is 0."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan)


def format_elapsed(seconds: float | None) -> str:
    """Return a duration."""
    if seconds is None or not math.isfinite(seconds):
        return NO_VALUE
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_probability(value: float) -> str:
    """Return a calibrated probability in percent, rounded down: none reads 100 %."""
    if math.isnan(value):
        return NO_VALUE
    return f"{min(int(100 * value), 99)} %" if value >= 0.01 else "< 1 %"


def format_class_count(count: int | None, classes: int | None) -> str:
    """Return how many classes a mean is over."""
    return NO_VALUE if count is None or classes is None else f"{count:,} of {classes:,}"


def format_learning_rate(lr: float) -> str:
    """Return a learning rate as papers write it."""
    digits, _, power = f"{lr:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def format_options(options: Mapping[str, Any]) -> str:
    """Return the options of a method: ``expected positives 1.4576, unknown negative``."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())


def single_line(name: str) -> str:
    """Return a user's name on one line, without control characters, which XML forbids."""
    shown = "".join(" " if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") else sign for sign in name)
    return " ".join(shown.split())


def truncate_label(name: str, length: int = 28) -> str:
    """Return a name that fits beside an axis: ``a very long name of…``."""
    name = single_line(name)
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"


def val_score_name(rule: str, *, folds: bool = False) -> str:
    """Return what selects epochs and settings: an accuracy, or a ranking of the observed labels."""
    if folds:
        return "observed ranking out of fold" if rule == "observed" else "out-of-fold mAP"
    return "observed ranking of val" if rule == "observed" else "val mAP"


def chosen_by_val(rule: str) -> str:
    """Return what val chose in a training, which makes its numbers slightly too high."""
    return "the thresholds" if rule == "last" else "the epoch and the thresholds"


def describe_cost(top: Measured, low: Measured, best: Measured) -> str:
    """Return what missing labels cost: with every label, taken as absent, and what the best method recovers."""
    if top[1] is None or low[1] is None or top[1] <= low[1]:
        return ""
    cost, gain = 100 * (top[1] - low[1]), 100 * ((best[1] or 0.0) - low[1])
    recovered = f"of which `{best[0]}` recovers {gain:.1f}" if gain > 0 else "and no method recovers any"
    reached = f"With every label known `{top[0]}` reaches {format_measure(top[1])}"
    return f"{reached}; taking each unknown one as absent (`{low[0]}`) costs {cost:.1f} points, {recovered}."


def wrapped_command(command: str) -> str:
    """Return a command with an option on each line, which a shell reads as one."""
    if "\n" in command:  # Python
        return command
    lines: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(map(shlex.join, lines))


class ResultRow(NamedTuple):
    """A row of a table of results."""

    label: str
    cells: Sequence[str]
    bold: bool = False
    apart: bool = False  # whether it saw more labels than the others: such rows come last, below a gap


@dataclass(frozen=True)
class ResultTable:
    """A table of results, for a page and, as rich prints it, for the terminal."""

    title: str
    columns: Sequence[str]  # the headers, after the label
    rows: Sequence[ResultRow]
    notes: Sequence[str] = ()
    strong: Collection[tuple[int, int]] = ()  # row and column of cells that are bold alone
    joined: Collection[int] = ()  # columns that stand beside the one before, whatever the width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the title, tables of as many columns as keep each row on one line, and the notes."""
        label, sizes = self._widths(options.max_width)
        blocks, room = list[list[int]](), 0
        for group in self._groups():
            need = sum(sizes[place] + _GAP for place in group)
            if not blocks or need > room:
                blocks, room = [*blocks, []], options.max_width - label
            blocks[-1] += group
            room -= need
        yield Text(single_line(self.title), "bold")
        for block in blocks or [[]]:
            if block and block[0]:
                yield ""
            table = Table(box=None, pad_edge=False, header_style="dim")
            table.add_column("", no_wrap=True, width=label)
            for place in block:
                table.add_column(Text(self.columns[place]), justify="right", width=sizes[place], overflow="fold")
            for number, row in enumerate(self.rows):
                if row.apart and number and not self.rows[number - 1].apart:
                    table.add_row()
                cells = (Text(row.cells[place], "bold" if (number, place) in self.strong else "") for place in block)
                style = "dim" if row.apart else "bold" if row.bold else ""
                table.add_row(Text(single_line(row.label)), *cells, style=style)
            yield table
        if self.notes:
            yield Text("\n".join(self.notes), "dim")

    def _groups(self) -> list[list[int]]:
        groups = list[list[int]]()
        for place in range(len(self.columns)):
            if place in self.joined:
                groups[-1].append(place)
            else:
                groups.append([place])
        return groups

    def _widths(self, width: int) -> tuple[int, list[int]]:
        """Return the widths of the label and of the columns: headers are folded where they would not fit."""
        longest = max((cell_len(single_line(row.label)) for row in self.rows), default=0)
        sizes = [
            max((cell_len(row.cells[place]) for row in self.rows), default=0) for place in range(len(self.columns))
        ]
        whole = [max(size, *map(cell_len, name.split("\n"))) for size, name in zip(sizes, self.columns, strict=True)]
        if longest + sum(size + _GAP for size in whole) > width:
            whole = [
                max(size, *map(cell_len, name.split() or [""])) for size, name in zip(sizes, self.columns, strict=True)
            ]
        widest = max((sum(whole[place] + _GAP for place in group) for group in self._groups()), default=0)
        return min(longest, max(width - widest, _LABEL_WIDTH // 2)), whole
