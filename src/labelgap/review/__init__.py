"""The review: candidates, a page where a person decides, and what becomes of the decisions."""

from __future__ import annotations

from labelgap.review.estimate import Estimate, estimate_missing, wilson
from labelgap.review.folder import Folder, draw, is_folder, open_folder
from labelgap.review.session import Review
from labelgap.review.store import decisions

__all__ = [
    "Estimate",
    "Folder",
    "Review",
    "decisions",
    "draw",
    "estimate_missing",
    "is_folder",
    "open_folder",
    "wilson",
]
