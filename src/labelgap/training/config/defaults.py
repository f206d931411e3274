"""The training settings that a user may give, and their defaults per protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypedDict

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES
from labelgap.models import is_pretrained

LINEAR_PHASE = {"linear_epochs": 25, "linear_lr": 1e-3, "linear_batch_size": 16}
"""25 epochs at batch 16 as in the single-positive papers; of their rates, 1e-3 is better for most methods."""

_PRETRAINED_BACKBONE: Final = "efficientnet-lite0"


class TrainingSettings(TypedDict, total=False):
    """Training settings of ``fit`` and the commands; ``RunConfig`` documents them.

    ``linear_epochs``, ``linear_lr`` and ``linear_batch_size`` belong to linear-init's first phase. Where ``lr`` is
    given alone, ``backbone_lr`` changes in proportion.
    """

    epochs: int | None
    lr: float | None
    backbone_lr: float | None
    batch_size: int | None
    linear_epochs: int | None
    linear_lr: float | None
    linear_batch_size: int | None
    optimizer: Literal["adam", "adamw", "sgd", "newton"] | None
    standardize: bool | None
    folds: int | None
    reviewed_absents: Literal["use", "ignore"] | None
    momentum: float | None
    nesterov: bool | None
    weight_decay: float | None
    schedule: Literal["constant", "cosine"] | None
    warmup: float | None
    clip: float | None
    ema: float | None
    accumulate: int | None
    checkpoint_minutes: float | None
    stop_below: float | None
    transform: Literal["resize", "augment", "crop"] | None
    average_flips: bool | None
    batchnorm: Literal["local", "sync", "frozen"] | None
    size: int | None
    precision: Literal["auto", "float32", "bf16"] | None


NETWORK_RECIPE: Final = {"epochs": 20, "batch_size": 16, "schedule": "cosine", "warmup": 0.5}
"""Of a pretrained network, with any optimizer. Evidence: docs/results/recipe.md."""
OPTIMIZER_RECIPES: Final[dict[str, dict[str, Any]]] = {
    "sgd": {"lr": 0.1, "backbone_lr": 0.01, "weight_decay": 1e-3},
    "adam": {"lr": 2e-4, "backbone_lr": 2e-5},
    "adamw": {"lr": 2e-4, "backbone_lr": 2e-5, "weight_decay": 0.05},
}
"""The head has ten times the rate of the backbone (Kim 2022)."""


def default_linear_backbone(data: Dataset) -> str:
    """Return the backbone for linear heads: that of the data if it is pretrained, else the default one."""
    if data.backbone == FEATURES or is_pretrained(data.backbone):
        return data.backbone
    return _PRETRAINED_BACKBONE


def defaults_for(
    protocol: str, pretrained: bool, *, optimizer: str | None = None, batch_norm: bool = True, flip: bool = True
) -> dict[str, Any]:
    """Return the default settings of a protocol.

    - linear: 25 epochs at batch 16, as in the single-positive papers;
    - end-to-end from pretrained weights: 20 epochs at batch 16, a cosine schedule after half an epoch of warm-up,
      random changes of the images, and the rates of the optimizer. That is SGD with momentum for a network with batch
      normalization, by the val mAP of 33 trainings on the whole of VOC2012 (docs/results/recipe.md); AdamW for one
      without (transformers, ConvNeXt), where neither was measured;
    - linear-init: the first, then the second;
    - end-to-end from random weights: rates for a small network.

    Example:
        >>> defaults_for("end-to-end", pretrained=True)["backbone_lr"]
        0.01
        >>> defaults_for("end-to-end", pretrained=True, batch_norm=False)["optimizer"]
        'adamw'
    """
    if protocol == "linear":
        return {"epochs": 25, "lr": 1e-3, "backbone_lr": 1e-3, "batch_size": 16}
    phase = LINEAR_PHASE if protocol == "linear-init" else {}
    if not pretrained:
        return {"epochs": 10, "lr": 3e-3, "backbone_lr": 3e-3, "batch_size": 64, **phase}
    optimizer = optimizer or ("sgd" if batch_norm else "adamw")
    rates = OPTIMIZER_RECIPES.get(optimizer, OPTIMIZER_RECIPES["sgd"])  # an unknown optimizer is refused by RunConfig
    images = {"transform": "augment" if flip else "resize", "average_flips": flip}
    return {**NETWORK_RECIPE, **rates, **images, "optimizer": optimizer, **phase}


def resolve_settings(
    protocol: str,
    pretrained: bool,
    preset: Mapping[str, Any],
    given: TrainingSettings,
    *,
    batch_norm: bool = True,
    flip: bool = True,
) -> dict[str, Any]:
    """Merge the user's settings over those of a preset, or over the defaults; refuse what does not fit together.

    Args:
        protocol: of the run.
        pretrained: whether the backbone starts from pretrained weights.
        preset: settings of a preset; empty for the defaults.
        given: settings of the user; None counts as not given.
        batch_norm: whether the network has batch normalization.
        flip: whether images may be mirrored; those that may not, such as text, are not turned or cut either.

    Returns:
        Settings as ``RunConfig`` has them.

    Example:
        >>> settings = resolve_settings("end-to-end", True, {}, {"lr": 3e-4, "optimizer": "sgd"})
        >>> settings["backbone_lr"], settings["momentum"]
        (3e-05, 0.9)
    """
    known = TrainingSettings.__annotations__
    for name in given:
        if name not in known:
            raise UnknownNameError("setting", name, known)
    explicit: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    base = {name: preset[name] for name in known if name in preset}
    network: dict[str, Any] = {"optimizer": explicit.get("optimizer"), "batch_norm": batch_norm, "flip": flip}
    base = base or defaults_for(protocol, pretrained, **network)
    settings = {**base, **explicit}
    if protocol == "linear":
        _check_linear(settings, explicit)
        settings["backbone_lr"] = settings["lr"]
    else:
        _check_network(explicit)
        if "lr" in explicit and "backbone_lr" not in explicit:
            settings["backbone_lr"] = _rounded(base["backbone_lr"] / base["lr"] * float(explicit["lr"]))
    _resolve_optimizer(settings, explicit)
    phase = {name: settings.pop(f"linear_{name}", None) for name in ("epochs", "lr", "batch_size")}
    if protocol == "linear-init":
        settings["linear"] = phase
    elif unused := [name for name in explicit if name.startswith("linear_")]:
        raise InputError(f"{unused[0]} is a setting of --protocol linear-init, and this is {protocol}.")
    return settings


def _check_linear(settings: Mapping[str, Any], explicit: Mapping[str, Any]) -> None:
    """Refuse settings that have no meaning where only a head is trained."""
    neutral = {"schedule": "constant", "warmup": 0, "clip": None, "ema": None, "accumulate": 1, "transform": "resize"}
    neutral |= {"batchnorm": "local", "checkpoint_minutes": 10.0}
    unused = [name for name, value in neutral.items() if settings.get(name, value) != value]
    unused += ["precision"] if settings.get("precision") not in (None, "auto", "float32") else []
    unused += ["optimizer"] if settings.get("optimizer") == "adamw" else []
    unused += ["backbone_lr"] if explicit.get("backbone_lr", settings["lr"]) != settings["lr"] else []
    if unused:
        raise InputError(
            f"{unused[0]}={settings[unused[0]]} is for training a whole network: the linear protocol computes the "
            "features of an image once, and trains a head on them by newton, adam or sgd, at a constant rate "
            "in float32. Leave it out, or use --protocol linear-init or end-to-end."
        )


def _check_network(explicit: Mapping[str, Any]) -> None:
    """Refuse settings that have no meaning where a whole network is trained."""
    unused = [name for name in ("standardize", "folds") if explicit.get(name)]
    unused += ["optimizer"] if explicit.get("optimizer") == "newton" else []
    if unused:
        raise InputError(
            f"{unused[0]}={explicit[unused[0]]} is for a linear head on fixed features: leave it out, or use "
            "--protocol linear."
        )


def _resolve_optimizer(settings: dict[str, Any], explicit: Mapping[str, Any]) -> None:
    """Set the default momentum of SGD; drop the momentum of a preset where Adam was asked for."""
    if settings.get("optimizer") == "sgd":
        settings.setdefault("momentum", 0.9)
        if settings.get("nesterov") and not settings["momentum"]:
            raise InputError("nesterov needs a momentum: leave it out, or give --momentum 0.9.")
        return
    for name in ("momentum", "nesterov"):
        if explicit.get(name):
            raise InputError(f"{name}={explicit[name]} is a setting of --optimizer sgd: leave it out.")
        settings.pop(name, None)


def _rounded(rate: float) -> float:
    """Return a learning rate without floating-point noise.

    Example:
        >>> _rounded(0.1 * 3e-3)
        0.0003
    """
    return float(f"{rate:.12g}")
