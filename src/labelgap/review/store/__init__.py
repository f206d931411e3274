"""The decisions of a review on disk: ``review.sqlite``, an append-only list of events."""

from __future__ import annotations

from labelgap.review.store.database import FILE
from labelgap.review.store.decision_store import SOURCE, DecisionStore, decisions, read_classes, read_decisions
from labelgap.review.store.recovery import RecoveryResult, recover_events

__all__ = [
    "DecisionStore",
    "FILE",
    "RecoveryResult",
    "SOURCE",
    "decisions",
    "read_classes",
    "read_decisions",
    "recover_events",
]
