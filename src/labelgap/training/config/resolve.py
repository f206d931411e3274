"""From a request to the configuration of a run: everything left open is resolved before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from labelgap.core.class_path import class_path
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FEATURES
from labelgap.data.split import hold_out_val, is_unsplit
from labelgap.losses import Loss, describe_method, loss, loss_options, methods, published_options
from labelgap.models import Backbone, HeadName, check_backbone, has_batch_norm, is_pretrained
from labelgap.models.batch_norm import check_batch_norm
from labelgap.models.inference import inference_precision
from labelgap.models.open_clip.library import OPEN_CLIP_PREFIX
from labelgap.training.config.auto_method import choose_method
from labelgap.training.config.candidates import auto_methods, head_settings, is_searched, resolve_folds
from labelgap.training.config.defaults import default_linear_backbone, resolve_settings
from labelgap.training.config.describe import PROTOCOLS
from labelgap.training.config.presets import preset
from labelgap.training.config.request import TrainingRequest
from labelgap.training.config.schema import BackboneInput, RunConfig
from labelgap.training.loop.trace import parse_trace
from labelgap.training.network import check_feature_data
from labelgap.training.selection import Selection, choose_selection

FEW_IMAGES = 2000
"""Fewer images without a split of their own are trained on by a linear head, on a GPU too."""


def resolve_config(
    data: Dataset, request: TrainingRequest, device: torch.device | None = None, stored: RunConfig | None = None
) -> tuple[RunConfig, Selection, Loss]:
    """Resolve everything that a request leaves open, or raise an error about what does not fit together.

    Args:
        data: the data set.
        request: the arguments of ``fit``.
        device: of the training; a GPU has other defaults.
        stored: configuration of the run to resume; what depends on the device stays as it is there.
    """
    _check_labels(data)
    protocol, from_preset = _resolve_protocol(data, request, device, stored)
    _check_head(request.head, protocol)
    backbone = request.backbone or from_preset.get("backbone") or _default_backbone(data, request, protocol)
    name = backbone.name if isinstance(backbone, Backbone) else backbone
    check_feature_data(data, name, protocol)
    _check_feature_options(data, request)
    given = request.given_settings()
    folds = resolve_folds(data, given.get("folds"), protocol)
    pretrained = isinstance(backbone, Backbone) or _is_pretrained(name, request.weights)
    searched = is_searched(data, request, protocol, folds)
    method, why, options, loss_fn = _resolve_method(data, request, protocol, searched, pretrained)
    recipe = protocol != "linear" and pretrained and request.preset is None
    batch_norm = not recipe or "optimizer" in given or has_batch_norm(backbone)
    network = {"batch_norm": batch_norm, "flip": data.flip}
    settings = resolve_settings(protocol, pretrained, from_preset, request.training, **network)
    if protocol == "linear":
        settings |= head_settings(settings, loss_fn, data, request, folds)
    if settings.get("accumulate", 1) > 1 and loss_fn.batch_dependent and not request.allow_micro_batch:
        raise InputError(
            f"the loss of '{method}' depends on the whole batch, and with accumulated gradients it would see a part at "
            "a time: use a larger --batch-size instead, or --allow-micro-batch if that is intended."
        )
    observed, truth = (None, None) if data.val is None else (data.val.labels, data.val.truth)
    rule = from_preset.get("select", "auto") if request.select == "auto" else request.select
    selection = choose_selection(observed, truth, rule)
    if selection.labels is None and settings.pop("stop_below", None) and request.training.get("stop_below"):
        raise InputError(f"stop_below needs a val score, and here {selection.why}: leave it out, or give a val split.")
    config = RunConfig.checked(
        data=dict(data.recipe),
        classes=data.classes,
        method=method,
        why=why,
        options=options,
        preset=request.preset,
        backbone=name,
        backbone_input=_backbone_input(backbone, stored),
        weights=request.weights,
        protocol=protocol,
        head=request.head,
        **{**settings, "precision": _resolve_precision(settings.get("precision"), protocol, backbone, device, stored)},
        flip=data.flip and protocol != "linear",
        seed=request.seed,
        select=selection.rule,
        trace=_resolve_trace(request.trace, data, device, stored, settings),
    )
    _check_zero_shot(config)
    check_batch_norm(config.batchnorm, backbone, pretrained=pretrained)
    return config, selection, loss_fn


def describe_random_features(config: RunConfig) -> str | None:
    """Return what a user should know of a linear head on the features of random weights; None for any other run."""
    if config.protocol != "linear" or _is_pretrained(config.backbone, config.weights):
        return None
    return (
        f"the weights of {config.backbone} are random, and --protocol linear does not train them: its features carry "
        "little information. Choose a pretrained backbone (`labelgap backbones`), --weights or --protocol end-to-end"
    )


def prepare_data(
    data: Dataset, request: TrainingRequest, device: torch.device | None = None, stored: RunConfig | None = None
) -> Dataset:
    """Return the data as the protocol of a request needs them: where a network is trained, with a val."""
    protocol, _ = _resolve_protocol(data, request, device, stored)
    return data if protocol == "linear" else hold_out_val(data)


def _resolve_protocol(
    data: Dataset, request: TrainingRequest, device: torch.device | None, stored: RunConfig | None
) -> tuple[str, dict[str, Any]]:
    """Return the protocol, and the settings of the preset."""
    protocol = request.protocol or (stored.protocol if stored and request.preset is None else None)
    from_preset = _preset_settings(data, request, protocol)
    protocol = protocol or from_preset.get("protocol") or _default_protocol(data, device)
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    return protocol, from_preset


def _preset_settings(data: Dataset, request: TrainingRequest, protocol: str | None) -> dict[str, Any]:
    """Return the settings of the preset that apply to the data."""
    if request.preset is None:
        return {}
    has_features = data.backbone == FEATURES
    protocol = protocol or ("linear" if has_features else None)
    method = request.method if isinstance(request.method, str) else _registered_name(request.method)
    settings = preset(request.preset, method=method, dataset=data.recipe.get("name"), protocol=protocol)
    ignored = ("backbone", "size", "transform") if has_features else ()
    return {name: value for name, value in settings.items() if name not in ignored}


def _default_protocol(data: Dataset, device: torch.device | None) -> str:
    """Return the protocol of the data; for many images on a GPU, linear-init instead of linear.

    On 1,280 photos training the whole network gains little or nothing (docs/training.md), and it needs a val; so few
    images without a split are all trained on, by a linear head.
    """
    images = data.protocol == "linear" and data.backbone != FEATURES
    images = images and not (is_unsplit(data) and len(data.train) < FEW_IMAGES)
    return "linear-init" if images and device is not None and device.type == "cuda" else data.protocol


def _default_backbone(data: Dataset, request: TrainingRequest, protocol: str) -> str:
    """Return the backbone of the data; for linear heads a pretrained one, unless weights are given."""
    return default_linear_backbone(data) if protocol == "linear" and request.weights is None else data.backbone


def _resolve_precision(
    requested: str | None,
    protocol: str,
    backbone: str | Backbone,
    device: torch.device | None,
    stored: RunConfig | None,
) -> str:
    """Return the precision: 16 bits where the device computes with them, unless another is requested or stored.

    That is bf16 for networks on a GPU, and for the features of a linear head what ``inference_precision`` says.
    """
    if requested not in (None, "auto"):
        return str(requested)
    if stored is not None:
        return stored.precision
    if protocol == "linear":
        precision = inference_precision(backbone, device)
        return "bf16" if precision == "bfloat16" else precision
    cuda = device is not None and device.type == "cuda"
    return "bf16" if cuda and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


def _resolve_trace(
    requested: str | int,
    data: Dataset,
    device: torch.device | None,
    stored: RunConfig | None,
    settings: Mapping[str, Any],
) -> int | Literal["all", "off"]:
    """Return what to trace: by default nothing on a GPU, where it would copy every step to the host.

    Nor are the steps of "newton" traced, which say nothing about the order in which labels are learned.
    """
    if requested == "auto" and stored is not None:
        return stored.trace
    if requested == "auto" and (
        settings.get("optimizer") == "newton" or (device is not None and device.type == "cuda")
    ):
        return "off"
    return parse_trace(requested, len(data.train) * len(data.classes))


def _resolve_method(
    data: Dataset, request: TrainingRequest, protocol: str, searched: bool, pretrained: bool
) -> tuple[str, str | None, dict[str, Any], Loss]:
    """Return the method, the reason for it, its options and its loss.

    A loss object counts as its class and its options: the run trains a new loss that is made from them.
    """
    why: str | None = None
    if isinstance(request.method, Loss):
        if request.options:
            raise InputError("the options of a loss object are in the object: leave options out.")
        method, given = _registered_name(request.method), loss_options(request.method)
    elif request.method != "auto":
        method, given = request.method, dict(request.options)
    elif request.options:
        raise InputError("options belong to a method: name it with --method, or leave the options out.")
    else:
        (method, why), given = choose_method(data.train.labels, protocol, pretrained=pretrained), {}
        if searched:
            compared, judge = list(auto_methods(data)), "cross-validation" if data.val is None else "val"
            method, why = compared[0], f"{compared[0]} fits such labels; {judge} chooses its weight decay"
            if len(compared) > 1:
                why = f"{judge} chooses among {', '.join(compared)}"
    options = {name: _as_json(value) for name, value in given.items()}
    options = {**published_options(method, data.recipe.get("name")), **options}
    loss_fn = loss(method, **options)
    if loss_fn.reduction == "none":
        raise InputError("reduction='none' gives a matrix, and training needs one number: use 'mean' or 'sum'.")
    found = loss_fn.initialize_from(data.train.labels, None if data.val is None else data.val.labels)
    return method, why, {**options, **found}, loss_fn


def _registered_name(loss_fn: Loss) -> str:
    """Return the registered name of a loss, or the import path of its class."""
    known = methods()
    for name in (loss_fn.name, *known):
        if name in known and describe_method(name).loss_class is type(loss_fn):
            return name
    return class_path(type(loss_fn))


def _as_json(value: Any) -> Any:
    """Return an option as ``config.json`` holds it."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    return [_as_json(each) for each in value] if isinstance(value, list | tuple) else value


def _check_labels(data: Dataset) -> None:
    for split in data.splits:
        if not len(split):
            raise InputError(f"{data.name}: {split.name} has no images. Leave the split out, or give it some.")
    if not len(data.train.labels.values):
        raise InputError(f"{data.name}: no label of train is known, there is nothing to learn from. Tag a few images.")


def _check_feature_options(data: Dataset, request: TrainingRequest) -> None:
    """Refuse options that have no meaning for feature vectors."""
    given = {name: request.training.get(name) for name in ("size", "average_flips")}
    for name, value in {"weights": request.weights, **given}.items():
        if data.backbone == FEATURES and value is not None and value is not False:
            raise InputError(f"{name}={value} is for a network, and {data.name} has feature vectors: leave it out.")


def _check_head(head: str, protocol: str) -> None:
    if head not in get_args(HeadName):
        raise UnknownNameError("head", head, get_args(HeadName))
    if head == "boostlu" and protocol == "linear":
        raise InputError(
            f"the head '{head}' needs the feature maps of an image, and the linear protocol has one vector per image: "
            "train with --protocol end-to-end, or with --head linear."
        )


def _check_zero_shot(config: RunConfig) -> None:
    """Refuse the head "zero-shot" where training would not start from it."""
    if config.head != "zero-shot":
        return
    remedy = "--head linear works everywhere."
    if not config.backbone.startswith(OPEN_CLIP_PREFIX):
        raise InputError(f"the head 'zero-shot' needs a backbone with a text tower ({OPEN_CLIP_PREFIX}…). {remedy}")
    if config.protocol == "end-to-end":
        raise InputError(f"the head 'zero-shot' needs fixed features: --protocol linear or linear-init. {remedy}")
    if config.folds or config.optimizer == "newton":
        raise InputError(
            "the head 'zero-shot' is a start, and without a val split settings are chosen by cross-validation, with an "
            f"optimizer that has no start: give a val split, or --folds 0 --optimizer adam. {remedy}"
        )


def _backbone_input(backbone: str | Backbone, stored: RunConfig | None) -> BackboneInput | None:
    """Return the input specification to record: that of an object, also where its run is resumed by the class path."""
    if isinstance(backbone, Backbone):
        return BackboneInput(**asdict(backbone.input_spec))
    return stored.backbone_input if stored is not None and stored.backbone == backbone else None


def _is_pretrained(backbone: str, weights: str | None) -> bool:
    """Return whether the backbone starts from trained weights; an error if there is no such backbone."""
    if backbone == FEATURES:
        return True
    check_backbone(backbone)
    return is_pretrained(backbone, weights)
