"""The backbones that can be asked for by name: our own, a few of timm's by a short name, and all of timm's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.core.registry import Registry
from labelgap.models.backbone import RANDOM_WEIGHTS, Backbone, InputSpec, WeightsInfo, count_parameters
from labelgap.models.efficientnet_lite import LITE0, LITE1, LITE2, EfficientNetLite, LiteVariant, translate_state_dict
from labelgap.models.small_cnn import SmallCNN
from labelgap.models.timm.backbone import TimmBackbone
from labelgap.models.timm.library import TIMM_PREFIX, pretrained_config, weights_info
from labelgap.models.weight_files import WeightFile, load_tensors, match_tensors, read_weight_file

__all__ = [
    "BackboneFactory",
    "BackboneInfo",
    "TimmAlias",
    "backbone_info",
    "backbone_names",
    "check_backbone",
    "create_backbone",
    "is_pretrained",
    "list_backbones",
]


NO_WEIGHTS: Final = "none"
"""Given for weights, it means that a network starts at random though there would be weights for it."""


@dataclass(frozen=True)
class BackboneFactory:
    """How one of our own backbones is made, where its pretrained weights come from, and how a file's names are read."""

    build: Callable[[bool], Backbone]
    weights: WeightsInfo
    read: Callable[[Mapping[str, Tensor], Path], dict[str, Tensor]] = lambda tensors, path: dict(tensors)


@dataclass(frozen=True)
class TimmAlias:
    """A model of timm under a short name; what is told of it is written down here, so that timm need not be asked."""

    model: str
    parameters: int
    num_features: int
    input_spec: InputSpec
    weights: WeightsInfo


@dataclass(frozen=True)
class BackboneInfo:
    """A line of the catalogue, as ``labelgap backbones`` shows it."""

    name: str
    summary: str
    parameters: int
    num_features: int
    input_spec: InputSpec
    source: str
    license: str

    @property
    def input_size(self) -> int:
        """The side of its pictures."""
        return self.input_spec.size

    @property
    def channels(self) -> int:
        """The channels of its pictures."""
        return self.input_spec.channels


_BACKBONES: Final[Registry[BackboneFactory | TimmAlias]] = Registry(
    "backbone", hint=f"`labelgap backbones` lists them; {TIMM_PREFIX}MODEL is any model of timm."
)


def _add_lite(variant: LiteVariant, summary: str) -> None:
    recipe = BackboneFactory(
        lambda pretrained: EfficientNetLite(variant, pretrained=pretrained), variant.weights, translate_state_dict
    )
    reference = "Tan & Le, EfficientNet, ICML 2019; the Lite variant of the TensorFlow release, 2020"
    _BACKBONES.add(variant.name, recipe, summary=summary, reference=reference)


def _add_resnet(name: str, parameters: int, summary: str) -> None:
    tag = f"{name}.tv_in1k"
    spec = InputSpec(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), interpolation="bilinear")
    weights = WeightsInfo(f"timm/{tag} on the Hugging Face hub", "BSD-3-Clause")
    reference = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016; torchvision's first weights"
    _BACKBONES.add(name, TimmAlias(tag, parameters, 2048, spec, weights), summary=summary, reference=reference)


_add_lite(LITE0, "photos; ImageNet weights that need no download")
_add_lite(LITE1, "photos; deeper, its weights in the extra labelgap[lite]")
_add_lite(LITE2, "photos; deeper and wider, its weights in the extra labelgap[lite]")
_add_resnet("resnet50", 23_508_032, f"photos; the papers' network, {TIMM_PREFIX}resnet50.tv_in1k")
_add_resnet("resnet101", 42_500_160, f"photos; the papers' larger network, {TIMM_PREFIX}resnet101.tv_in1k")
_BACKBONES.add(
    "small-cnn",
    BackboneFactory(lambda pretrained: SmallCNN(), RANDOM_WEIGHTS),
    summary="small grey pictures; trained from scratch in seconds",
)


def create_backbone(
    name: str,
    *,
    pretrained: bool = True,
    weights: str | os.PathLike[str] | None = None,
    size: int | None = None,
) -> Backbone:
    """Make a backbone.

    Args:
        name: one of ``backbone_names()``, or ``timm:`` and any model of timm.
        pretrained: load its weights, where there are any; start at random otherwise, from torch's generator.
        weights: a file of weights to load instead, whatever ``pretrained`` says: what ``torch.save`` or safetensors
            wrote of a state dict, the best weights of a run of labelgap too. A layer over classes in it is left out.
            "none" is ``pretrained=False`` in a word.
        size: the side of its pictures, where it is not to be the one that its weights were trained with.

    Example:
        >>> create_backbone("small-cnn").input_spec.size
        64
        >>> create_backbone("small-cnn", size=96).input_spec.size
        96
    """
    if size is not None and size < 1:
        raise InputError(f"pictures cannot have {size} pixels a side.")
    model = _name_in_timm(name)
    pretrained = pretrained and weights != NO_WEIGHTS
    file = None if weights in (None, NO_WEIGHTS) else read_weight_file(weights)
    if model is not None:
        return TimmBackbone(model, pretrained=pretrained, file=file, size=size, name=name)
    recipe = _BACKBONES.get(name).value
    assert isinstance(recipe, BackboneFactory)
    backbone = recipe.build(pretrained) if file is None else _from_file(recipe, file, name)
    if size is not None:
        backbone.input_spec = replace(backbone.input_spec, size=size)
    return backbone


def check_backbone(name: str) -> None:
    """Raise ``UnknownNameError`` where no backbone bears a name; nothing is built.

    A name of timm's needs timm to be installed.

    Example:
        >>> check_backbone("eficientnet-lite0")
        Traceback (most recent call last):
        ...
        labelgap.core.errors.UnknownNameError: there is no backbone 'eficientnet-lite0'. Did you mean ...
    """
    model = _name_in_timm(name)
    if model is not None:
        pretrained_config(model)


def is_pretrained(name: str, weights: str | os.PathLike[str] | None = None) -> bool:
    """Return whether ``create_backbone(name, weights=weights)`` would start from weights that have learned something.

    Example:
        >>> is_pretrained("efficientnet-lite0"), is_pretrained("small-cnn"), is_pretrained("small-cnn", "a.pth")
        (True, False, True)
    """
    if weights is not None:
        check_backbone(name)
        return weights != NO_WEIGHTS
    if name.startswith(TIMM_PREFIX):
        return weights_info(pretrained_config(name.removeprefix(TIMM_PREFIX))) != RANDOM_WEIGHTS
    return _BACKBONES.get(name).value.weights != RANDOM_WEIGHTS


def backbone_names() -> list[str]:
    """Return the names of all backbones but those of timm, in alphabetical order.

    Example:
        >>> backbone_names()
        ['efficientnet-lite0', 'efficientnet-lite1', 'efficientnet-lite2', 'resnet101', 'resnet50', 'small-cnn']
    """
    return sorted(_BACKBONES.names())


def list_backbones() -> list[BackboneInfo]:
    """Return a row per name; nothing is loaded, so it is quick and needs no package of weights.

    Example:
        >>> [(row.name, row.input_size, row.license) for row in list_backbones()][::3]
        [('efficientnet-lite0', 224, 'Apache-2.0'), ('resnet101', 224, 'BSD-3-Clause')]
    """
    return [backbone_info(name) for name in backbone_names()]


def backbone_info(name: str) -> BackboneInfo:
    """Return the row of one name, which may be of any model of timm: timm is asked then, and no weights are loaded.

    Example:
        >>> backbone_info("resnet50").num_features
        2048
    """
    if name.startswith(TIMM_PREFIX):
        return _row_of_timm(name)
    entry = _BACKBONES.get(name)
    known = entry.value
    if isinstance(known, TimmAlias):
        source, license = known.weights.source, known.weights.license
        size = known.parameters, known.num_features
        return BackboneInfo(name, entry.summary, *size, known.input_spec, source, license)
    with torch.device("meta"):
        backbone = known.build(False)
    return _row(name, entry.summary, backbone, known.weights)


def _row_of_timm(name: str) -> BackboneInfo:
    model = name.removeprefix(TIMM_PREFIX)
    configuration = pretrained_config(model)
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        backbone = TimmBackbone(model, pretrained=False, name=name)
    summary = configuration.description or f"timm's {configuration.architecture}"
    return _row(name, summary, backbone, weights_info(configuration))


def _row(name: str, summary: str, backbone: Backbone, weights: WeightsInfo) -> BackboneInfo:
    size = count_parameters(backbone), backbone.num_features
    return BackboneInfo(name, summary, *size, backbone.input_spec, weights.source, weights.license)


def _name_in_timm(name: str) -> str | None:
    """Return what a backbone is called in timm, None where it is one of ours."""
    if name.startswith(TIMM_PREFIX):
        return name.removeprefix(TIMM_PREFIX)
    known = _BACKBONES.get(name).value
    return known.model if isinstance(known, TimmAlias) else None


def _from_file(recipe: BackboneFactory, file: WeightFile, name: str) -> Backbone:
    with torch.random.fork_rng(devices=[]):  # what is overwritten costs no random numbers
        backbone = recipe.build(False)
    load_tensors(backbone, match_tensors(recipe.read(file.tensors, file.path), backbone), file, name)
    backbone.source, backbone.license = file.weights.source, file.weights.license
    return backbone
