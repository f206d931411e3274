"""The papers' image transforms, random changes of whole batches, and the random numbers of both.

A transform is a function from an image, its row and the epoch to uint8 of one size; normalization to floats happens on
the device. What is random is a function of (seed, epoch, row) alone: a counter-based hash, the finalizer of SplitMix64
(Steele, Lea and Flood, OOPSLA 2014), so that worker processes, the order of images and earlier draws change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from labelgap.core.errors import InputError, UnknownNameError

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MAX_DRAWS: Final = 64  # random numbers of one image, at most: a crop needs up to 22, a change of color 12


def hash_rows(seed: int, epoch: int, rows: ArrayLike) -> NDArray[np.uint64]:
    """Return 64 bits for every row of an epoch: three rounds of mixing, over seed, epoch and row."""
    state = np.full(1, seed & _MASK, dtype=np.uint64)
    for word in (np.array([epoch & _MASK], dtype=np.uint64), np.asarray(rows).astype(np.uint64)):
        state = _mix(_mix(state) ^ word)
    return _mix(state)


def flip_mask(seed: int, epoch: int, rows: ArrayLike) -> NDArray[np.bool_]:
    """Return which images are mirrored in an epoch: each with probability 1/2, drawn from (seed, epoch, row)."""
    return (hash_rows(seed, epoch, rows) >> np.uint64(63)).astype(bool)


def uniform_rows(seed: int, epoch: int, rows: ArrayLike, count: int) -> NDArray[np.float64]:
    """Return ``count`` numbers from 0 to 1 for every row, of SplitMix64 started at ``hash_rows``: ``(B, count)``."""
    steps = np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)
    bits = _mix(hash_rows(seed, epoch, rows)[:, None] + steps)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


class CounterRNG:
    """The random numbers of one image in one epoch: those of ``uniform_rows``, one after the other."""

    def __init__(self, seed: int, epoch: int, row: int) -> None:
        self._numbers: Iterator[float] = iter(uniform_rows(seed, epoch, [row], _MAX_DRAWS)[0].tolist())

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number from ``low`` to ``high``, which is left out, of 53 bits."""
        return low + (high - low) * next(self._numbers)

    def normal(self, deviation: float = 1.0) -> float:
        """Return a number around 0, by Box and Muller's transform."""
        length = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return deviation * length * math.cos(2.0 * math.pi * self.uniform())

    def integer(self, count: int) -> int:
        """Return a whole number from 0 to ``count`` - 1."""
        return min(int(self.uniform() * count), count - 1)

    def permutation(self, count: int) -> list[int]:
        """Return 0 … ``count`` - 1 in random order (Fisher and Yates)."""
        numbers = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.integer(last + 1)
            numbers[last], numbers[other] = numbers[other], numbers[last]
        return numbers


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: add the golden ratio, then shift and multiply; arithmetic modulo 2⁶⁴."""
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


Interpolation = Literal["bilinear", "bicubic"]
"""The filter of a resize; a pretrained network works best with the filter of its own training."""

_EIGENVALUES: Final = np.array([0.2175, 0.0188, 0.0045])
_EIGENVECTORS: Final = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]],
)
"""Of the covariance of ImageNet's colors on the scale 0…1 (Krizhevsky et al., NIPS 2012); a column is a vector."""


@runtime_checkable
class Transform(Protocol):
    """From an image to uint8 of one size. Implementations can be pickled, for the loader's worker processes."""

    @property
    def size(self) -> int:
        """Height and width of the result."""

    @property
    def min_decode_size(self) -> int | None:
        """A JPEG may be decoded smaller as long as neither side gets shorter than this; None: it may not."""

    def __call__(self, image: NDArray[np.uint8], row: int, epoch: int) -> NDArray[np.uint8]:
        """Return ``(channels, size, size)`` of an image ``(height, width, channels)``, one or three channels."""


@dataclass(frozen=True)
class Resize:
    """The single-positive papers': resize to ``size`` × ``size`` whatever the shape, in training with random mirroring.

    Attributes:
        size: 448 in the papers.
        flip_seed: None for no mirroring: for val, test and fixed features.
        interpolation: the filter of the resize.
    """

    size: int = 448
    flip_seed: int | None = None
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        _check(self.size, self.interpolation)

    @property
    def min_decode_size(self) -> int | None:
        """Twice the size: the difference is invisible after the resize."""
        return 2 * self.size

    def __call__(self, image: NDArray[np.uint8], row: int, epoch: int) -> NDArray[np.uint8]:
        """Return the image resized, and mirrored in half of the epochs."""
        resized = resize(image, self.size, self.size, self.interpolation)
        mirrored = self.flip_seed is not None and bool(flip_mask(self.flip_seed, epoch, [row])[0])
        return resized[:, :, ::-1] if mirrored else resized


@dataclass(frozen=True)
class RandomResizedCrop:
    r"""The two-way paper's, for training: random crop, random mirroring, color jitter and lighting noise.

    A rectangle of 8 to 100 % of the area and of sides 3:4 to 4:3 is resized to ``size`` × ``size`` (as in Inception;
    ten tries, else the largest such rectangle at the center). It is mirrored half of the time. Brightness, contrast
    and saturation change by factors in ``1 ± jitter``, in random order. The same is added to all pixels:

    .. math:: E\,(\alpha \odot \lambda), \qquad \alpha \sim N(0, \mathrm{lighting}^2)

    with eigenvectors E and eigenvalues λ of ImageNet's colors. The result is rounded and clipped to 0…255;
    the paper's code keeps floats, which differ by at most half a level except where they are clipped.

    Reference: Kobayashi, "Two-way multi-label loss", CVPR 2023; the steps are those of its published code.

    Attributes:
        size: 224 in the paper.
        seed: of everything random.
        jitter: 0.4 in the paper; 0 for none.
        lighting: 0.1 in the paper; 0 for none.
        interpolation: the filter of the resize.
        flip: whether to mirror at random, as in the paper; not where a mirrored image has other labels.
    """

    size: int = 224
    seed: int = 0
    jitter: float = 0.4
    lighting: float = 0.1
    interpolation: Interpolation = "bilinear"
    flip: bool = True

    def __post_init__(self) -> None:
        _check(self.size, self.interpolation)
        if not 0 <= self.jitter <= 1 or self.lighting < 0:
            raise InputError(f"jitter ({self.jitter}) is from 0 to 1, lighting ({self.lighting}) at least 0.")

    @property
    def min_decode_size(self) -> int | None:
        """None: a small crop may be enlarged."""
        return None

    def __call__(self, image: NDArray[np.uint8], row: int, epoch: int) -> NDArray[np.uint8]:
        """Return a random crop with color jitter and lighting noise, always of three channels."""
        rng = CounterRNG(self.seed, epoch, row)
        top, left, height, width = random_crop_box(image.shape[0], image.shape[1], rng)
        part = image[top : top + height, left : left + width]
        part = resize(part, self.size, self.size, self.interpolation)
        if rng.uniform() < 0.5 and self.flip:
            part = part[:, :, ::-1]
        part = np.broadcast_to(part, (3, self.size, self.size))
        shown = Image.fromarray(np.ascontiguousarray(part.transpose(1, 2, 0)))
        shown = _add_lighting(_jitter(shown, self.jitter, rng), self.lighting, rng)
        return np.asarray(shown).transpose(2, 0, 1)


@dataclass(frozen=True)
class CenterCrop:
    """The two-way paper's, for val and test: resize the shorter side to ``resize``, then crop the center.

    Attributes:
        size: 224 in the paper.
        resize: 256 in the paper.
        interpolation: the filter of the resize.
    """

    size: int = 224
    resize: int = 256
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        _check(self.size, self.interpolation)
        if self.resize < self.size:
            raise InputError(f"a crop of {self.size} pixels does not fit into a side of {self.resize}.")

    @property
    def min_decode_size(self) -> int | None:
        """Twice the shorter side."""
        return 2 * self.resize

    def __call__(self, image: NDArray[np.uint8], row: int, epoch: int) -> NDArray[np.uint8]:
        """Return the center crop. The longer side is rounded down, the margins to even (torchvision)."""
        height, width = image.shape[:2]
        short = min(height, width)
        height, width = self.resize * height // short, self.resize * width // short
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        whole = resize(image, height, width, self.interpolation)
        return whole[:, top : top + self.size, left : left + self.size]


def resize(
    image: NDArray[np.uint8], height: int, width: int, interpolation: Interpolation = "bilinear"
) -> NDArray[np.uint8]:
    """Resize ``(H, W, C)`` uint8 to ``(C, height, width)``, with antialiasing.

    Pillow's ``BILINEAR`` or ``BICUBIC`` by torch's kernel for bytes, more than twice as fast. Values differ by one
    level of 255 at most (bicubic: two), one in a thousand, and one in five of tall images: passes may come in another
    order.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3) or 0 in image.shape:
        raise InputError(f"an image is (H, W, 1 or 3) of uint8, not {image.shape} of {image.dtype}.")
    if image.shape[:2] == (height, width):
        return image.transpose(2, 0, 1)
    if not (image.flags.c_contiguous and image.flags.writeable):
        image = np.array(image, order="C")  # torch warns of memory that it may not write to
    planes = torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0)
    result: NDArray[np.uint8] = interpolate(planes, (height, width), mode=interpolation, antialias=True)[0].numpy()
    return result


def random_crop_box(height: int, width: int, rng: CounterRNG) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random crop: 8 to 100 % of the area, sides 3:4 to 4:3."""
    area, low, high = height * width, 3 / 4, 4 / 3
    for _ in range(10):
        part = area * rng.uniform(0.08, 1.0)
        shape = math.exp(rng.uniform(math.log(low), math.log(high)))
        wide, tall = round(math.sqrt(part * shape)), round(math.sqrt(part / shape))
        if 0 < wide <= width and 0 < tall <= height:
            return rng.integer(height - tall + 1), rng.integer(width - wide + 1), tall, wide
    shape = min(max(width / height, low), high)
    tall, wide = min(height, round(width / shape)), min(width, round(height * shape))
    tall, wide = max(tall, 1), max(wide, 1)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _jitter(image: Image.Image, strength: float, rng: CounterRNG) -> Image.Image:
    if strength == 0:
        return image
    steps = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    factors = [rng.uniform(1 - strength, 1 + strength) for _ in steps]
    for number in rng.permutation(len(steps)):
        image = steps[number](image).enhance(factors[number])
    return image


def _add_lighting(image: Image.Image, strength: float, rng: CounterRNG) -> Image.Image:
    if strength == 0:
        return image
    amounts = np.array([rng.normal(strength) for _ in range(3)])
    added = 255 * (_EIGENVECTORS @ (amounts * _EIGENVALUES))
    levels = np.rint(np.clip(np.arange(256) + added[:, None], 0, 255)).astype(np.uint8)
    return image.point(levels.ravel().tolist())


def _check(size: int, interpolation: str) -> None:
    if size < 1:
        raise InputError(f"images cannot be resized to {size} pixels.")
    if interpolation not in get_args(Interpolation):
        raise UnknownNameError("interpolation", interpolation, get_args(Interpolation))


_DRAWS: Final = 13  # random numbers per image: mirror, area, shape, two of position, five of geometry, three of color
_GEOMETRY: Final = (math.radians(15), 0.15, 0.15, 0.15, 0.15)
"""Rotation in radians; shear along x and y; shift along x and y, in half image sides."""


def smallest_crop(size: int) -> float:
    """Return the ``min_area`` of an ``Augmentation`` that fits images of this side in pixels.

    Crops enlarge the objects of small images to what networks know: +0.9 val mAP at 224 px; at 448 px they cost 0.2 to
    0.3.
    """
    return 0.4 if size < 320 else 1.0


@dataclass(frozen=True)
class Augmentation:
    r"""Random crops, mirroring, geometry and color of images that all have one size, a batch at a time on its device.

    Chosen by val mAP on the whole of VOC2012 (docs/results/recipe.md), in the manner of RandAugment (Cubuk et al.):

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
        return self.apply(images, matrices.to(images.device), factors.to(images.device)).to(torch.uint8)

    def draw(self, rows: ArrayLike, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the ``affine_matrices`` and ``color_factors`` of these rows, maybe of a whole epoch, on the CPU."""
        draws = torch.from_numpy(uniform_rows(self.seed, epoch, rows, _DRAWS).astype(np.float32))
        return self.affine_matrices(draws), self.color_factors(draws)

    def apply(self, images: Tensor, matrices: Tensor, factors: Tensor) -> Tensor:
        """Return images changed by what was drawn for them, which is on their device: floats that are whole numbers."""
        along_x, along_y, shift = matrices[..., None].unbind(2)
        down, across = (_positions(side, matrices.device) for side in images.shape[-2:])
        rows, columns = torch.addcmul(shift, along_y, down), along_x * across
        grid = (rows[..., None] + columns[:, :, None]).permute(0, 2, 3, 1)  # a plane of each coordinate is the fastest
        values = images.float()
        changed = grid_sample(values, grid, align_corners=False)
        is_free = values is not images and values.is_contiguous()
        return _change_color(changed, factors, values if is_free else None).round_()

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


@lru_cache(maxsize=4)
def _positions(side: int, device: torch.device) -> Tensor:
    """Return the coordinates of the pixels along a side."""
    return (2.0 * torch.arange(side, device=device) + 1.0) / side - 1.0


def _change_color(images: Tensor, factors: Tensor, out: Tensor | None) -> Tensor:
    """Change brightness, the contrast around the mean, and the saturation around gray, of values 0 to 255.

    That is one linear map of the colors of an image, and an offset. ``out`` is memory that may be taken for the result.
    """
    brightness, contrast, saturation = factors[:, :, None, None].unbind(1)
    values, channels = images.flatten(2), images.shape[1]
    scale = brightness * contrast
    kept = scale * saturation
    colors = torch.addcmul((scale - kept) / channels, kept, torch.eye(channels, device=images.device))
    offset = (brightness - scale) * values.mean((1, 2), keepdim=True)
    target = None if out is None else out.view_as(values)
    return torch.baddbmm(offset, colors, values, out=target).clamp_(0, 255).view_as(images)
