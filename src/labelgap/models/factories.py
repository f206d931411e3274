"""The table of backbones: labelgap's own, and those that users and installed packages register."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, cast

from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.core.registry import Registry, RegistryEntry, load_plugins
from labelgap.models.backbone import (
    RANDOM_WEIGHTS,
    UNSTATED_WEIGHTS,
    Backbone,
    InputSpec,
    WeightsInfo,
)
from labelgap.models.efficientnet_lite import LITE0, LITE1, LITE2, EfficientNetLite, LiteVariant, translate_state_dict
from labelgap.models.module_backbone import IMAGENET_INPUT
from labelgap.models.open_clip.library import OPEN_CLIP_PREFIX
from labelgap.models.small_cnn import SMALL_CNN_INPUT, SmallCNN
from labelgap.models.timm.library import TIMM_PREFIX, import_timm

PLUGIN_GROUP: Final = "labelgap.backbones"
"""The entry points in which an installed package names its builders."""


@dataclass(frozen=True)
class BackboneFactory:
    """How a backbone is made.

    Attributes:
        build: takes ``pretrained`` and returns the network; None for a model of timm.
        weights: of the pretrained network.
        facts: number of parameters, number of features and input, if they are known without building it.
        timm_model: its name in timm.
        translate: renames the tensors of a weight file.
    """

    build: Callable[[bool], nn.Module] | None
    weights: WeightsInfo
    facts: tuple[int, int, InputSpec] | None = None
    timm_model: str | None = None
    translate: Callable[[Mapping[str, Tensor], Path], dict[str, Tensor]] | None = None


BACKBONES: Final[Registry[BackboneFactory]] = Registry(
    "backbone",
    hint=f"`labelgap backbones` lists them; {TIMM_PREFIX}MODEL is any model of timm, "
    f"{OPEN_CLIP_PREFIX}MODEL/TAG one of open_clip.",
)


def register_backbone(
    name: str, build: Callable[..., nn.Module], *, summary: str = "", weights: WeightsInfo | None = None
) -> None:
    """Make a backbone available by name, to ``fit`` and, in a plug-in, to the commands.

    An installed package registers its builders by entry points of the group ``labelgap.backbones`` instead: the name
    of the entry point is the name of the backbone, and an attribute ``summary`` or ``weights`` of the builder counts.

    Args:
        name: without a colon.
        build: a function or class that returns a ``Backbone`` or an ``nn.Module`` (see ``ModuleBackbone``). It is
            called with ``pretrained=True`` or ``False`` if it has such a parameter, else without arguments.
        summary: one line for ``labelgap backbones``.
        weights: where its weights come from. If given, ``build`` must return the same weights every time, and a linear
            run does not store them.

    Example:
        >>> register_backbone("patches", lambda: nn.Conv2d(3, 64, 16, stride=16))  # doctest: +SKIP
        >>> create_backbone("patches").num_features  # doctest: +SKIP
        64
    """
    if not name or ":" in name or not callable(build):
        raise InputError(f"a backbone is registered by a name without a colon and a builder: {name!r}, {build!r}.")
    if name in BACKBONES:
        raise InputError(f"there is a backbone '{name}' already: register yours under another name.")
    takes_pretrained = "pretrained" in inspect.signature(build).parameters

    def make(pretrained: bool) -> nn.Module:
        return build(pretrained=pretrained) if takes_pretrained else build()

    BACKBONES.add(name, BackboneFactory(make, weights or UNSTATED_WEIGHTS), summary=summary)


def find_backbone(name: str) -> RegistryEntry[BackboneFactory]:
    """Return a backbone of the table, also one of an installed package; an error if there is none of that name."""
    if name not in BACKBONES:
        _load_plugins()
    return BACKBONES.get(name)


@cache
def _load_plugins() -> None:
    for name, build in load_plugins(PLUGIN_GROUP):
        options: dict[str, Any] = {key: getattr(build, key) for key in ("summary", "weights") if hasattr(build, key)}
        try:
            register_backbone(name, build, **options)
        except InputError as error:
            warnings.warn(f"the plug-in {build!r} is left out: {error}", stacklevel=2)


def registered_names() -> list[str]:
    """Return the names of all backbones of the table, in alphabetical order."""
    _load_plugins()
    return sorted(BACKBONES.names())


def _add_lite(variant: LiteVariant, parameters: int, summary: str) -> None:
    def build(pretrained: bool) -> Backbone:
        return EfficientNetLite(variant, pretrained=pretrained)

    facts = parameters, EfficientNetLite.NUM_FEATURES, variant.input_spec
    factory = BackboneFactory(build, variant.weights, facts, translate=translate_state_dict)
    BACKBONES.add(variant.name, factory, summary=summary)


def _add_resnet(name: str, parameters: int, summary: str) -> None:
    model = f"{name}.tv_in1k"
    weights = WeightsInfo(f"timm/{model} on the Hugging Face hub", "BSD-3-Clause")
    BACKBONES.add(name, BackboneFactory(None, weights, (parameters, 2048, IMAGENET_INPUT), model), summary=summary)


def resnet50_v1() -> nn.Module:
    """Return a ResNet-50 with random weights whose stages halve the size in the first convolution, as in its paper.

    The weights that He et al. published, and Caffe's and Keras's copies of them, need it; those of torchvision and timm
    were trained with the stride in the second convolution (v1.5, the backbone `resnet50`) and have the same names.
    """
    network: Any = import_timm().create_model("resnet50", num_classes=0, global_pool="")
    for stage in (network.layer2, network.layer3, network.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return cast(nn.Module, network)


def _add_cnn(name: Literal["small-cnn", "tiny-cnn"], facts: tuple[int, int, InputSpec], summary: str) -> None:
    BACKBONES.add(name, BackboneFactory(lambda pretrained: SmallCNN(name), RANDOM_WEIGHTS, facts), summary=summary)


_add_lite(LITE0, 3_371_008, "photos; the fastest; ImageNet weights that need no download")
_add_lite(LITE1, 4_135_680, "photos; deeper, its weights in the extra labelgap[lite]")
_add_lite(LITE2, 4_811_072, "photos, the default; deeper and wider; ImageNet weights that need no download")
_add_resnet("resnet50", 23_508_032, f"photos; the papers' network, {TIMM_PREFIX}resnet50.tv_in1k")
_add_resnet("resnet101", 42_500_160, f"photos; the papers' larger network, {TIMM_PREFIX}resnet101.tv_in1k")
BACKBONES.add(
    "resnet50-v1",
    BackboneFactory(lambda pretrained: resnet50_v1(), RANDOM_WEIGHTS, (23_508_032, 2048, IMAGENET_INPUT)),
    summary="photos; the first ResNet-50, for the weights of He et al. (--weights FILE)",
)
_add_cnn("small-cnn", (118_048, 128, SMALL_CNN_INPUT), "small gray images; trained from scratch in seconds")
_add_cnn("tiny-cnn", (76_416, 96, SMALL_CNN_INPUT), "small gray images; half the work of small-cnn, for the demo")
