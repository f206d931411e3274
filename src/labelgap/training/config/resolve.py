"""From what a person asked for to what a run does: everything left open is decided here, before anything is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES
from labelgap.losses import Loss, loss, published_options
from labelgap.models import HeadName, check_backbone, is_pretrained
from labelgap.training.config.auto_method import choose_method
from labelgap.training.config.defaults import TrainingSettings, resolve_settings
from labelgap.training.config.presets import preset
from labelgap.training.config.schema import CONFIG_FILE, RunConfig, read_config
from labelgap.training.features.precomputed import check_feature_data
from labelgap.training.loop.trace import parse_trace
from labelgap.training.selection import Selection, choose_selection

__all__ = ["TrainingRequest", "is_run_folder", "prepare_folder", "resolve_config"]

PROTOCOLS = ("linear", "end-to-end", "linear-init")


@dataclass(frozen=True)
class TrainingRequest:
    """What was asked for; None, or nothing, where the choice is left open. See ``fit``."""

    method: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    backbone: str | None = None
    weights: str | None = None
    protocol: str | None = None
    head: str = "linear"
    seed: int = 0
    select: str = "auto"
    trace: str | int = "auto"
    allow_micro_batch: bool = False
    training: TrainingSettings = field(default_factory=TrainingSettings)


def resolve_config(
    data: Dataset, wishes: TrainingRequest, device: torch.device | None = None, stored: RunConfig | None = None
) -> tuple[RunConfig, Selection, Loss]:
    """Decide everything that was left open, or say what of it cannot be.

    Args:
        data: what to learn from.
        wishes: what was asked for.
        device: what it will be trained on; a GPU has other defaults.
        stored: the run that is resumed: what depends on the device stays as it was there.
    """
    _check_labels(data)
    protocol = wishes.protocol or (stored.protocol if stored and wishes.preset is None else None)
    asked = _from_preset(data, wishes, protocol)
    protocol = protocol or asked.get("protocol") or _usual_protocol(data, device)
    if protocol not in PROTOCOLS:
        raise InputError(f"protocol '{protocol}': it is {', '.join(PROTOCOLS[:-1])} or {PROTOCOLS[-1]}.")
    _check_head(wishes.head, protocol)
    backbone = wishes.backbone or asked.get("backbone") or data.backbone
    check_feature_data(data, backbone, protocol)
    _refuse_for_vectors(data, wishes)
    method, why = _method(data, wishes, protocol)
    options, made = _make_loss(data, method, wishes.options)
    settings = resolve_settings(protocol, _has_weights(backbone, wishes.weights), asked, wishes.training)
    if settings.get("accumulate", 1) > 1 and made.batch_dependent and not wishes.allow_micro_batch:
        raise InputError(
            f"'{method}' looks across the batch, and accumulating gradients would show it a part at a time: take a "
            "larger --batch-size instead, or --allow-micro-batch if the parts are meant."
        )
    observed, truth = (None, None) if data.val is None else (data.val.labels, data.val.truth)
    rule = asked.get("select", "auto") if wishes.select == "auto" else wishes.select
    selection = choose_selection(observed, truth, rule)
    if selection.labels is None and settings.pop("stop_below", None) and wishes.training.get("stop_below"):
        raise InputError(f"stop_below needs a val score, and here {selection.why}: leave it out, or give a val split.")
    config = RunConfig.checked(
        data=dict(data.recipe),
        classes=data.classes,
        method=method,
        why=why,
        options=options,
        preset=wishes.preset,
        backbone=backbone,
        weights=wishes.weights,
        protocol=protocol,
        head=wishes.head,
        **{**settings, "precision": _precision(settings.get("precision"), protocol, device, stored)},
        flip=data.flip and protocol != "linear",
        seed=wishes.seed,
        select=selection.rule,
        trace=parse_trace(wishes.trace, len(data.train) * len(data.classes)),
    )
    return config, selection, made


def _from_preset(data: Dataset, wishes: TrainingRequest, protocol: str | None) -> dict[str, Any]:
    """Return what a preset says, as far as the data can follow it."""
    if wishes.preset is None:
        return {}
    vectors = data.backbone == FEATURES
    protocol = protocol or ("linear" if vectors else None)
    asked = preset(wishes.preset, method=wishes.method, dataset=data.recipe.get("name"), protocol=protocol)
    if vectors:
        asked = {name: value for name, value in asked.items() if name not in ("backbone", "size", "transform")}
    return asked


def _refuse_for_vectors(data: Dataset, wishes: TrainingRequest) -> None:
    """Say which wishes mean nothing where there are no pixels."""
    for name, value in (("weights", wishes.weights), ("size", wishes.training.get("size"))):
        if data.backbone == FEATURES and value is not None:
            raise InputError(f"{name}={value} is for a network, and {data.name} has feature vectors: leave it out.")


def _usual_protocol(data: Dataset, device: torch.device | None) -> str:
    """Return what suits the data: on a GPU the whole network can learn, once its head is there."""
    photos = data.protocol == "linear" and data.backbone != FEATURES
    return "linear-init" if photos and device is not None and device.type == "cuda" else data.protocol


def _precision(asked: str | None, protocol: str, device: torch.device | None, stored: RunConfig | None) -> str:
    """Return the precision: bf16 on a GPU that has it, unless something else is asked for or was begun with.

    Features are shared by runs on all devices, and a head is small: both are float32 everywhere.
    """
    if asked not in (None, "auto"):
        return str(asked)
    if stored is not None:
        return stored.precision
    cuda = device is not None and device.type == "cuda" and protocol != "linear"
    return "bf16" if cuda and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


def _make_loss(data: Dataset, method: str, wished: Mapping[str, Any]) -> tuple[dict[str, Any], Loss]:
    """Make the objective, and return its options with those that were not given filled in from what is known."""
    given = {name: _plain(value) for name, value in wished.items()}
    options = {**published_options(method, data.recipe.get("name")), **given}
    loss_fn = loss(method, **options)
    if loss_fn.reduction == "none":
        raise InputError("reduction='none' gives a matrix, and training needs one number: take 'mean' or 'sum'.")
    found = loss_fn.initialize_from(data.train.labels, None if data.val is None else data.val.labels)
    return {**options, **found}, loss_fn


def is_run_folder(folder: Path) -> bool:
    """Return whether there is a run in a folder, or say that it cannot be looked into."""
    try:
        return (folder / CONFIG_FILE).exists()
    except OSError as error:
        raise RunError(f"{folder} cannot be read ({error.strerror}): choose another --out.") from None


def prepare_folder(folder: Path, config: RunConfig, resume: bool) -> None:
    """Make the run's folder, or check that the run in it is the one to go on with."""
    exists = is_run_folder(folder)
    if exists and not resume:
        raise RunError(f"{folder} holds a run already: go on with it by --resume, or choose another --out.")
    if resume and not exists:
        raise RunError(f"{folder} holds no run to resume.")
    if exists and (stored := read_config(folder).model_copy(update={"why": config.why})) != config:
        different = [name for name in type(config).model_fields if getattr(stored, name) != getattr(config, name)]
        raise RunError(
            f"{folder} was started with another {different[0]} ({getattr(stored, different[0])!r}, now "
            f"{getattr(config, different[0])!r}): resume it as it was, or choose another --out."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made ({error.strerror}): choose another --out.") from None
    if not os.access(folder, os.W_OK):
        raise RunError(f"{folder} cannot be written to: choose another --out.")


def _check_labels(data: Dataset) -> None:
    for split in data.splits:
        if not len(split):
            raise InputError(f"{data.name}: {split.name} has no images. Leave the split out, or give it some.")
    if not len(data.train.labels.values):
        raise InputError(f"{data.name}: no label of train is known, there is nothing to learn from. Tag a few images.")


def _plain(value: Any) -> Any:
    """Return an option as ``config.json`` holds it, so that it comes back from there as it was."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _check_head(head: str, protocol: str) -> None:
    if head not in get_args(HeadName):
        raise UnknownNameError("head", head, get_args(HeadName))
    if head != "linear" and protocol == "linear":
        raise InputError(
            f"the head '{head}' looks at every place of an image, and the linear protocol keeps one vector per image: "
            "train with --protocol end-to-end, or with --head linear."
        )


def _method(data: Dataset, wishes: TrainingRequest, protocol: str) -> tuple[str, str]:
    if wishes.method != "auto":
        return wishes.method, "as asked"
    if wishes.options:
        raise InputError("options belong to a method: name it with --method, or leave the options out.")
    return choose_method(data.train.labels, protocol)


def _has_weights(backbone: str, weights: str | None) -> bool:
    """Return whether the network starts from weights that know something, or say that there is no such network."""
    if backbone == FEATURES:
        return True
    check_backbone(backbone)
    return is_pretrained(backbone, weights)
