"""The live order of a review: a worker ranks what is open again while people decide, and lists show the new order."""

from __future__ import annotations

from labelgap.review.live.rankings import LiveRankings, Ranking

__all__ = ["LiveRankings", "Ranking"]
