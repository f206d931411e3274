"""Several people at one review: who looks at what, second opinions, how well people agree, and how fast they are."""

from __future__ import annotations

from labelgap.review.team.agreement import Agreement, OpinionPair, TeamAgreement, describe_agreement, measure_agreement
from labelgap.review.team.leases import Holder, Leases
from labelgap.review.team.people import PersonProgress, count_people
from labelgap.review.team.second_opinions import SecondOpinions, is_doubled
from labelgap.review.team.summary import TeamSummary, summarize_team

__all__ = [
    "Agreement",
    "Holder",
    "Leases",
    "OpinionPair",
    "PersonProgress",
    "SecondOpinions",
    "TeamAgreement",
    "TeamSummary",
    "count_people",
    "describe_agreement",
    "is_doubled",
    "measure_agreement",
    "summarize_team",
]
