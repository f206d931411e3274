"""The papers' image transforms.

A transform is a function from an image, its row and the epoch to uint8 of one size. What it does at random is drawn
from (seed, epoch, row) alone; see ``labelgap.data.counter_rng``. Normalization to floats happens on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch.nn.functional import interpolate

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.data.counter_rng import CounterRNG, flip_mask

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

    Example:
        >>> Resize(4)(np.full((20, 10, 3), 7, np.uint8), row=0, epoch=1).shape
        (3, 4, 4)
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

    Example:
        >>> CenterCrop(4, 6)(np.zeros((20, 10, 1), np.uint8), row=0, epoch=1).shape
        (1, 4, 4)
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

    It is the filter of Pillow's ``BILINEAR`` or ``BICUBIC``, computed by torch's vectorised kernel for bytes, more than
    twice as fast. A value differs from Pillow's by one level of 255 at most (bicubic: two): about one in a thousand
    does, and one in five of tall images, where Pillow may go over columns before rows and so rounds in the other
    order. (Tall noise in black and white is worse in bicubic: what the first pass overshoots is cut off.)

    Example:
        >>> resize(np.full((20, 10, 3), 7, np.uint8), 2, 2)[0].tolist()
        [[7, 7], [7, 7]]
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
