"""The review of candidate labels: a local web page where people decide, and what is done with the decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names

if TYPE_CHECKING:
    from labelgap.review.estimates import ReviewEstimate, SampleEstimate
    from labelgap.review.external_tools import fiftyone_view, import_decisions
    from labelgap.review.folder import (
        ReviewFolder,
        check_review,
        create_random_review,
        default_split,
        is_review_folder,
        open_review_folder,
    )
    from labelgap.review.session import Review
    from labelgap.review.store import decisions

__all__ = [
    "Review",
    "ReviewEstimate",
    "ReviewFolder",
    "SampleEstimate",
    "check_review",
    "create_random_review",
    "decisions",
    "default_split",
    "fiftyone_view",
    "import_decisions",
    "is_review_folder",
    "open_review_folder",
]

__getattr__ = lazy_names(__name__, "folder", "store", "session", "estimates", "external_tools")
