"""What a comparison says in words: who is ahead, whether that is more than chance, and what the missing labels cost."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from labelgap.reporting.formatting import format_measure, join_names
from labelgap.studies.compare.comparison import Comparison, MethodResult
from labelgap.training.config.rerun import data_arguments, strip_directories

__all__ = [
    "SIGNIFICANCE_RULE",
    "format_learning_rate",
    "format_options",
    "method_command",
    "missing_label_cost",
    "ranking_summary",
]

SIGNIFICANCE_RULE = (
    "A method is called better only where the 95 % interval of the difference lies above zero. The interval counts the "
    "seeds (Student's t over the differences of each seed) and the images it was measured on (drawn with replacement)."
)
_SHOWN = 5


def ranking_summary(comparison: Comparison) -> str:
    """Say which method is ahead, and whether that is more than chance."""
    measured = [row for row in comparison.competitors if row.mean is not None]
    if not measured:
        return ""
    best, name = measured[0], comparison.metric.name
    if len(measured) == 1:
        return f"`{best.method}`: {name} {format_measure(best.mean)}. There is nothing to compare it with."
    if len(best.seeds) == 1:
        return (
            f"`{best.method}` is highest ({name} {format_measure(best.mean)}), but with one seed no difference can be "
            "claimed: repeat it with more."
        )
    if comparison.winner is not None:
        return f"`{best.method}` is ahead of all others, and by more than chance explains: {_ahead(measured[1])}."
    near = join_names([f"`{row.method}`" for row in comparison.tied[1:]], _SHOWN)
    return (
        f"`{best.method}` has the highest mean ({name} {format_measure(best.mean)}), but the difference is within the "
        f"uncertainty: {near} may be as good."
    )


def missing_label_cost(comparison: Comparison) -> str:
    """Say what the missing labels cost and what the best method wins back, where the comparison shows both."""
    rows = {row.method: row.mean for row in comparison.methods}
    top, low = rows.get("bce"), rows.get("an")
    apart = any(row.method == "bce" and row.extra_labels for row in comparison.methods)
    measured = [row for row in comparison.competitors if row.mean is not None]
    if not apart or top is None or low is None or top <= low or not comparison.metric.is_accuracy or not measured:
        return ""
    said = (
        f"With every label known `bce` reaches {format_measure(top)}; taking each unknown one as absent (`an`) costs "
    )
    best = measured[0]
    won = (best.mean or 0.0) - low
    more = f", of which `{best.method}` wins {100 * won:.1f} back" if won > 0 else ", and no method wins any back"
    return f"{said}{100 * (top - low):.1f} points{more}."


def format_options(options: Mapping[str, Any]) -> str:
    """Return the options of a method for a reader.

    Example:
        >>> format_options({"expected_positives": 1.4576, "unknown": "negative"})
        'expected positives 1.4576, unknown negative'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())


def method_command(comparison: Comparison, row: MethodResult, *, whole_path: bool = True) -> str:
    """Return the command that trains a method at its chosen setting.

    Args:
        comparison: what it was chosen in.
        row: the method.
        whole_path: whether the data's whole path is in it; a report that may be passed on has its last part only.
    """
    about = comparison.metadata
    options = "".join(f" --option {shlex.quote(f'{name}={value}')}" for name, value in row.options.items())
    hidden = ""
    if about.get("observe"):
        amounts = ",".join(f"{name}={value}" for name, value in about["observe"].items())
        hidden = f" --observe {amounts} --label-seed {about['label_seed']}"
    backbone = "" if about["backbone"] == "features" else f" --backbone {about['backbone']}"
    return (
        f"labelgap train {_data(about, whole_path)} --method {row.method}{options} --lr {format_learning_rate(row.lr)} "
        f"--batch-size {row.batch_size} --protocol linear{backbone}{hidden} --out runs/{row.method}"
    )


def _ahead(second: MethodResult) -> str:
    behind = second.gap
    assert behind is not None and behind.half_width is not None
    return f"by {100 * behind.mean:.1f} ± {100 * behind.half_width:.1f} points over `{second.method}`, the next"


def _data(about: Mapping[str, Any], whole_path: bool) -> str:
    """Return the data and how they were read, as they are typed."""
    recipe = about.get("recipe") or {}
    words = data_arguments(recipe if whole_path else strip_directories(recipe))
    return shlex.join(words) if words else "DATA"


def format_learning_rate(lr: float) -> str:
    """Return a learning rate as papers write it.

    Example:
        >>> format_learning_rate(1e-4), format_learning_rate(0.0005), format_learning_rate(0.01)
        ('1e-4', '5e-4', '1e-2')
    """
    digits, _, power = f"{lr:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"
