"""The keywords of ``fit``, written by ``python -m labelgap.training.settings``; see ``TrainingSettings``."""

from typing import Literal, TypedDict


class TrainingKeywords(TypedDict, total=False):
    """Settings of a training; None, or "auto", where one is left open."""

    epochs: int | None
    lr: float | None
    backbone_lr: float | None
    batch_size: int | None
    linear_epochs: int | None
    linear_lr: float | None
    linear_batch_size: int | None
    optimizer: Literal["adam", "adamw", "sgd", "newton", "auto"] | None
    standardize: bool | None
    folds: int | None
    reviewed_absents: Literal["use", "ignore", "auto"] | None
    attention_weight: float | None
    attention_temperature: float | None
    momentum: float | None
    nesterov: bool | None
    weight_decay: float | None
    schedule: Literal["constant", "cosine", "auto"] | None
    warmup: float | None
    clip: float | None
    ema: float | None
    accumulate: int | None
    checkpoint_minutes: float | None
    stop_below: float | None
    transform: Literal["resize", "augment", "crop", "auto"] | None
    average_flips: bool | None
    batchnorm: Literal["local", "sync", "frozen", "auto"] | None
    average_sizes: list[int] | None
    size: int | None
    precision: Literal["float32", "bf16", "float16", "auto"] | None
