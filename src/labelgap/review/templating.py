"""Templates, scripts and style sheets, as they lie beside this file."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import labelgap.reporting
from labelgap.reporting.style import single_line

__all__ = ["static_files", "static_version", "templates"]

_HERE: Final = Path(__file__).parent


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Return the templates; whatever is not marked as safe is escaped."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"plain": single_line, "thousands": lambda number: f"{number:,}"}
    return made


@lru_cache(maxsize=1)
def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the scripts and style sheets by name, with their kind; this page looks as the reports do."""
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    paths = [*(_HERE / "static").iterdir(), Path(labelgap.reporting.__path__[0]) / "templates" / "style.css"]
    return {path.name: (path.read_bytes(), kinds[path.suffix]) for path in paths if path.suffix in kinds}


@lru_cache(maxsize=1)
def static_version() -> str:
    """Return a hash that changes with any of the files."""
    digest = hashlib.blake2b(digest_size=6)
    for name, (data, _) in sorted(static_files().items()):
        digest.update(name.encode() + data)
    return digest.hexdigest()
