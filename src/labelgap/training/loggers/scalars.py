"""The scalars of a run, of the same names in every log, and its hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from labelgap.training.config.schema import RunConfig

_RECORD: Final = {
    "loss": "train/loss",
    "seconds": "train/seconds",
    "revisions": "train/revisions",
    "revisions_precision": "train/revisions_precision",
    "score": "val/score",
    "classes_counted": "val/classes_counted",
}
_MEASURES: Final = ("map", "map_samples", "f1_micro", "f1_macro")
_LEFT_OUT: Final = {"format", "data", "classes", "why", "weights", "backbone_input", "checkpoint_minutes", "trace"}


def epoch_scalars(record: Mapping[str, Any], config: RunConfig) -> dict[str, float]:
    """Return the scalars of an epoch: what is known and finite of its record in ``metrics.jsonl``, and the rate.

    ``val/score`` is what selects the epoch; ``val/map`` is there too where that is a mean average precision.
    """
    found = {name: record.get(key) for key, name in _RECORD.items()}
    if record.get("select") in ("clean", "known"):
        found["val/map"] = record.get("score")
    if config.optimizer != "newton" and record["epoch"]:
        found["train/lr"] = config.lr * rate_factor(config, record["epoch"]) * (record.get("lr_factor") or 1.0)
    return _finite(found)


def rate_factor(config: RunConfig, epoch: int) -> float:
    """Return the factor of the learning rates that the schedule has reached at the end of an epoch."""
    if epoch < config.warmup:
        return epoch / config.warmup
    if config.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (epoch - config.warmup) / max(config.epochs - config.warmup, 1e-9)))


def summary_scalars(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures of a finished run, with the weights of its best epoch: ``best/epoch``, ``best/test/map`` …"""
    found = {"best/epoch": summary.get("best_epoch"), "best/score": summary.get("score")}
    for split in ("train", "val", "test"):
        found |= {f"best/{split}/{name}": (summary.get(split) or {}).get(name) for name in _MEASURES}
    return _finite(found)


def hyper_parameters(config: RunConfig) -> dict[str, str | int | float | bool]:
    """Return the settings of a run, options by their names; no path of this machine."""
    settings = config.model_dump(mode="json", exclude=_LEFT_OUT)
    nested = {"options": settings.pop("options"), "linear": settings.pop("linear") or {}}
    flat = {f"{group}/{name}": value for group, values in nested.items() for name, value in values.items()}
    found = {"data": config.data.get("name", ""), "classes": len(config.classes), **settings, **flat}
    return {
        name: value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in found.items()
        if value is not None
    }


def _finite(found: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}
