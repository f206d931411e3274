"""Two small networks for small gray images that train in seconds on two cores, from few images.

They are made for scenes of handwritten digits, 64 × 64 pixels, dark on light and light on dark, bold and faint. Four
choices let them learn from a few thousand scenes; none depends on the other images of a batch:

- The first layer is fixed. It measures the energy of lines and edges in each of eight directions, whatever their sign,
  relative to the neighborhood: a faint light digit and a bold dark one become alike.
- The learned filters have zero mean. Their inputs are never negative, and their average would dominate otherwise.
- Group norm instead of batch norm: the features of an image are the same in every batch, also in training.
- Features are pooled by a soft maximum: one position is enough for a digit to appear, yet each one gets a gradient.
"""

from __future__ import annotations

import math
from typing import Final, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from labelgap.models.backbone import Backbone
from labelgap.models.info import SMALL_CNN_INPUT

_GROUPS: Final = 8
_SHARPNESS: Final = 2.0
_LAYERS: Final = {"small-cnn": ((32, 2), (48, 1), (64, 2), (128, 1)), "tiny-cnn": ((32, 2), (64, 2), (96, 1))}
"""Outputs and stride of every convolution."""


@final
class SmallCNN(Backbone):
    """Oriented energy, 3×3 convolutions with group norm, a soft maximum: features at 1/8 of the side.

    "small-cnn" has four convolutions and 128 features. "tiny-cnn" has three and 96, half of the work.

    Because of the soft maximum, the average of a class activation map is not the logit but a lower bound of it wherever
    the weights of the class are positive.

    Example:
        >>> backbone = SmallCNN()
        >>> backbone.feature_maps(torch.zeros(2, 1, 64, 64)).shape
        torch.Size([2, 128, 8, 8])
    """

    def __init__(self, name: Literal["small-cnn", "tiny-cnn"] = "small-cnn") -> None:
        super().__init__(num_features=_LAYERS[name][-1][0], input_spec=SMALL_CNN_INPUT, name=name)
        self.energy = OrientedEnergy()
        layers = []
        width = self.energy.directions
        for outputs, stride in _LAYERS[name]:
            layers.append(ZeroMeanConv(width, outputs, stride))
            width = outputs
        self.layers = nn.Sequential(*layers)

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return ``(B, D, ⌈H/8⌉, ⌈W/8⌉)`` for ``(B, 1, H, W)``, never negative."""
        feature_maps: Tensor = self.layers(self.energy(images))
        return feature_maps

    def pool(self, feature_maps: Tensor) -> Tensor:
        """Return the soft maximum of every feature over all positions, ``(B, D)``."""
        return soft_maximum_pool(feature_maps, _SHARPNESS)


def soft_maximum_pool(feature_maps: Tensor, sharpness: float) -> Tensor:
    r"""Pool every feature to something between its mean and its maximum over all positions.

    .. math:: f_d = \frac1r \ln \frac1{hw} \sum_{ij} e^{r\,m_{dij}}

    with ``r`` the sharpness: ``(B, D, h, w)`` → ``(B, D)``.
    """
    positions = feature_maps.shape[-2] * feature_maps.shape[-1]
    return (torch.logsumexp(feature_maps.flatten(-2) * sharpness, dim=-1) - math.log(positions)) / sharpness


@final
class ZeroMeanConv(nn.Module):
    """A 3×3 convolution with centered filters, to a multiple of 8 channels, group norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(_GROUPS, outputs)

    def convolve(self, feature_maps: Tensor) -> Tensor:
        """Convolve with every filter less its own mean."""
        weight = self.conv.weight
        centered = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
        return functional.conv2d(feature_maps, centered, stride=self.conv.stride, padding=1)

    def forward(self, feature_maps: Tensor) -> Tensor:
        """Turn ``(B, inputs, h, w)`` into ``(B, outputs, ⌈h/stride⌉, ⌈w/stride⌉)``."""
        return functional.relu(self.norm(self.convolve(feature_maps)), inplace=True)


@final
class OrientedEnergy(nn.Module):
    r"""The energy of lines and edges in each direction, relative to the neighborhood. Nothing in it is learned.

    .. math:: e_k = \sqrt{(g_k^{\cos} * x)^2 + (g_k^{\sin} * x)^2}, \qquad
              y_k = e_k \big/ \sqrt{\textstyle\operatorname{mean}_{\text{around}} \sum_j e_j^2 + \epsilon^2}

    with :math:`g_k` a pair of Gabor filters, even and odd, along direction :math:`k\pi/n`: the energy is the same for
    a line and an edge, and for light on dark and dark on light.

    Args:
        directions: how many, ``n``.
        kernel: the side of the filters, odd.
        scale: the standard deviation of their envelope, in pixels; a wavelength is four of it.
        around: the side of the box that is averaged over, twice, at half resolution; odd.
        floor: ``ε``, the contrast below which there is nothing to see.
    """

    def __init__(
        self, directions: int = 8, *, kernel: int = 9, scale: float = 2.0, around: int = 9, floor: float = 0.2
    ) -> None:
        super().__init__()
        self.directions, self.kernel, self.around, self.floor = directions, kernel, around, floor
        self.filters: Tensor
        self.register_buffer("filters", _gabor_pairs(directions, kernel, scale), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Turn images ``(B, 1, H, W)`` into energies ``(B, n, ⌈H/2⌉, ⌈W/2⌉)``."""
        padded = functional.pad(images, (self.kernel // 2,) * 4, mode="replicate")
        patches = padded[:, 0].unfold(1, self.kernel, 2).unfold(2, self.kernel, 2).flatten(3)
        with torch.autocast(images.device.type, enabled=False):  # CPUs without bf16 have no such product
            squares = (patches @ self.filters.flatten(1).T).movedim(-1, 1).square()  # half the time of conv2d on a CPU
        energy = squares[:, : self.directions] + squares[:, self.directions :]
        around = self._average(self._average(energy.sum(dim=1, keepdim=True)))
        return (energy / (around + self.floor**2)).sqrt()

    def _average(self, feature_maps: Tensor) -> Tensor:
        """Average over a box, of the pixels inside the image: by columns, then by rows, which is cheaper."""
        side, half = self.around, self.around // 2
        feature_maps = functional.avg_pool2d(feature_maps, (side, 1), 1, (half, 0), count_include_pad=False)
        return functional.avg_pool2d(feature_maps, (1, side), 1, (0, half), count_include_pad=False)


def _gabor_pairs(directions: int, kernel: int, scale: float) -> Tensor:
    """Return ``(2n, 1, kernel, kernel)``: ``n`` even filters of zero mean, then ``n`` odd ones, each of unit norm."""
    offset = torch.arange(kernel, dtype=torch.float64) - kernel // 2
    angle = torch.arange(directions, dtype=torch.float64) * (math.pi / directions)
    along = offset[None, None, :] * angle.cos()[:, None, None] + offset[None, :, None] * angle.sin()[:, None, None]
    envelope = torch.exp(-(offset[None, :] ** 2 + offset[:, None] ** 2) / (2 * scale**2))
    phase = along * (math.pi / (2 * scale))
    even = envelope * phase.cos()
    even = even - envelope * (even.sum(dim=(1, 2), keepdim=True) / envelope.sum())
    filters = torch.cat([even, envelope * phase.sin()])
    filters = filters / filters.square().sum(dim=(1, 2), keepdim=True).sqrt()
    return filters.unsqueeze(1).to(torch.float32)
