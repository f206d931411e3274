"""The linear engine: many linear heads on fixed features, trained at once."""

from labelgap.training.engine.core import Engine, Hook
from labelgap.training.engine.plans import HeadPlan, HeadResult
from labelgap.training.engine.training import train_heads

__all__ = ["Engine", "HeadPlan", "HeadResult", "Hook", "train_heads"]
