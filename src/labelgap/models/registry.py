"""Backbones by name: those of the table, any of timm and open_clip, and classes by their import path."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from labelgap.core.class_path import class_path, find_class, is_class_path
from labelgap.core.errors import InputError, RunError
from labelgap.models.backbone import (
    RANDOM_WEIGHTS,
    UNSTATED_WEIGHTS,
    Backbone,
    BackboneInfo,
    WeightsInfo,
    count_parameters,
)
from labelgap.models.factories import BACKBONES, find_backbone, registered_names
from labelgap.models.module_backbone import ModuleBackbone
from labelgap.models.open_clip.backbone import OpenClipBackbone
from labelgap.models.open_clip.library import OPEN_CLIP_PREFIX, load_clip, parse_name
from labelgap.models.timm.backbone import TimmBackbone
from labelgap.models.timm.library import TIMM_PREFIX, pretrained_config, weights_info
from labelgap.models.weight_files import NO_WEIGHTS, WeightFile, load_tensors, match_tensors, read_weight_file

_LIBRARIES: Final = (TIMM_PREFIX, OPEN_CLIP_PREFIX)
_NAMED: Final = (ModuleBackbone, OpenClipBackbone, TimmBackbone)
"""Backbones that know the name by which they are made again."""


def create_backbone(
    name: str,
    *,
    pretrained: bool = True,
    weights: str | os.PathLike[str] | None = None,
    size: int | None = None,
) -> Backbone:
    """Make a backbone.

    Args:
        name: one of ``backbone_names()``; ``timm:`` and any model of timm; ``open_clip:MODEL/TAG``, the image tower of
            a model of open_clip with the weights of a tag; or the import path ``package.module:Class`` of an
            ``nn.Module`` that can be made without arguments, if its module is imported already.
        pretrained: load its pretrained weights, if there are any; otherwise random weights from torch's generator.
        weights: a file of weights to load instead, whatever ``pretrained`` says: a state dict that ``torch.save`` or
            safetensors wrote, also ``best.safetensors`` of a run. A classification layer in it is left out. "none" is
            the same as ``pretrained=False``.
        size: the image size, if it is not the one that the weights were trained with.

    Example:
        >>> create_backbone("small-cnn").input_spec.size
        64
        >>> create_backbone("small-cnn", size=96).input_spec.size
        96
    """
    if size is not None and size < 1:
        raise InputError(f"images cannot have {size} pixels a side.")
    pretrained = pretrained and weights != NO_WEIGHTS
    file = None if weights in (None, NO_WEIGHTS) else read_weight_file(weights)
    if name.startswith(OPEN_CLIP_PREFIX):
        return OpenClipBackbone(load_clip(name, pretrained=pretrained, file=file, size=size))
    model = _timm_model(name)
    if model is not None:
        return TimmBackbone(model, pretrained=pretrained, file=file, size=size, name=name)
    backbone = _build(name, pretrained) if file is None else _build_from_file(name, file)
    if size is not None:
        backbone.input_spec = replace(backbone.input_spec, size=size)
    return backbone


def as_backbone(network: nn.Module, *, weights: WeightsInfo = UNSTATED_WEIGHTS) -> Backbone:
    """Return an ``nn.Module`` as a backbone.

    Its name is the import path of its class, by which ``create_backbone`` makes it again; a ``Backbone`` that is
    registered keeps its name. Either way a run stores the weights of the object.

    Args:
        network: a ``Backbone``, or a module that gives vectors or feature maps (see ``ModuleBackbone``).
        weights: where its weights come from, for the model card; a ``Backbone`` states it itself.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"a backbone is a name or an nn.Module, not {type(network).__name__}.")
    if isinstance(network, Backbone):
        backbone: Backbone = network
        if not isinstance(network, _NAMED) and backbone.name not in BACKBONES:
            backbone.name = class_path(type(network))
    else:
        backbone = ModuleBackbone(network, weights=weights)
    backbone.reproducible = False
    return backbone


def check_backbone(name: str) -> None:
    """Raise ``UnknownNameError`` if there is no backbone of that name; nothing is built. timm is asked for its names.

    Example:
        >>> check_backbone("eficientnet-lite0")
        Traceback (most recent call last):
        ...
        labelgap.core.errors.UnknownNameError: there is no backbone 'eficientnet-lite0'. Did you mean ...
    """
    if name.startswith(OPEN_CLIP_PREFIX):
        parse_name(name)
    elif (model := _timm_model(name)) is not None:
        pretrained_config(model)


def is_pretrained(name: str, weights: str | os.PathLike[str] | None = None) -> bool:
    """Return whether ``create_backbone(name, weights=weights)`` starts from trained weights, or may do so.

    Example:
        >>> is_pretrained("efficientnet-lite0"), is_pretrained("small-cnn"), is_pretrained("small-cnn", "a.pth")
        (True, False, True)
    """
    if weights is not None:
        check_backbone(name)
        return weights != NO_WEIGHTS
    if name.startswith(OPEN_CLIP_PREFIX):
        return bool(parse_name(name).tags)
    if name.startswith(TIMM_PREFIX):
        return weights_info(pretrained_config(name.removeprefix(TIMM_PREFIX))) != RANDOM_WEIGHTS
    return is_class_path(name) or find_backbone(name).value.weights != RANDOM_WEIGHTS


def names_address(name: str) -> bool:
    """Return whether ``create_backbone(name)`` may open a network address: some weights are downloaded once.

    The addresses are those in timm's and open_clip's own lists. Names that hold one themselves (``timm:hf-hub:…``) or a
    folder (``timm:local-dir:…``) are no backbones.

    Example:
        >>> names_address("timm:resnet18"), names_address("resnet50"), names_address("efficientnet-lite0")
        (True, True, False)
    """
    return not is_class_path(name) and (name.startswith(OPEN_CLIP_PREFIX) or _timm_model(name) is not None)


def backbone_names() -> list[str]:
    """Return the names of all backbones except timm's, in alphabetical order.

    Example:
        >>> {"efficientnet-lite0", "resnet50", "small-cnn"} <= set(backbone_names())
        True
    """
    return registered_names()


def list_backbones() -> list[BackboneInfo]:
    """Return what is known of every backbone except timm's; labelgap's own are not built for it.

    Example:
        >>> [(info.name, info.license) for info in list_backbones() if info.name.startswith("resnet")]
        [('resnet101', 'BSD-3-Clause'), ('resnet50', 'BSD-3-Clause'), ('resnet50-v1', 'none needed')]
    """
    return [backbone_info(name) for name in backbone_names()]


def backbone_info(name: str) -> BackboneInfo:
    """Return what is known of one backbone, also of any model of timm; no weights are loaded.

    Example:
        >>> backbone_info("resnet50").num_features
        2048
    """
    if name.startswith(OPEN_CLIP_PREFIX):
        clip = parse_name(name)
        summary, weights, facts = f"open_clip's {clip.model}, the image tower", clip.weights, None
    elif name.startswith(TIMM_PREFIX):
        config = pretrained_config(name.removeprefix(TIMM_PREFIX))
        summary, weights, facts = config.description or f"timm's {config.architecture}", weights_info(config), None
    else:
        entry = find_backbone(name)
        summary, weights, facts = entry.summary, entry.value.weights, entry.value.facts
    if facts is None:
        with torch.random.fork_rng(devices=[]), torch.device("meta" if name.startswith(_LIBRARIES) else "cpu"):
            backbone = create_backbone(name, pretrained=False)
        facts = count_parameters(backbone), backbone.num_features, backbone.input_spec
    return BackboneInfo(name, summary, *facts, weights.source, weights.license)


def _timm_model(name: str) -> str | None:
    """Return what a backbone is called in timm; None for one that is not timm's."""
    if name.startswith(TIMM_PREFIX):
        return name.removeprefix(TIMM_PREFIX)
    if is_class_path(name):
        find_class(name, nn.Module)
        return None
    return find_backbone(name).value.timm_model


def _build(name: str, pretrained: bool) -> Backbone:
    if is_class_path(name):
        cls = find_class(name, nn.Module)
        try:
            return as_backbone(cls())
        except TypeError as error:
            raise RunError(
                f"the class {name} cannot be made without arguments ({error}): pass the network itself "
                "(backbone=network), or register a builder with lg.register_backbone."
            ) from error
    factory = find_backbone(name).value
    assert factory.build is not None
    network = factory.build(pretrained)
    if isinstance(network, Backbone):
        return network
    return ModuleBackbone(network, weights=factory.weights if pretrained else RANDOM_WEIGHTS, name=name)


def _build_from_file(name: str, file: WeightFile) -> Backbone:
    with torch.random.fork_rng(devices=[]):  # weights that the file replaces draw no random numbers
        backbone = _build(name, pretrained=False)
    translate = None if is_class_path(name) else find_backbone(name).value.translate
    tensors = file.tensors if translate is None else translate(file.tensors, file.path)
    network = backbone.network if isinstance(backbone, ModuleBackbone) else backbone
    load_tensors(network, match_tensors(tensors, network), file, name)
    backbone.source, backbone.license = file.weights.source, file.weights.license
    backbone.reproducible = False
    return backbone
