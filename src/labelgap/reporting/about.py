"""What a run is, in words: its method, its data and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labelgap.core.errors import UnknownNameError
from labelgap.objectives import describe
from labelgap.reporting.look import plain
from labelgap.reporting.words import listed
from labelgap.training.config import RunConfig

__all__ = ["about_method", "recipe_of", "settings_of"]


def about_method(config: RunConfig) -> str:
    """Return a method's name, what it does, whose it is and why it was taken."""
    why = "" if config.why == "as asked" else f" Chosen because {config.why}."
    try:
        entry = describe(config.method)
    except UnknownNameError:
        return f"`{config.method}`.{why}"
    return f"`{config.method}` ({entry.reference}), {entry.summary}.{why}"


def recipe_of(config: RunConfig) -> list[tuple[str, str]]:
    """Return how the data were loaded; of a path only its last part, since a report may be passed on."""
    loaded = [(name, _told(value)) for name, value in config.data.items() if value not in (None, {}, [], "")]
    classes = f"{len(config.classes):,}: {listed([plain(name) for name in config.classes], 12)}"
    return [*((name, plain(text)) for name, text in loaded), ("classes", classes)]


def settings_of(config: RunConfig) -> list[tuple[str, str]]:
    """Return the settings of a run in words."""
    end_to_end = config.protocol == "end-to-end"
    pairs = [
        ("method", config.method),
        ("options", _told(config.options) if config.options else "as the method's own"),
        ("backbone", config.backbone),
        ("protocol", config.protocol),
        ("epochs", str(config.epochs)),
        ("batch size", str(config.batch_size)),
        ("learning rate", f"{config.lr:g}" + (f", backbone {config.backbone_lr:g}" if end_to_end else "")),
        ("flipped at random", "yes" if config.flip else "no"),
        ("epoch chosen by", config.select),
        ("seed", str(config.seed)),
    ]
    return [(name, plain(text)) for name, text in pairs]


def _told(value: Any) -> str:
    """Return a value of a recipe or an option in words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(_told, value))
    path = Path(value) if isinstance(value, str) else None
    return path.name if path is not None and path.is_absolute() else str(value)
