"""The linear engine: trains many linear heads on fixed features at once. ``train_heads`` is the entry point."""

from labelgap.training.heads.engine import LinearEngine, StepHook
from labelgap.training.heads.grouping import HeadPlan
from labelgap.training.heads.train import HeadResult, train_heads

__all__ = ["HeadPlan", "HeadResult", "LinearEngine", "StepHook", "train_heads"]
