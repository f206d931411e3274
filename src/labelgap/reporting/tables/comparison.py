"""The table of a comparison, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from labelgap.core.text import join_names
from labelgap.reporting.formatting import NO_VALUE, format_elapsed, format_learning_rate, format_options
from labelgap.reporting.tables.terminal import terminal_table
from labelgap.studies.compare.results import BASELINE, Comparison, MethodResult


@dataclass(frozen=True)
class ComparisonRow:
    """One method in the table.

    Attributes:
        label: its name.
        extra_labels: whether it saw more labels than the others.
        tied: whether it is the best, or may be as good as the best.
        cells: under ``comparison_columns``.
        setting: under ``setting_columns``.
    """

    label: str
    extra_labels: bool
    tied: bool
    cells: tuple[str, ...]
    setting: tuple[str, ...]


def comparison_columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the headers of the measures, after the label."""
    return (comparison.metric.name or "measure", "behind best", *(name for name, _ in _measures(comparison)))


def setting_columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the headers of the settings; "weight decay" and "options" only if a method has any."""
    decay = ("weight decay",) if any(row.weight_decay for row in comparison.methods) else ()
    options = ("options",) if any(row.options for row in comparison.methods) else ()
    return (*decay, "lr", "batch", *options, "tried", "epochs kept", "time")


def comparison_rows(comparison: Comparison) -> list[ComparisonRow]:
    """Return the rows in order; methods that saw more labels come last."""
    tied = {row.name for row in comparison.tied}
    columns = setting_columns(comparison)
    return [
        ComparisonRow(
            row.name,
            row.extra_labels,
            row.name in tied and not row.extra_labels,
            (_spread(row), _behind(row), *(_exact(row.mean_of(key)) for _, key in _measures(comparison))),
            tuple(_setting(row)[name] for name in columns),
        )
        for row in comparison.methods
    ]


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return the notes under the table."""
    metric, rows = comparison.metric, comparison.methods
    notes = [f"{metric.reason[:1].upper()}{metric.reason[1:]}."] if metric.reason else []
    classes = len(comparison.metadata["classes"])
    if metric.name and metric.classes_counted < classes:
        notes.append(f"{metric.name} is over {metric.classes_counted:,} of {classes:,} classes: {_counts(comparison)}.")
    seeds = {len(row.seeds) for row in rows}
    if seeds and max(seeds) > 1:
        notes.append(
            f"± is the standard deviation over {max(seeds)} seeds; under behind best, half the 95 % interval of the "
            "difference."
        )
    chances = [row.mean_of("chance") for row in rows]
    if metric.is_accuracy and chances and chances[0] is not None:
        notes.append(f"Random scores reach a test mAP of {_exact(chances[0])}.")
    if any(edge != "last" for row in rows for edge in row.at_edge.values()):
        notes.append("* the lowest or highest value that was compared: one beyond it may be better.")
    if any("epoch" in row.at_edge for row in rows):
        notes.append("° the last epoch was the best one: more (--epochs) may be better.")
    if any(row.baseline for row in rows):
        notes.append(
            f"{BASELINE} is the baseline: scikit-learn's LogisticRegression of every class with unknown labels as "
            "absent, C searched, solved by labelgap."
        )
    extra = {
        saw: [row.name for row in rows if row.extra_labels and row.label_view == saw]
        for saw in _label_views(rows, extra_labels=True)
    }
    if extra:
        views = "; ".join(f"{join_names(names)} saw {saw}" for saw, names in extra.items())
        others = join_names(_label_views(rows, extra_labels=False))
        notes.append(f"Below the line: {views}. The others saw {others}." if others else f"{views}.")
    return notes


def comparison_table(comparison: Comparison) -> Table:
    """Return the table for the terminal: the measures, weight decay, lr and, if it differs, batch."""
    options = [f"{row.name} ({format_options(row.options)})" for row in comparison.methods if _unnamed(row)]
    notes = [*comparison_notes(comparison), *([f"Options: {'; '.join(options)}."] if options else [])]
    columns = setting_columns(comparison)
    last = "batch" if len({row.batch_size for row in comparison.methods if row.optimizer != "newton"}) > 1 else "lr"
    shown = columns[: columns.index(last) + 1]
    rows = [
        (row.label, (*row.cells, *row.setting[: len(shown)]), row.tied, row.extra_labels)
        for row in comparison_rows(comparison)
    ]
    return terminal_table(comparison.title, (*comparison_columns(comparison), *shown), rows, notes)


def _unnamed(row: MethodResult) -> bool:
    """Whether a row has options that its name does not tell."""
    return not row.options.keys() <= row.variant.keys()


def _setting(row: MethodResult) -> dict[str, str]:
    marks = {name: "*" if name in row.at_edge else "" for name in ("weight_decay", "lr")}
    rate = "newton" if row.optimizer == "newton" else format_learning_rate(row.lr)
    return {
        "weight decay": f"{row.weight_decay:.2g}{marks['weight_decay']}",
        "lr": f"{rate}{marks['lr']}{'°' if 'epoch' in row.at_edge else ''}",
        "batch": "all" if row.optimizer == "newton" else str(row.batch_size),
        "options": format_options(row.options),
        "tried": str(row.settings_tried),
        "epochs kept": ", ".join(str(seed.epoch) for seed in row.seeds),
        "time": format_elapsed(row.seconds),
    }


def _label_views(rows: Sequence[MethodResult], *, extra_labels: bool) -> list[str]:
    """Return the different label views of methods."""
    return list(dict.fromkeys(row.label_view for row in rows if row.extra_labels is extra_labels))


def _measures(comparison: Comparison) -> Sequence[tuple[str, str]]:
    """Return the columns in which any method has a value, with their keys."""
    known = ("F1 micro", "f1_micro"), ("F1 macro", "f1_macro"), ("train mAP", "train_map")
    return [(name, key) for name, key in known if any(row.mean_of(key) is not None for row in comparison.methods)]


def _exact(value: float | None) -> str:
    """Return a measure in percent with two decimals: methods differ by less than a point."""
    return NO_VALUE if value is None else f"{100 * value:.2f}"


def _spread(row: MethodResult) -> str:
    return _exact(row.mean) if row.deviation is None else f"{_exact(row.mean)} ± {100 * row.deviation:.2f}"


def _behind(row: MethodResult) -> str:
    if row.gap is None or row.gap.mean == 0:
        return ""
    half = "" if row.gap.half_width is None else f" ± {100 * row.gap.half_width:.2f}"
    return f"{100 * row.gap.mean:.2f}{half}"


def _counts(comparison: Comparison) -> str:
    if comparison.metric.is_accuracy:
        return "those with a known present and enough known absent labels"
    return "those that are present in one image and not in another"
