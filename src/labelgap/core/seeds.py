"""Reproducible randomness: every stream depends on a seed and a purpose, never on what was drawn before."""

from __future__ import annotations

import hashlib
import random

import numpy as np


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose, independent of others: ``derive_seed(0, "order", 3)`` for epoch 3."""
    text = "\x1f".join([str(int(seed)), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a numpy generator for one purpose."""
    return np.random.default_rng(derive_seed(seed, *purpose))


def seed_everything(seed: int) -> None:
    """Seed Python, numpy's global state and torch on every device."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
