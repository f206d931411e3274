"""What is done with decisions: a table that has them, and random images to measure a model on."""

from __future__ import annotations

from labelgap.review.apply.random_images import decided_images
from labelgap.review.apply.table import ApplyResult, apply_decisions

__all__ = ["ApplyResult", "apply_decisions", "decided_images"]
