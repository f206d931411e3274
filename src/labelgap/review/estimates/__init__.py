"""How many labels are still missing, with intervals, and what the next ones are expected to hold."""

from __future__ import annotations

from labelgap.review.estimates.decisions import join_labels, order_decisions, order_fixed_list, other_decisions
from labelgap.review.estimates.labels import MIN_RANDOM, ReviewedLabels, ReviewEstimate, SampleEstimate
from labelgap.review.estimates.next_labels import NEXT, ExpectedPresent, expect_next
from labelgap.review.estimates.sample import estimate_review
from labelgap.review.estimates.sentences import describe_estimate, describe_next

__all__ = [
    "ExpectedPresent",
    "MIN_RANDOM",
    "NEXT",
    "ReviewEstimate",
    "ReviewedLabels",
    "SampleEstimate",
    "describe_estimate",
    "describe_next",
    "estimate_review",
    "expect_next",
    "join_labels",
    "order_decisions",
    "order_fixed_list",
    "other_decisions",
]
