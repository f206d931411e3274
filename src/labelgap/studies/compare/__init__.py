"""Compare methods: linear heads on the same features, each method at the setting that val chooses."""

from labelgap.studies.compare.results import Comparison
from labelgap.studies.compare.runner import compare

__all__ = ["Comparison", "compare"]
