"""The contract of a backbone: images in; feature maps, and the vector they are pooled to, out.

A backbone states what images it takes (``input_spec``) and where its weights come from (``source``, ``license``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

from labelgap.core.errors import InputError


@dataclass(frozen=True)
class InputSpec:
    """The images that a backbone takes.

    Attributes:
        size: width and height in pixels.
        mean: subtracted from each channel, on the scale 0…1.
        std: each channel is divided by it afterwards, on the same scale.
        channels: 3 for color, 1 for gray.
        interpolation: how an image is resized to ``size``.

    Example:
        >>> InputSpec(size=224, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)).channels
        3
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


class Backbone(nn.Module, ABC):
    """A network without its classification layer.

    A subclass defines ``feature_maps`` and, unless the average suits it, ``pool``, which turns maps into vectors. Where
    vectors are not pooled maps (a transformer's class token), it overrides ``features`` and ``maps_and_features``.

    Args:
        num_features: the dimension of the vectors, ``D``.
        input_spec: the images it takes.
        weights: where its weights come from.
        name: of the architecture; the class name by default.

    Attributes:
        reproducible: whether ``create_backbone(name)`` gives the same weights again. If not, a run stores them.
    """

    def __init__(
        self,
        *,
        num_features: int,
        input_spec: InputSpec,
        weights: WeightsInfo = RANDOM_WEIGHTS,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.name = name or type(self).__name__
        self.num_features = num_features
        self.input_spec = input_spec
        self.source = weights.source
        self.license = weights.license
        self.reproducible = weights not in (RANDOM_WEIGHTS, UNSTATED_WEIGHTS)
        self._mean: Tensor
        self._std: Tensor
        self.register_buffer("_mean", _per_channel(input_spec.mean), persistent=False)
        self.register_buffer("_std", _per_channel(input_spec.std), persistent=False)

    @abstractmethod
    def feature_maps(self, images: Tensor) -> Tensor:
        """Return the features of every position: normalized ``(B, C, H, W)`` → ``(B, D, h, w)``."""

    def pool(self, feature_maps: Tensor) -> Tensor:
        """Return the average over all positions: ``(B, D, h, w)`` → ``(B, D)``."""
        return feature_maps.mean(dim=(-2, -1))

    def features(self, images: Tensor) -> Tensor:
        """Return one vector per image: normalized ``(B, C, H, W)`` → ``(B, D)``."""
        return self.pool(self.feature_maps(images))

    def maps_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``feature_maps(images)`` and ``features(images)`` from one forward pass."""
        feature_maps = self.feature_maps(images)
        return feature_maps, self.pool(feature_maps)

    def forward(self, images: Tensor) -> Tensor:
        """Return ``features(images)``."""
        return self.features(images)

    def normalize(self, images: Tensor) -> Tensor:
        r"""Scale and normalize bytes on their device, so that only bytes are copied to it.

        .. math:: x = (b / 255 - \mathrm{mean}) / \mathrm{std}

        Args:
            images: ``(B, C, H, W)`` uint8, on the device of the backbone.

        Returns:
            ``(B, C, H, W)`` in the floating type of the backbone's buffers.

        Example:
            >>> from labelgap.models import SmallCNN
            >>> white = torch.full((1, 1, 64, 64), 255, dtype=torch.uint8)
            >>> bool(SmallCNN().normalize(white).max() > 0)
            True
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != self.input_spec.channels:
            raise InputError(
                f"normalize takes bytes of shape (batch, {self.input_spec.channels}, height, width), "
                f"not {str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}."
            )
        return images.to(self._mean.dtype).div_(255).sub_(self._mean).div_(self._std)


def count_parameters(module: nn.Module) -> int:
    """Count the parameters of a module, frozen ones included.

    Example:
        >>> count_parameters(nn.Linear(3, 2))
        8
    """
    return sum(parameter.numel() for parameter in module.parameters())


def _per_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1)
