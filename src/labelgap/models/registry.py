"""Backbones by name: those of the table, any of timm and open_clip, and classes by their import path."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from labelgap.core.errors import InputError, RunError
from labelgap.core.registry import Registry, RegistryEntry, load_plugins
from labelgap.core.trust import class_path, find_class, is_class_path
from labelgap.models.info import (
    IMAGENET_INPUT,
    LITE0,
    LITE1,
    LITE2,
    NO_WEIGHTS,
    OPEN_CLIP_PREFIX,
    RANDOM_WEIGHTS,
    SMALL_CNN_INPUT,
    TIMM_PREFIX,
    UNSTATED_WEIGHTS,
    BackboneInfo,
    InputSpec,
    LiteVariant,
    WeightsInfo,
)

if TYPE_CHECKING:
    from torch import nn

    from labelgap.models.backbone import Backbone
    from labelgap.models.weight_files import WeightFile

PLUGIN_GROUP: Final = "labelgap.backbones"  # the entry points in which an installed package names its builders


@dataclass(frozen=True)
class BackboneFactory:
    """How a backbone is made."""

    build: Callable[[bool], nn.Module] | None  # takes ``pretrained`` and returns the network; None for a model of timm
    weights: WeightsInfo  # the source of the pretrained weights
    facts: tuple[int, int, InputSpec] | None = None  # parameters, features and input, if known without building it
    timm_model: str | None = None  # its name in timm


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


def _add_lite(variant: LiteVariant, parameters: int, summary: str) -> None:
    def build(pretrained: bool) -> Backbone:
        from labelgap.models.efficientnet_lite import EfficientNetLite

        return EfficientNetLite(variant, pretrained=pretrained)

    facts = parameters, 1280, variant.input_spec
    BACKBONES.add(variant.name, BackboneFactory(build, variant.weights, facts), summary=summary)


def _add_resnet(name: str, parameters: int, summary: str) -> None:
    model = f"{name}.tv_in1k"
    weights = WeightsInfo(f"timm/{model} on the Hugging Face hub", "BSD-3-Clause")
    BACKBONES.add(name, BackboneFactory(None, weights, (parameters, 2048, IMAGENET_INPUT), model), summary=summary)


def resnet50_v1() -> nn.Module:
    """Return a ResNet-50 with random weights whose stages halve the size in the first convolution, as in its paper.

    The weights of He et al., and their copies, need it; those of torchvision and timm are v1.5, and have the same
    names.
    """
    from labelgap.models.timm import import_timm

    network: Any = import_timm().create_model("resnet50", num_classes=0, global_pool="")
    for stage in (network.layer2, network.layer3, network.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return cast("nn.Module", network)


def _add_cnn(name: Literal["small-cnn", "tiny-cnn"], facts: tuple[int, int, InputSpec], summary: str) -> None:
    def build(pretrained: bool) -> Backbone:
        from labelgap.models.small_cnn import SmallCNN

        return SmallCNN(name)

    BACKBONES.add(name, BackboneFactory(build, RANDOM_WEIGHTS, facts), summary=summary)


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


def create_backbone(
    name: str, *, pretrained: bool = True, weights: str | os.PathLike[str] | None = None, size: int | None = None
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
    from labelgap.models.open_clip import OpenClipBackbone, load_clip
    from labelgap.models.timm import TimmBackbone
    from labelgap.models.weight_files import read_weight_file

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
    from torch import nn

    from labelgap.models.backbone import Backbone, ModuleBackbone
    from labelgap.models.open_clip import OpenClipBackbone
    from labelgap.models.timm import TimmBackbone

    if not isinstance(network, nn.Module):
        raise InputError(f"a backbone is a name or an nn.Module, not {type(network).__name__}.")
    if isinstance(network, Backbone):
        backbone: Backbone = network
        remade = isinstance(network, ModuleBackbone | OpenClipBackbone | TimmBackbone)  # by the name it knows
        if not remade and backbone.name not in BACKBONES:
            backbone.name = class_path(type(network))
    else:
        backbone = ModuleBackbone(network, weights=weights)
    backbone.reproducible = False
    return backbone


def check_backbone(name: str) -> None:
    """Raise ``UnknownNameError`` if there is no backbone of that name; nothing is built, but timm may be imported."""
    from labelgap.models.open_clip import parse_name
    from labelgap.models.timm import pretrained_config

    if name.startswith(OPEN_CLIP_PREFIX):
        parse_name(name)
    elif (model := _timm_model(name)) is not None:
        pretrained_config(model)


def is_pretrained(name: str, weights: str | os.PathLike[str] | None = None) -> bool:
    """Return whether ``create_backbone(name, weights=weights)`` starts from trained weights, or may do so."""
    from labelgap.models.open_clip import parse_name
    from labelgap.models.timm import pretrained_config, weights_info

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
    """
    return not is_class_path(name) and (name.startswith(OPEN_CLIP_PREFIX) or _timm_model(name) is not None)


def backbone_names() -> list[str]:
    """Return the names of all backbones except timm's, in alphabetical order."""
    _load_plugins()
    return sorted(BACKBONES.names())


def list_backbones() -> list[BackboneInfo]:
    """Return what is known of every backbone except timm's; labelgap's own are not built for it."""
    return [backbone_info(name) for name in backbone_names()]


def backbone_info(name: str) -> BackboneInfo:
    """Return what is known of one backbone, also of any model of timm; no weights are loaded."""
    if name.startswith(OPEN_CLIP_PREFIX):
        from labelgap.models.open_clip import parse_name

        clip = parse_name(name)
        summary, weights, facts = f"open_clip's {clip.model}, the image tower", clip.weights, None
    elif name.startswith(TIMM_PREFIX):
        from labelgap.models.timm import pretrained_config, weights_info

        config = pretrained_config(name.removeprefix(TIMM_PREFIX))
        summary, weights, facts = config.description or f"timm's {config.architecture}", weights_info(config), None
    else:
        entry = find_backbone(name)
        summary, weights, facts = entry.summary, entry.value.weights, entry.value.facts
    if facts is None:
        from labelgap.models.backbone import count_parameters

        backbone = outline_backbone(name)
        facts = count_parameters(backbone), backbone.num_features, backbone.input_spec
    return BackboneInfo(name, summary, *facts, weights.source, weights.license)


def outline_backbone(name: str, size: int | None = None) -> Backbone:
    """Return a backbone for its names and shapes: a library's, which may be very large, takes no memory."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.device("meta" if names_address(name) else "cpu"):
        return create_backbone(name, pretrained=False, size=size)


def _timm_model(name: str) -> str | None:
    """Return what a backbone is called in timm; None for one that is not timm's."""
    if name.startswith(TIMM_PREFIX):
        return name.removeprefix(TIMM_PREFIX)
    if is_class_path(name):
        from torch import nn

        find_class(name, nn.Module)
        return None
    return find_backbone(name).value.timm_model


def _build(name: str, pretrained: bool) -> Backbone:
    from torch import nn

    from labelgap.models.backbone import Backbone, ModuleBackbone

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
    import torch

    from labelgap.models.backbone import ModuleBackbone
    from labelgap.models.efficientnet_lite import EfficientNetLite, translate_state_dict
    from labelgap.models.weight_files import load_tensors, match_tensors

    with torch.random.fork_rng(devices=[]):  # weights that the file replaces draw no random numbers
        backbone = _build(name, pretrained=False)
    lite = isinstance(backbone, EfficientNetLite)
    tensors = translate_state_dict(file.tensors, file.path) if lite else file.tensors
    network = backbone.network if isinstance(backbone, ModuleBackbone) else backbone
    load_tensors(network, match_tensors(tensors, network), file, name)
    backbone.source, backbone.license = file.weights.source, file.weights.license
    backbone.reproducible = False
    return backbone
