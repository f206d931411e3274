"""What the commands print: one screen, the numbers that matter, what they allow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelgap.data import Dataset
    from labelgap.training import Run

__all__ = ["print_data", "print_measures", "print_run"]


def print_data(data: Dataset) -> None:
    """Say what was understood: images, classes, rules, and labels of each state per split."""
    print(f"{data.name}: {sum(map(len, data.splits)):,} images, {len(data.classes):,} classes")
    for rule in data.rules:
        print(f"  {rule}")
    print(f"{'':<8}{'images':>10}{'present':>12}{'absent':>12}{'unknown':>12}")
    for split in data.splits:
        present, absent, unknown = split.labels.counts().total
        print(f"{split.name:<8}{len(split):>10,}{present:>12,}{absent:>12,}{unknown:>12,}")


def print_measures(name: str, measured: Mapping[str, Any]) -> None:
    """Say how good a run is on a split, or why that cannot be said."""
    if measured["map"] is None:
        print(f"{name:<10}no class has both a known present and a known absent: no accuracy can be measured here")
        return
    counted = f"{measured['classes_counted']} of {measured['classes']} classes"
    print(f"{name:<10}mAP {_percent(measured['map'])} over {counted}; per image {_percent(measured['map_samples'])}")
    print(
        f"{'':<10}F1 micro {_percent(measured['f1_micro'])}, macro {_percent(measured['f1_macro'])} at the run's "
        f"thresholds; {_percent(measured['f1_micro_at_half'])}, {_percent(measured['f1_macro_at_half'])} at 0.5"
    )


def print_run(run: Run, report: Path) -> None:
    """Say what a run came to and what to do next."""
    summary = run.metrics
    print(
        f"{run.config.method:<10}epoch {summary['best_epoch']} of {summary['epochs']} kept, {summary['seconds']:.0f} s"
    )
    for name in ("val", "test"):
        if name in summary:
            print_measures(name, summary[name])
    print(f"{'run':<10}{run.path}")
    print(f"{'report':<10}{report}")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
