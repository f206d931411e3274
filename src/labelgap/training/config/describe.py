"""The settings of a run in words, for its card, its report and its place in a notebook."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

from labelgap.core.errors import UnknownNameError
from labelgap.data.feature_vectors import FEATURES
from labelgap.losses import defaults, describe_method
from labelgap.training.config.schema import LinearPhase, RunConfig

__all__ = ["PROTOCOLS", "describe_settings", "effective_options", "format_value", "method_citation"]

PROTOCOLS: Final = {
    "linear": "a linear head on fixed features",
    "end-to-end": "the whole network",
    "linear-init": "first a linear head on fixed features, then the whole network",
}
"""What is trained under each protocol."""


def describe_settings(config: RunConfig, *, everything: bool = False, size: int | None = None) -> list[tuple[str, str]]:
    """Return the settings of a run, name and words.

    Args:
        config: of the run.
        everything: also what is as it would be anyway: no preset, a linear head, a constant rate, and so on.
        size: the side of the pictures that the backbone has of its own, where it is known.
    """
    quiet = "" if config.preset is None else f"{config.preset}: that paper's settings where nothing else was said"
    picture = "" if config.backbone == FEATURES else _pictures(config, size)
    pairs = [
        ("method", config.method, ""),
        ("options", format_value(effective_options(config)), "none"),
        ("preset", quiet, "none"),
        ("backbone", _backbone(config), ""),
        ("head", "" if config.head == "linear" else config.head, "linear"),
        ("pictures", picture, ""),
        ("protocol", f"{config.protocol}: {PROTOCOLS[config.protocol]}", ""),
        ("first phase", "" if config.linear is None else _first_phase(config.linear), ""),
        ("epochs", _epochs(config), ""),
        ("batch size", _batch(config), ""),
        ("optimizer", _optimizer(config), ""),
        ("learning rate", _rates(config), ""),
        ("schedule", _schedule(config), "the rate stays the same"),
        ("gradients", "" if config.clip is None else f"cut to a norm of {config.clip:g}", "as they come"),
        ("weights kept", "" if config.ema is None else f"a moving average, decay {config.ema:g}", "those of the epoch"),
        ("precision", _precision(config), ""),
        ("epoch chosen by", config.select, ""),
        ("seed", str(config.seed), ""),
    ]
    return [(name, text or usual) for name, text, usual in pairs if text or (everything and usual)]


def effective_options(config: RunConfig) -> dict[str, Any]:
    """Return all options of a run's method: its own, and over them what this run took."""
    try:
        return {**defaults(config.method), **config.options}
    except UnknownNameError:  # a method of somebody's own, which is not here
        return dict(config.options)


def method_citation(method: str) -> str:
    """Return the paper of a method with its title; empty for a method without one.

    Example:
        >>> method_citation("ll-r")
        'Kim et al., "Large Loss Matters in Weakly Supervised Multi-Label Classification", CVPR 2022'
    """
    return describe_method(method).citation


def format_value(value: Any) -> str:
    """Return a value in words; of a path only its last part, since what is written may be passed on.

    Example:
        >>> format_value({"alpha": 0.2, "images": "photos", "classes": ["cat", "dog"]})
        'alpha 0.2, images photos, classes cat; dog'
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(format_value, value))
    path = PurePath(value) if isinstance(value, str) else None
    return path.name if path is not None and path.is_absolute() else str(value)


def _backbone(config: RunConfig) -> str:
    if config.backbone == FEATURES:
        return "none, the data are features"
    if config.weights == "none":
        return f"{config.backbone}, begun at random"
    return config.backbone + ("" if config.weights is None else f", weights of {format_value(config.weights)}")


def _pictures(config: RunConfig, own: int | None) -> str:
    side = config.size or own
    shape = "the backbone's own size" if side is None else f"{side} × {side} pixels"
    if config.transform == "crop":
        return f"random parts in random light, at {shape}"
    return f"squashed to {shape}" + (", mirrored at random" if config.flip else "")


def _first_phase(phase: LinearPhase) -> str:
    return f"the head alone: {phase.epochs} epochs of Adam at {phase.lr:g}, batches of {phase.batch_size}"


def _epochs(config: RunConfig) -> str:
    if config.stop_below is None:
        return str(config.epochs)
    return f"{config.epochs} at most; it ends {100 * config.stop_below:g} points of the val score below the best"


def _batch(config: RunConfig) -> str:
    if config.accumulate == 1:
        return str(config.batch_size)
    return f"{config.batch_size}, and the gradients of {config.accumulate} batches make one step"


def _optimizer(config: RunConfig) -> str:
    parts = ["Adam"] if config.optimizer == "adam" else ["SGD", f"momentum {config.momentum:g}"]
    if config.optimizer == "sgd" and config.nesterov:
        parts.append("Nesterov's")
    return ", ".join([*parts, *([f"weight decay {config.weight_decay:g}"] if config.weight_decay else [])])


def _rates(config: RunConfig) -> str:
    if config.protocol != "linear" and config.backbone_lr != config.lr:
        return f"head {config.lr:g}, backbone {config.backbone_lr:g}"
    return f"{config.lr:g}"


def _schedule(config: RunConfig) -> str:
    rises = f"rising over {config.warmup:g} {'epoch' if config.warmup == 1 else 'epochs'}" if config.warmup else ""
    falls = "down to nothing along a cosine" if config.schedule == "cosine" else ""
    return ", then ".join(part for part in (rises, falls) if part)


def _precision(config: RunConfig) -> str:
    bfloat = config.precision == "bf16" and config.protocol != "linear"
    return "bfloat16 where that is safe, else float32" if bfloat else "float32"
