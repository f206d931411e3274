"""What a run takes where neither the user nor a preset says anything; and what a user may say."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

__all__ = ["LINEAR_PHASE", "TrainingSettings", "defaults_for"]

LINEAR_PHASE = {"linear_epochs": 25, "linear_lr": 1e-3, "linear_batch_size": 16}
"""The single-positive papers' 25 epochs at batch 16; 1e-3 is the better of their rates for most methods."""


class TrainingSettings(TypedDict, total=False):
    """How to train, as ``fit`` and the command take it; ``RunConfig`` says what each of them is.

    ``linear_epochs``, ``linear_lr`` and ``linear_batch_size`` are those of linear-init's first phase. Where ``lr`` is
    given alone, ``backbone_lr`` keeps its proportion to it.
    """

    epochs: int | None
    lr: float | None
    backbone_lr: float | None
    batch_size: int | None
    linear_epochs: int | None
    linear_lr: float | None
    linear_batch_size: int | None
    optimiser: Literal["adam", "sgd"] | None
    momentum: float | None
    nesterov: bool | None
    weight_decay: float | None
    schedule: Literal["constant", "cosine"] | None
    warmup: float | None
    clip: float | None
    ema: float | None
    accumulate: int | None
    stop_below: float | None
    transform: Literal["squash", "crop"] | None
    size: int | None
    precision: Literal["auto", "float32", "bf16"] | None


def defaults_for(protocol: str, pretrained: bool) -> dict[str, Any]:
    """Return what suits a protocol.

    - linear: the single-positive papers' 25 epochs at batch 16;
    - end-to-end from pretrained weights: their 10 epochs at batch 16, the head ten times faster (Kim 2022);
    - linear-init: the one, then the other;
    - end-to-end from nothing (the digits): a rate that a small network learns at.

    Example:
        >>> defaults_for("end-to-end", pretrained=True)["epochs"]
        10
    """
    if protocol == "linear":
        return {"epochs": 25, "lr": 1e-3, "backbone_lr": 1e-3, "batch_size": 16}
    phase = LINEAR_PHASE if protocol == "linear-init" else {}
    if pretrained:
        return {"epochs": 10, "lr": 1e-4, "backbone_lr": 1e-5, "batch_size": 16, **phase}
    return {"epochs": 10, "lr": 3e-3, "backbone_lr": 3e-3, "batch_size": 64, **phase}
