"""Text for values of a run's configuration."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

PROTOCOLS: Final = {
    "linear": "a linear head on fixed features",
    "end-to-end": "the whole network",
    "linear-init": "first a linear head on fixed features, then the whole network",
}
"""What is trained under each protocol."""


def format_value(value: Any) -> str:
    """Return a value as text; of a path only its last part, because reports are shared.

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
