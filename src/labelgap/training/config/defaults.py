"""What a run takes where neither the user nor a preset says anything; and what a user may say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from labelgap.core.errors import InputError, UnknownNameError

__all__ = ["LINEAR_PHASE", "TrainingSettings", "defaults_for", "resolve_settings"]

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
    optimizer: Literal["adam", "sgd"] | None
    momentum: float | None
    nesterov: bool | None
    weight_decay: float | None
    schedule: Literal["constant", "cosine"] | None
    warmup: float | None
    clip: float | None
    ema: float | None
    accumulate: int | None
    stop_below: float | None
    transform: Literal["resize", "crop"] | None
    size: int | None
    precision: Literal["auto", "float32", "bf16"] | None


def defaults_for(protocol: str, pretrained: bool) -> dict[str, Any]:
    """Return what suits a protocol.

    - linear: the single-positive papers' 25 epochs at batch 16;
    - end-to-end from pretrained weights: their 10 epochs at batch 16, the head ten times faster (Kim 2022). Of five
      pairs of rates this one had the highest val mAP in five of six trainings (docs/training.md);
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
        return {"epochs": 10, "lr": 1e-3, "backbone_lr": 1e-4, "batch_size": 16, **phase}
    return {"epochs": 10, "lr": 3e-3, "backbone_lr": 3e-3, "batch_size": 64, **phase}


def resolve_settings(
    protocol: str, pretrained: bool, asked: Mapping[str, Any], wished: TrainingSettings
) -> dict[str, Any]:
    """Lay what was wished for over what a preset says over what is usual; what means nothing together is refused.

    Args:
        protocol: of the run.
        pretrained: whether the network starts from weights that know something.
        asked: what a preset says.
        wished: what the user says.

    Returns:
        Settings as ``RunConfig`` has them.

    Example:
        >>> settings = resolve_settings("end-to-end", True, {}, {"lr": 3e-4, "optimizer": "sgd"})
        >>> settings["backbone_lr"], settings["momentum"]
        (3e-05, 0.9)
    """
    known = TrainingSettings.__annotations__
    for name in wished:
        if name not in known:
            raise UnknownNameError("setting", name, known)
    given: dict[str, Any] = {name: value for name, value in wished.items() if value is not None}
    usual = {**defaults_for(protocol, pretrained), **{name: asked[name] for name in known if name in asked}}
    settings = {**usual, **given}
    if protocol == "linear":
        _refuse_in_linear(settings, given)
        settings["backbone_lr"] = settings["lr"]
    elif "lr" in given and "backbone_lr" not in given:
        settings["backbone_lr"] = _rounded(usual["backbone_lr"] / usual["lr"] * float(given["lr"]))
    _resolve_optimizer(settings, given)
    phase = {name: settings.pop(f"linear_{name}", None) for name in ("epochs", "lr", "batch_size")}
    if protocol == "linear-init":
        settings["linear"] = phase
    elif wasted := [name for name in given if name.startswith("linear_")]:
        raise InputError(f"{wasted[0]} is a setting of --protocol linear-init, and this is {protocol}.")
    return settings


def _refuse_in_linear(settings: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Say which settings mean nothing where only a head is trained."""
    plain = {"schedule": "constant", "warmup": 0, "clip": None, "ema": None, "accumulate": 1, "transform": "resize"}
    wasted = [name for name, usual in plain.items() if settings.get(name, usual) != usual]
    wasted += ["precision"] if settings.get("precision") == "bf16" else []
    wasted += ["backbone_lr"] if given.get("backbone_lr", settings["lr"]) != settings["lr"] else []
    if wasted:
        raise InputError(
            f"{wasted[0]}={settings[wasted[0]]} is for training a whole network: the linear protocol has Adam or SGD "
            "at a constant rate, in float32. Leave it out, or take --protocol end-to-end."
        )


def _resolve_optimizer(settings: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Give SGD its momentum; Adam has none, whatever a preset says of its own optimiser."""
    if settings.get("optimizer") == "sgd":
        settings.setdefault("momentum", 0.9)
        if settings.get("nesterov") and not settings["momentum"]:
            raise InputError("nesterov looks ahead along the momentum: leave it out, or give --momentum 0.9.")
        return
    for name in ("momentum", "nesterov"):
        if given.get(name):
            raise InputError(f"{name}={given[name]} is a setting of --optimizer sgd, and this is Adam.")
        settings.pop(name, None)


def _rounded(rate: float) -> float:
    """Return a learning rate without the noise of floating point.

    Example:
        >>> _rounded(0.1 * 3e-3)
        0.0003
    """
    return float(f"{rate:.12g}")
