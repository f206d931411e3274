"""The review: candidates, a page where a person decides, and what becomes of the decisions."""

from __future__ import annotations

from labelgap.review.folder import ReviewFolder, create_random_review, is_review_folder, open_review_folder
from labelgap.review.sample_estimate import SampleEstimate, estimate_from_sample, wilson_interval
from labelgap.review.session import Review
from labelgap.review.store import decisions

__all__ = [
    "Review",
    "ReviewFolder",
    "SampleEstimate",
    "create_random_review",
    "decisions",
    "estimate_from_sample",
    "is_review_folder",
    "open_review_folder",
    "wilson_interval",
]
