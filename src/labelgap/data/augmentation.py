"""Random changes of training images, a batch at a time on its device.

Images are decoded and resized once; what is random comes after, where it is cheap. The changes were chosen by val mAP
on the whole of VOC2012 (docs/results/recipe.md): small rotations, shears, shifts and changes of color in the manner of
RandAugment (Cubuk et al., 2020), and for small images crops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from labelgap.data.counter_rng import uniform_rows

_DRAWS: Final = 13
"""Random numbers per image: mirror, area, shape, two of position, five of geometry, three of color."""
_GEOMETRY: Final = (math.radians(15), 0.15, 0.15, 0.15, 0.15)
"""Rotation in radians; shear along x and y; shift along x and y, in half image sides."""


def smallest_crop(size: int) -> float:
    """Return the ``min_area`` of an ``Augmentation`` that fits images of this side in pixels.

    Networks know objects at the size that they have in ImageNet. In small images they are smaller, and crops enlarge
    them: +0.9 val mAP at 224 px. At 448 px crops of down to 40 % cost 0.3 after 12 epochs and 0.2 after 20.

    Example:
        >>> smallest_crop(224), smallest_crop(448)
        (0.4, 1.0)
    """
    return 0.4 if size < 320 else 1.0


@dataclass(frozen=True)
class Augmentation:
    r"""Random crops, mirroring, geometry and color of images that all have one size.

    - a crop of ``min_area`` to 100 % of the area and of sides 3:4 to 4:3, no longer than the image's, enlarged to the
      size of the image; with a ``min_area`` of 1 it leaves out at most a seventh of one side;
    - mirrored half of the time;
    - rotated by 15°, sheared by 0.15 and shifted by 7.5 % of the side, each in a quarter of the images, in either
      direction; what lies outside is black;
    - brightness, contrast and saturation: each in half of the images, by a factor in ``1 ± color``.

    One resampling does all of the geometry: output position u comes from input position

    .. math:: \mathrm{diag}(w, h)\, S R\, \mathrm{diag}(\pm 1, 1)\, u + t

    with crop sides w and h, shear S, rotation R and shift t. What is random depends on (seed, epoch, row) alone.

    Attributes:
        seed: of everything random.
        flip: whether to mirror; not where a mirrored image has other labels.
        min_area: smallest share of the image that a crop keeps.
        color: largest change of brightness, contrast and saturation.

    Example:
        >>> images = torch.full((2, 3, 8, 8), 100, dtype=torch.uint8)
        >>> Augmentation(seed=0)(images, rows=[4, 7], epoch=1).shape
        torch.Size([2, 3, 8, 8])
    """

    seed: int
    flip: bool = True
    min_area: float = 0.4
    color: float = 0.3

    def __call__(self, images: Tensor, rows: ArrayLike, epoch: int) -> Tensor:
        """Return changed images, uint8 ``(B, C, H, W)`` like the given ones."""
        matrices, factors = self.draw(rows, epoch)
        return self.apply(images, matrices.to(images.device), factors.to(images.device))

    def draw(self, rows: ArrayLike, epoch: int) -> tuple[Tensor, Tensor]:
        """Return what is random, on the CPU: ``affine_matrices`` and ``color_factors`` of these rows.

        Those of a whole epoch can be drawn at once and copied to the device together, so that no batch waits for it.
        """
        draws = torch.from_numpy(uniform_rows(self.seed, epoch, rows, _DRAWS).astype(np.float32))
        return self.affine_matrices(draws), self.color_factors(draws)

    def apply(self, images: Tensor, matrices: Tensor, factors: Tensor) -> Tensor:
        """Return images changed by what was drawn for them, which is on their device."""
        grid = affine_grid(matrices, list(images.shape), align_corners=False)
        changed = grid_sample(images.float(), grid, align_corners=False)
        return _change_color(changed, factors).round_().to(torch.uint8)

    def affine_matrices(self, draws: Tensor) -> Tensor:
        """Return the map from output to input positions, ``(B, 2, 3)``; coordinates go from -1 to 1."""
        mirrored, area, shape, across, down = draws[:, :5].unbind(1)
        sign = torch.where(mirrored < 0.5, -1.0, 1.0) if self.flip else torch.ones_like(mirrored)
        area, ratio = self.min_area + (1 - self.min_area) * area, torch.exp((2 * shape - 1) * math.log(4 / 3))
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        kind = draws[:, 5:10]
        amount = torch.where(kind < 0.125, -1.0, torch.where(kind < 0.25, 1.0, 0.0)) * torch.tensor(_GEOMETRY)
        angle, shear_x, shear_y, shift_x, shift_y = amount.unbind(1)
        cos, sin = torch.cos(angle), torch.sin(angle)
        left, top = (1 - width) * (2 * across - 1) + shift_x, (1 - height) * (2 * down - 1) + shift_y
        first = torch.stack([width * sign * (cos + shear_x * sin), width * (shear_x * cos - sin), left], 1)
        second = torch.stack([height * sign * (sin + shear_y * cos), height * (cos - shear_y * sin), top], 1)
        return torch.stack([first, second], 1)

    def color_factors(self, draws: Tensor) -> Tensor:
        """Return the factors of brightness, contrast and saturation, ``(B, 3)``; 1 for half of them."""
        drawn = draws[:, 10:13]
        return torch.where(drawn < 0.5, 1 + self.color * (4 * drawn - 1), torch.ones_like(drawn))


def _change_color(images: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, the contrast around the mean, and the saturation around gray, of values 0 to 255, in place."""
    brightness, contrast, saturation = factors[:, :, None, None, None].unbind(1)
    images = images.mul_(brightness)
    mean = images.mean((1, 2, 3), keepdim=True)
    images = images.sub_(mean).mul_(contrast).add_(mean)
    gray = images.mean(1, keepdim=True)
    return images.sub_(gray).mul_(saturation).add_(gray).clamp_(0, 255)
