"""Where results that can be computed again are kept."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Return the folder: ``$LABELGAP_CACHE``, or ``labelgap`` in the user's cache folder. It may not exist yet."""
    given = os.environ.get("LABELGAP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(given) if given else (Path(base) if base else Path.home() / ".cache") / "labelgap"
