"""What a run is, in words: its method, its data and its settings."""

from __future__ import annotations

from labelgap.core.errors import UnknownNameError
from labelgap.objectives import describe
from labelgap.reporting.look import plain
from labelgap.reporting.words import listed
from labelgap.training.config import RunConfig
from labelgap.training.telling import settings_in_words, told

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
    loaded = [(name, told(value)) for name, value in config.data.items() if value not in (None, {}, [], "")]
    classes = f"{len(config.classes):,}: {listed([plain(name) for name in config.classes], 12)}"
    return [*((name, plain(text)) for name, text in loaded), ("classes", classes)]


def settings_of(config: RunConfig) -> list[tuple[str, str]]:
    """Return the settings of a run in words: all that have a say, less what is as it would be anyway."""
    return [(name, plain(text)) for name, text in settings_in_words(config)]
