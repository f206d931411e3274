"""Backbones for inference on a CPU, where computing features is what people wait for.

Two changes make an EfficientNet-Lite two to five times as fast (docs/scaling.md):

- Batch norms are folded into the convolutions before them, and ReLU6 is computed in place.
- Convolutions have 16-bit floats where the CPU computes with them: bfloat16 on x86 with AVX512-BF16 or AMX; float16 on
  ARM, from the "asimdhp" of ARMv8.2 on, by the Arm Compute Library that PyTorch's Linux packages contain. Elsewhere a
  16-bit convolution is computed by a reference implementation, a hundred times slower, so that the CPU is asked first.

Features of 16-bit convolutions differ, so the precision is a part of the key of the feature cache, and a run records
it. A head is used with features of the precision that it was trained on, in float32 where a CPU does not compute with
it. A network that was trained as a whole, in 32 bits, stays in 32.
"""

from __future__ import annotations

from copy import copy, deepcopy
from functools import cache
from typing import Final, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from labelgap.models.backbone import Backbone
from labelgap.models.efficientnet_lite import ConvNorm, EfficientNetLite, pad_same
from labelgap.models.heads import Classifier
from labelgap.models.info import LITE0, LITE1, LITE2, Precision, WeightsInfo

_NAMES: Final = frozenset(variant.name for variant in (LITE0, LITE1, LITE2))

_SIX: Final = {torch.float16: 0x4600, torch.bfloat16: 0x40C0}  # the bits of 6.0

_copies: WeakKeyDictionary[EfficientNetLite, tuple[object, FoldedEfficientNet]] = WeakKeyDictionary()
"""The last copy of every backbone, with what identifies the state of its weights."""


def inference_backbone(backbone: Backbone, device: torch.device, precision: Precision | None = None) -> Backbone:
    """Return a network with the features of a backbone in eval mode, in a ``precision``, maybe the fastest.

    It is a copy without gradients, made anew when the weights of the backbone have changed.
    """
    if not isinstance(backbone, EfficientNetLite) or device.type != "cpu":
        return backbone
    precision = inference_precision(backbone, device, precision)
    versions = (
        (value.data_ptr(), None if value.is_inference() else value._version)
        for value in (*backbone.parameters(), *backbone.buffers())
    )
    state = (precision, *versions)
    known, folded = _copies.get(backbone, (None, None))
    if folded is None or known != state:
        folded = FoldedEfficientNet(backbone, precision)
        _copies[backbone] = state, folded
    return folded


def inference_network(network: Classifier, device: torch.device, precision: Precision | None) -> Classifier:
    """Return a network with the same head on ``inference_backbone``."""
    fast = copy(network)
    fast._modules = {**network._modules, "backbone": inference_backbone(network.backbone, device, precision)}
    return fast


def inference_precision(
    backbone: str | Backbone, device: torch.device | None, precision: Precision | None = None
) -> Precision:
    """Return the precision of ``inference_backbone``'s convolutions; the backbone may be given by its name."""
    known = backbone in _NAMES if isinstance(backbone, str) else isinstance(backbone, EfficientNetLite)
    if not known or device is None or device.type != "cpu" or precision not in (None, cpu_precision()):
        return "float32"
    return cpu_precision()


@cache
def cpu_precision() -> Precision:
    """Return the precision in which this CPU computes convolutions fastest, as far as it is known."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:  # type: ignore[no-untyped-call]
        return "float32"
    try:
        capabilities = torch.cpu.get_capabilities()
        if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"):
            return "bfloat16"
        known = bool(capabilities.get("fp16_arith") and torch.ops.mkldnn._is_mkldnn_acl_supported())
    except (AttributeError, RuntimeError):  # other versions of PyTorch
        return "float32"
    return "float16" if known else "float32"


@final
class FoldedEfficientNet(Backbone):
    r"""An EfficientNet-Lite in eval mode, without batch norms.

    .. math:: w' = s\,w, \qquad b' = \beta - s\,\mu, \qquad s = \gamma / \sqrt{\sigma^2 + \epsilon}

    with batch norm's scale γ, shift β, mean μ and variance σ².

    Args:
        backbone: the network to copy.
        precision: the type of the convolutions; feature maps are float32. Weights that 16 bits cannot hold stay in 32.
    """

    def __init__(self, backbone: EfficientNetLite, precision: Precision = "float32") -> None:
        super().__init__(
            num_features=backbone.num_features,
            input_spec=backbone.input_spec,
            weights=WeightsInfo(backbone.source, backbone.license),
            name=backbone.name,
        )
        self.network = deepcopy(backbone).eval().requires_grad_(False)
        parts = {name: part for name, part in self.network.named_modules() if isinstance(part, ConvNorm)}
        for name, part in parts.items():
            self.network.set_submodule(name, _FoldedConv(part))
        self.dtype: torch.dtype = getattr(torch, precision)
        limit = torch.finfo(self.dtype).max
        if not all(bool((value.abs() <= limit).all()) for value in self.network.buffers()):
            self.dtype = torch.float32
        self.network.to(self.dtype)

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return ``(B, 1280, ⌈H/32⌉, ⌈W/32⌉)`` of float32."""
        images = images.to(self.dtype, memory_format=torch.channels_last)
        with torch.inference_mode():
            return self.network.feature_maps(images).float()


@final
class _FoldedConv(nn.Module):
    """A convolution with the batch norm folded into it and, unless it is linear, ReLU6."""

    weight: Tensor
    bias: Tensor

    def __init__(self, part: ConvNorm) -> None:
        super().__init__()
        conv, norm = part.conv, part.norm
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None and variance is not None
        scale = norm.weight.double() / (variance.double() + norm.eps).sqrt()
        weight = (conv.weight.double() * scale[:, None, None, None]).float()
        self.register_buffer("weight", weight.contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", (norm.bias.double() - mean.double() * scale).float())
        self.kernel, self.stride, self.linear, self.groups = part.kernel, part.stride, part.linear, conv.groups
        self.padding = conv.padding

    def forward(self, feature_maps: Tensor) -> Tensor:
        feature_maps = pad_same(feature_maps, self.kernel, self.stride)
        feature_maps = functional.conv2d(
            feature_maps, self.weight, self.bias, self.stride, self.padding, groups=self.groups
        )
        return feature_maps if self.linear else _relu6_(feature_maps)


def _relu6_(values: Tensor) -> Tensor:
    """Apply ReLU6 in place; 16-bit floats are compared as integers, in an eighth of the time of torch's ``clamp_``."""
    if values.dtype in _SIX:
        values.view(torch.int16).clamp_(0, _SIX[values.dtype])
        return values
    # a clamp in place is taken apart by an export, which takes longer than the rest of it
    return functional.relu6(values) if torch.compiler.is_compiling() else values.clamp_(0, 6)
