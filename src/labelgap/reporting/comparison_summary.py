"""What a comparison shows: the best method, whether the difference is significant, and what the missing labels cost."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from labelgap.core.text import join_names
from labelgap.reporting.formatting import format_learning_rate, format_measure
from labelgap.studies.compare.results import Comparison, MethodResult
from labelgap.training.presets import LINEAR_DEFAULTS
from labelgap.training.rerun import comparison_review_commands, data_arguments, strip_directories

SIGNIFICANCE_RULE = (
    "A method is called better only if the 95 % interval of the difference is above zero. The interval covers the "
    "seeds (Student's t over the differences of each seed) and the measured images (bootstrap)."
)
_MAX_METHODS = 5


def ranking_summary(comparison: Comparison) -> str:
    """Return which method is best, and whether the difference is significant."""
    measured = [row for row in comparison.competitors if row.mean is not None]
    if not measured:
        return ""
    best, name = measured[0], comparison.metric.name
    if len(measured) == 1:
        return f"`{best.name}`: {name} {format_measure(best.mean)}. There is nothing to compare it with."
    if len(best.seeds) == 1:
        return (
            f"`{best.name}` is highest ({name} {format_measure(best.mean)}), but with one seed no difference can be "
            "claimed: repeat it with more."
        )
    if comparison.winner is not None:
        return f"`{best.name}` is significantly better than all others: {_lead(measured[1])}."
    near = join_names([f"`{row.name}`" for row in comparison.tied[1:]], _MAX_METHODS)
    return (
        f"`{best.name}` has the highest mean ({name} {format_measure(best.mean)}), but the difference is within the "
        f"uncertainty: {near} may be as good."
    )


def missing_label_cost(comparison: Comparison) -> str:
    """Return what the missing labels cost and what the best method recovers, where the comparison shows both."""
    rows = {row.name: row.mean for row in comparison.methods}
    top, low = rows.get("bce"), rows.get("an")
    full_labels = any(row.method == "bce" and row.extra_labels for row in comparison.methods)
    measured = [row for row in comparison.competitors if row.mean is not None]
    if not full_labels or top is None or low is None or top <= low or not comparison.metric.is_accuracy or not measured:
        return ""
    best = measured[0]
    gain = (best.mean or 0.0) - low
    recovered = f"of which `{best.name}` recovers {100 * gain:.1f}" if gain > 0 else "and no method recovers any"
    return (
        f"With every label known `bce` reaches {format_measure(top)}; taking each unknown one as absent (`an`) costs "
        f"{100 * (top - low):.1f} points, {recovered}."
    )


def review_commands(comparison: Comparison, *, whole_path: bool = True) -> tuple[str, ...]:
    """Return the commands that label random images, where the methods are not ordered by an accuracy."""
    if comparison.metric.is_accuracy:
        return ()
    recipe = comparison.metadata.get("recipe") or {}
    return comparison_review_commands(comparison.path, recipe, share=not whole_path)


def method_command(comparison: Comparison, row: MethodResult, *, whole_path: bool = True) -> str:
    """Return the command that trains a method with its selected setting.

    ``whole_path``: whether the path of the data has its folders; not in a report, because reports are shared.
    """
    metadata = comparison.metadata
    options = "".join(f" --option {shlex.quote(f'{name}={value}')}" for name, value in row.options.items())
    hidden = ""
    if metadata.get("observe"):
        amounts = ",".join(f"{name}={value}" for name, value in metadata["observe"].items())
        hidden = f" --observe {amounts} --label-seed {metadata['label_seed']}"
    backbone = "" if metadata["backbone"] == "features" else f" --backbone {shlex.quote(metadata['backbone'])}"
    method = "an" if row.baseline else shlex.quote(row.method)
    rate = f" --lr {format_learning_rate(row.lr)} --batch-size {row.batch_size}"
    if row.optimizer == "newton":
        rate = " --optimizer newton"
    if not row.baseline and metadata["epochs"] != LINEAR_DEFAULTS["epochs"]:
        rate += f" --epochs {metadata['epochs']}"
    rate += f" --weight-decay {row.weight_decay:g} --{'' if row.standardize else 'no-'}standardize"
    return (
        f"labelgap train {_data(metadata, whole_path)} --method {method}{options}{rate} --protocol linear"
        f"{backbone}{hidden} --out runs/{method}"
    )


def _lead(second: MethodResult) -> str:
    gap = second.gap
    assert gap is not None and gap.half_width is not None
    return f"by {100 * gap.mean:.1f} ± {100 * gap.half_width:.1f} points over `{second.name}`, the next"


def _data(metadata: Mapping[str, Any], whole_path: bool) -> str:
    """Return the data and their options as the commands take them."""
    recipe = metadata.get("recipe") or {}
    words = data_arguments(recipe if whole_path else strip_directories(recipe))
    return shlex.join(words) if words else "DATA"
