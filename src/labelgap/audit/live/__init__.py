"""Rank the open candidates of an audit again while a person decides them."""

from labelgap.audit.live.heads import FeatureScale
from labelgap.audit.live.ranking import AIMS, Aim, Decisions, LiveRanking, rank_open

__all__ = ["AIMS", "Aim", "Decisions", "FeatureScale", "LiveRanking", "rank_open"]
