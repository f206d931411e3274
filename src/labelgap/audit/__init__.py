"""Find the unknown labels that are probably present, and the known labels that look wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names

if TYPE_CHECKING:
    from labelgap.audit.adding import add_images
    from labelgap.audit.candidates import Audit
    from labelgap.audit.parts import find_missing_in_parts
    from labelgap.audit.runs import find_missing

__all__ = ["Audit", "add_images", "find_missing", "find_missing_in_parts"]

__getattr__ = lazy_names(__name__, "candidates", "parts", "runs", "adding")
