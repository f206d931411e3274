"""What a run takes where the user says nothing."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Defaults", "defaults_for"]


class Defaults(NamedTuple):
    """Epochs, learning rates and batch size."""

    epochs: int
    lr: float
    backbone_lr: float
    batch_size: int


def defaults_for(protocol: str, pretrained: bool) -> Defaults:
    """Return what suits a protocol.

    - linear: the single-positive papers' 25 epochs at batch 16; 1e-3 is the better of their rates for most methods;
    - end-to-end from pretrained weights: their 10 epochs at batch 16, the head ten times faster (Kim 2022);
    - end-to-end from nothing (the digits): a rate that a small network learns at.
    """
    if protocol == "linear":
        return Defaults(25, 1e-3, 1e-3, 16)
    return Defaults(10, 1e-4, 1e-5, 16) if pretrained else Defaults(10, 3e-3, 3e-3, 64)
