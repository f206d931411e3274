"""How many labels are still missing, with intervals, and what the next ones are expected to hold."""

from __future__ import annotations

from labelgap.review.estimates.current import AuditCounts, count_audited, estimate_current
from labelgap.review.estimates.decisions import order_decisions, order_fixed_list
from labelgap.review.estimates.labels import MIN_RANDOM, ReviewedLabels, ReviewEstimate, SampleEstimate
from labelgap.review.estimates.next_labels import NEXT, ExpectedPresent, expect_next
from labelgap.review.estimates.sample import estimate_review
from labelgap.review.estimates.sentences import describe_estimate, describe_left, describe_next

__all__ = [
    "AuditCounts",
    "ExpectedPresent",
    "MIN_RANDOM",
    "NEXT",
    "ReviewEstimate",
    "ReviewedLabels",
    "SampleEstimate",
    "count_audited",
    "describe_estimate",
    "describe_left",
    "describe_next",
    "estimate_current",
    "estimate_review",
    "expect_next",
    "order_decisions",
    "order_fixed_list",
]
