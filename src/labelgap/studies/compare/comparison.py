"""The results of a comparison: a row for every method, the skipped methods, and which gaps are significant.

``compare.json`` holds all of it, ``compare.csv`` the table, ``settings.csv`` every head that was trained.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from labelgap.core.files import write_json, write_text
from labelgap.studies.compare.results import (
    FORMAT,
    ComparisonMetric,
    MethodResult,
    SkippedMethod,
    StoredComparison,
    Trial,
)
from labelgap.studies.result_files import csv_text, read_result, writing_results

FILE: Final = "compare.json"
TABLE: Final = "compare.csv"
TRIALS: Final = "settings.csv"
HEADS_FOLDER: Final = "heads"


@dataclass(frozen=True)
class Comparison:
    """Methods side by side on one data set.

    Attributes:
        path: the folder.
        title: the question it answers.
        metadata: data, backbone, epochs, grid and so on: what is needed to repeat it.
        rule: that selected epochs and settings; see ``training.selection``.
        metric: that orders the methods.
        methods: the best first, those with extra labels last.
        skipped: those that could not run.
        trials: every head.
        seconds: in all.
    """

    path: Path
    title: str
    metadata: Mapping[str, Any]
    rule: str
    metric: ComparisonMetric
    methods: tuple[MethodResult, ...]
    skipped: tuple[SkippedMethod, ...] = ()
    trials: tuple[Trial, ...] = field(default=(), repr=False)
    seconds: float = 0.0

    @property
    def competitors(self) -> list[MethodResult]:
        """The methods that saw the same labels."""
        return [row for row in self.methods if not row.extra_labels]

    @property
    def tied(self) -> list[MethodResult]:
        """The best competitor, and those that it is not significantly better than."""
        measured = [(row, row.gap) for row in self.competitors if row.gap is not None]
        return [row for number, (row, gap) in enumerate(measured) if number == 0 or not gap.significant]

    @property
    def winner(self) -> MethodResult | None:
        """The one method that is significantly better than all others."""
        measured = [row for row in self.competitors if row.gap is not None]
        return self.tied[0] if len(measured) > 1 and len(self.tied) == 1 else None

    def write(self) -> None:
        """Write ``compare.json``, ``compare.csv``, ``settings.csv`` and the manifest, which lists the heads too."""
        stored = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("path", "trials")}
        stored |= {"metadata": dict(self.metadata), "metric": asdict(self.metric)}
        stored |= {name: [asdict(row) for row in getattr(self, name)] for name in ("methods", "skipped")}
        heads = [f"{HEADS_FOLDER}/{path.name}" for path in (self.path / HEADS_FOLDER).glob("*.safetensors")]
        with writing_results(self.path, [FILE, TABLE, TRIALS, *heads]):
            write_json(self.path / FILE, {"format": FORMAT, **stored})
            write_text(self.path / TABLE, _to_csv([_method_row(row, self.metric) for row in self.methods]))
            write_text(self.path / TRIALS, _to_csv([_trial_row(trial) for trial in self.trials]))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Comparison:
        """Read the folder of a comparison, without its trials."""
        folder = Path(path)
        about = {"what": "a comparison", "remedy": "Compare the methods again."}
        stored = read_result(folder / FILE, StoredComparison, format=FORMAT, **about)
        parts = {name: getattr(stored, name) for name in StoredComparison.model_fields if name != "format"}
        return cls(folder, **{**parts, "metadata": stored.metadata.model_dump()})


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison."""
    return (folder / FILE).is_file()


def has_heads(folder: Path) -> bool:
    """Return whether heads of a comparison are stored in a folder, or in one below it."""
    return any(folder.rglob(f"{HEADS_FOLDER}/*.safetensors"))


def _method_row(row: MethodResult, metric: ComparisonMetric) -> dict[str, Any]:
    return {
        "method": row.method,
        "variant": json.dumps(dict(row.variant)),
        "label_view": row.label_view,
        "extra_labels": int(row.extra_labels),
        "baseline": int(row.baseline),
        "metric": metric.name,
        "mean": _format(row.mean),
        "std": _format(row.deviation),
        **{f"seed_{seed.seed}": _format(seed.value) for seed in row.seeds},
        "gap_to_best": _format(None if row.gap is None else row.gap.mean),
        "gap_half_width": _format(None if row.gap is None else row.gap.half_width),
        **{name: _format(row.mean_of(name)) for name in ("map", "map_samples", "f1_micro", "f1_macro", "train_map")},
        "classes_counted": metric.classes_counted,
        "lr": f"{row.lr:g}",
        "batch_size": row.batch_size,
        "weight_decay": f"{row.weight_decay:g}",
        "optimizer": row.optimizer,
        "standardize": int(row.standardize),
        "options": json.dumps(dict(row.options)),
        "at_edge": " ".join(f"{name}={edge}" for name, edge in row.at_edge.items()),
        "epochs": " ".join(str(seed.epoch) for seed in row.seeds),
        "settings_tried": row.settings_tried,
        "seconds": f"{row.seconds:.2f}",
    }


def _trial_row(trial: Trial) -> dict[str, Any]:
    cells = {**asdict(trial), "options": json.dumps(dict(trial.options)), "selected": int(trial.selected)}
    cells |= {"weight_decay": f"{trial.weight_decay:g}", "standardize": int(trial.standardize)}
    return {**cells, "lr": f"{trial.lr:g}", "score": _format(trial.score), "failed": trial.failed or ""}


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    return csv_text(rows[0], (row.values() for row in rows)) if rows else ""
