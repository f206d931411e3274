"""Compare methods: linear heads on the same features, each method at the setting that val chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names

if TYPE_CHECKING:
    from labelgap.studies.compare.results import Comparison
    from labelgap.studies.compare.runner import compare

__all__ = ["Comparison", "compare"]

__getattr__ = lazy_names(__name__, "results", "runner")
