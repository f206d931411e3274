"""The backbones that can be asked for by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from labelgap.core.registry import Registry
from labelgap.models.backbone import UNTRAINED, Backbone, Weights, parameter_count
from labelgap.models.efficientnet_lite import LITE0, EfficientNetLite
from labelgap.models.small import SmallCNN

__all__ = ["BackboneRow", "Recipe", "create", "describe", "names"]


@dataclass(frozen=True)
class Recipe:
    """How a backbone is made, and where the weights that it has when ``pretrained`` come from."""

    build: Callable[[bool], Backbone]
    weights: Weights


@dataclass(frozen=True)
class BackboneRow:
    """A line of the catalogue, as ``labelgap backbones`` shows it."""

    name: str
    summary: str
    parameters: int
    width: int
    input_size: int
    channels: int
    source: str
    licence: str


_BACKBONES: Final[Registry[Recipe]] = Registry("backbone", hint="`labelgap backbones` lists them.")
_BACKBONES.add(
    "efficientnet-lite0",
    Recipe(lambda pretrained: EfficientNetLite(LITE0, pretrained=pretrained), LITE0.weights),
    summary="photos; ImageNet weights that need no download",
    reference="Tan & Le, EfficientNet, ICML 2019; the Lite variant of the TensorFlow release, 2020",
)
_BACKBONES.add(
    "small-cnn",
    Recipe(lambda pretrained: SmallCNN(), UNTRAINED),
    summary="small grey pictures; trained from scratch in seconds",
)


def create(name: str, *, pretrained: bool = True) -> Backbone:
    """Make a backbone.

    Args:
        name: one of ``names()``.
        pretrained: load its weights, where there are any; start at random otherwise, from torch's generator.

    Example:
        >>> create("small-cnn").input.size
        64
    """
    return _BACKBONES.get(name).value.build(pretrained)


def names() -> list[str]:
    """Return the names of all backbones, in alphabetical order.

    Example:
        >>> names()
        ['efficientnet-lite0', 'small-cnn']
    """
    return sorted(_BACKBONES.names())


def describe() -> list[BackboneRow]:
    """Return a row per backbone; nothing is loaded, so it is quick and needs no package of weights.

    Example:
        >>> [(row.name, row.input_size, row.licence) for row in describe()]
        [('efficientnet-lite0', 224, 'Apache-2.0'), ('small-cnn', 64, 'none needed')]
    """
    return [_row(name) for name in names()]


def _row(name: str) -> BackboneRow:
    entry = _BACKBONES.get(name)
    with torch.device("meta"):
        backbone = entry.value.build(False)
    return BackboneRow(
        name=name,
        summary=entry.summary,
        parameters=parameter_count(backbone),
        width=backbone.width,
        input_size=backbone.input.size,
        channels=backbone.input.channels,
        source=entry.value.weights.source,
        licence=entry.value.weights.licence,
    )
