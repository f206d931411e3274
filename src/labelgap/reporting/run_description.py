"""What a run is, in words: its method, its data and its settings."""

from __future__ import annotations

from labelgap.core.errors import UnknownNameError
from labelgap.losses import describe_method
from labelgap.reporting.formatting import join_names
from labelgap.reporting.style import single_line
from labelgap.training.config.describe import describe_settings, format_value
from labelgap.training.config.schema import RunConfig

__all__ = ["data_rows", "method_description", "settings_rows"]


def method_description(config: RunConfig) -> str:
    """Return a method's name, what it does, whose it is and why it was taken."""
    why = "" if config.why == "as asked" else f" Chosen because {config.why}."
    try:
        entry = describe_method(config.method)
    except UnknownNameError:
        return f"`{config.method}`.{why}"
    return f"`{config.method}` ({entry.reference}), {entry.summary}.{why}"


def data_rows(config: RunConfig) -> list[tuple[str, str]]:
    """Return how the data were loaded; of a path only its last part, since a report may be passed on."""
    loaded = [(name, format_value(value)) for name, value in config.data.items() if value not in (None, {}, [], "")]
    classes = f"{len(config.classes):,}: {join_names([single_line(name) for name in config.classes], 12)}"
    return [*((name, single_line(text)) for name, text in loaded), ("classes", classes)]


def settings_rows(config: RunConfig) -> list[tuple[str, str]]:
    """Return the settings of a run in words: all that have a say, less what is as it would be anyway."""
    return [(name, single_line(text)) for name, text in describe_settings(config)]
