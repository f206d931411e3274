"""Numbers, names and selection rules as text."""

from __future__ import annotations

import math
import shlex
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

NO_VALUE: Final = "–"
"""In place of a number that the known labels do not support."""

_SELECTION: Final = {
    "clean": "Every label of val is known, so the epoch with the highest val mAP was kept.",
    "known": "The epoch with the highest val mAP was kept, over the classes with known present and absent labels.",
    "observed": "Too few labels of val are known to measure accuracy. Epochs were ordered by how high they rank the "
    "observed positives, which is not an accuracy. For a true estimate, label a few hundred random val images "
    "completely.",
    "last": "The last epoch was kept; val was not used to select it.",
}


def format_measure(value: float | None) -> str:
    """Return a measure from 0 to 1 in percent, or a dash when there is none.

    Example:
        >>> format_measure(0.78432), format_measure(None)
        ('78.4', '–')
    """
    return NO_VALUE if value is None or not math.isfinite(value) else f"{100 * value:.1f}"


def format_count(value: int) -> str:
    """Return a whole number with separators.

    Example:
        >>> format_count(912130)
        '912,130'
    """
    return f"{value:,}"


def format_elapsed(seconds: float | None) -> str:
    """Return a duration.

    Example:
        >>> format_elapsed(7.25), format_elapsed(192), format_elapsed(8000)
        ('7.2 s', '3 min 12 s', '2 h 13 min')
    """
    if seconds is None or not math.isfinite(seconds):
        return NO_VALUE
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_class_count(count: int | None, classes: int | None) -> str:
    """Return how many classes a mean is over."""
    return NO_VALUE if count is None or classes is None else f"{count:,} of {classes:,}"


def format_learning_rate(lr: float) -> str:
    """Return a learning rate as papers write it.

    Example:
        >>> format_learning_rate(1e-4), format_learning_rate(0.0005), format_learning_rate(0.01)
        ('1e-4', '5e-4', '1e-2')
    """
    digits, _, power = f"{lr:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def format_options(options: Mapping[str, Any]) -> str:
    """Return the options of a method.

    Example:
        >>> format_options({"expected_positives": 1.4576, "unknown": "negative"})
        'expected positives 1.4576, unknown negative'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())


def single_line(name: str) -> str:
    """Return a user's name on one line, without control characters, which XML forbids."""
    shown = "".join(" " if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") else sign for sign in name)
    return " ".join(shown.split())


def truncate_label(name: str, length: int = 28) -> str:
    """Return a name that fits beside an axis.

    Example:
        >>> truncate_label("a very long name of a class that nobody can read", 20)
        'a very long name of…'
    """
    name = single_line(name)
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"


def selection_rule_text(rule: str) -> str:
    """Return how the epoch was selected, and what follows from it."""
    return _SELECTION[rule]


def chosen_by_val(rule: str) -> str:
    """Return what val chose in a training, which makes its numbers slightly too high.

    Example:
        >>> chosen_by_val("clean"), chosen_by_val("last")
        ('the epoch and the thresholds', 'the thresholds')
    """
    return "the thresholds" if rule == "last" else "the epoch and the thresholds"


def wrapped_command(command: str) -> str:
    r"""Return a command with an option on each line, which a shell reads as one.

    Example:
        >>> print(wrapped_command("labelgap train 'my tags.csv' --lr 0.1 --nesterov --out runs/best"))
        labelgap train 'my tags.csv' \
          --lr 0.1 \
          --nesterov \
          --out runs/best
    """
    if "\n" in command:  # Python
        return command
    lines: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(map(shlex.join, lines))
