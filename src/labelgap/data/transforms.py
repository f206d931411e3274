"""What the papers do to a picture before a network sees it.

A transform is a function from a picture, its row and the epoch to bytes of one size. What it does at random is drawn
from (seed, epoch, row) alone; see ``labelgap.data.counter_rng``. Bytes become floats, and are normalised, on the device.
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

__all__ = ["CenterCrop", "Interpolation", "RandomResizedCrop", "Resize", "Transform", "random_crop_box", "resize"]

Interpolation = Literal["bilinear", "bicubic"]
"""How a picture is resized: the filter that a network's own pictures were resized by suits it best."""

_EIGENVALUES: Final = np.array([0.2175, 0.0188, 0.0045])
_EIGENVECTORS: Final = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]],
)
"""Of the covariance of ImageNet's colours on the scale 0…1 (Krizhevsky et al., NIPS 2012); a column is a vector."""


@runtime_checkable
class Transform(Protocol):
    """From a picture to bytes of one size. Implementations can be pickled, so loader processes can have a copy."""

    @property
    def size(self) -> int:
        """The side of what comes out."""

    @property
    def min_decode_size(self) -> int | None:
        """A JPEG may be decoded smaller as long as neither side gets shorter than this; None: it may not."""

    def __call__(self, picture: NDArray[np.uint8], row: int, epoch: int) -> NDArray[np.uint8]:
        """Return ``(channels, size, size)`` of a picture ``(height, width, channels)``, one or three channels."""


@dataclass(frozen=True)
class Resize:
    """The single-positive papers': brought to exactly ``size`` × ``size``, and in training mirrored half of the time.

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
        """Twice the size: nobody sees the difference after the resize."""
        return 2 * self.size

    def __call__(self, picture: NDArray[np.uint8], row: int, epoch: int) -> NDArray[np.uint8]:
        """Return the picture squashed, and mirrored if its coin says so."""
        squashed = resize(picture, self.size, self.size, self.interpolation)
        mirrored = self.flip_seed is not None and bool(flip_mask(self.flip_seed, epoch, [row])[0])
        return squashed[:, :, ::-1] if mirrored else squashed


@dataclass(frozen=True)
class RandomResizedCrop:
    r"""The two-way paper's, for training: a random part of the picture, mirrored or not, in other light.

    A rectangle of 8 to 100 % of the area and of sides 3:4 to 4:3 is resized to ``size`` × ``size`` (as in Inception;
    ten tries, else the largest of that shape in the middle). It is mirrored half of the time. Brightness, contrast
    and saturation change by factors in ``1 ± jitter``, in random order. The same is added to all pixels:

    .. math:: E\,(\alpha \odot \lambda), \qquad \alpha \sim N(0, \mathrm{lighting}^2)

    with eigenvectors E and eigenvalues λ of ImageNet's colours. The result is rounded to bytes and cut off at 0 and
    255; the paper's code keeps it as floats, which differs by half a level except where it is cut off.

    Reference: Kobayashi, "Two-way multi-label loss", CVPR 2023; the steps are those of its published code.

    Attributes:
        size: 224 in the paper.
        seed: of everything random.
        jitter: 0.4 in the paper; 0 for none.
        lighting: 0.1 in the paper; 0 for none.
        interpolation: the filter of the resize.
        mirrored: whether half of them are mirrored, as in the paper; not where that shows something else.
    """

    size: int = 224
    seed: int = 0
    jitter: float = 0.4
    lighting: float = 0.1
    interpolation: Interpolation = "bilinear"
    mirrored: bool = True

    def __post_init__(self) -> None:
        _check(self.size, self.interpolation)
        if not 0 <= self.jitter <= 1 or self.lighting < 0:
            raise InputError(f"jitter ({self.jitter}) is from 0 to 1, lighting ({self.lighting}) at least 0.")

    @property
    def min_decode_size(self) -> int | None:
        """None: a small part of the picture may be enlarged."""
        return None

    def __call__(self, picture: NDArray[np.uint8], row: int, epoch: int) -> NDArray[np.uint8]:
        """Return a random part in random light; grey pictures come out with three channels."""
        draws = CounterRNG(self.seed, epoch, row)
        top, left, height, width = random_crop_box(picture.shape[0], picture.shape[1], draws)
        part = picture[top : top + height, left : left + width]
        part = resize(part, self.size, self.size, self.interpolation)
        if draws.uniform() < 0.5 and self.mirrored:
            part = part[:, :, ::-1]
        part = np.broadcast_to(part, (3, self.size, self.size))
        shown = Image.fromarray(np.ascontiguousarray(part.transpose(1, 2, 0)))
        shown = _lit(_jittered(shown, self.jitter, draws), self.lighting, draws)
        return np.asarray(shown).transpose(2, 0, 1)


@dataclass(frozen=True)
class CenterCrop:
    """The two-way paper's, for val and test: the shorter side to ``resize``, then the ``size`` × ``size`` middle.

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
            raise InputError(f"a middle of {self.size} pixels does not fit into a side of {self.resize}.")

    @property
    def min_decode_size(self) -> int | None:
        """Twice the shorter side."""
        return 2 * self.resize

    def __call__(self, picture: NDArray[np.uint8], row: int, epoch: int) -> NDArray[np.uint8]:
        """Return the middle; nothing is random. The longer side is rounded down, the margins to even (torchvision)."""
        height, width = picture.shape[:2]
        short = min(height, width)
        height, width = self.resize * height // short, self.resize * width // short
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        whole = resize(picture, height, width, self.interpolation)
        return whole[:, top : top + self.size, left : left + self.size]


def resize(
    picture: NDArray[np.uint8], height: int, width: int, interpolation: Interpolation = "bilinear"
) -> NDArray[np.uint8]:
    """Resize ``(H, W, C)`` bytes to ``(C, height, width)``, by a filter that covers every pixel.

    It is the filter of Pillow's ``BILINEAR`` or ``BICUBIC``, computed by torch's vectorised kernel for bytes, more than
    twice as fast. A value differs from Pillow's by one level of 255 at most (bicubic: two): about one in a thousand
    does, and one in five of tall pictures, where Pillow may go over columns before rows and so rounds in the other
    order. (Tall noise in black and white is worse in bicubic: what the first pass overshoots is cut off.)

    Example:
        >>> resize(np.full((20, 10, 3), 7, np.uint8), 2, 2)[0].tolist()
        [[7, 7], [7, 7]]
    """
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (1, 3) or 0 in picture.shape:
        raise InputError(f"a picture is (H, W, 1 or 3) of uint8, not {picture.shape} of {picture.dtype}.")
    if picture.shape[:2] == (height, width):
        return picture.transpose(2, 0, 1)
    if not (picture.flags.c_contiguous and picture.flags.writeable):
        picture = np.array(picture, order="C")  # torch warns of memory that it may not write to
    planes = torch.from_numpy(picture).permute(2, 0, 1).unsqueeze(0)
    made: NDArray[np.uint8] = interpolate(planes, (height, width), mode=interpolation, antialias=True)[0].numpy()
    return made


def random_crop_box(height: int, width: int, draws: CounterRNG) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random part: 8 to 100 % of the area, sides 3:4 to 4:3."""
    area, low, high = height * width, 3 / 4, 4 / 3
    for _ in range(10):
        part = area * draws.uniform(0.08, 1.0)
        shape = math.exp(draws.uniform(math.log(low), math.log(high)))
        wide, tall = round(math.sqrt(part * shape)), round(math.sqrt(part / shape))
        if 0 < wide <= width and 0 < tall <= height:
            return draws.below(height - tall + 1), draws.below(width - wide + 1), tall, wide
    shape = min(max(width / height, low), high)
    tall, wide = min(height, round(width / shape)), min(width, round(height * shape))
    tall, wide = max(tall, 1), max(wide, 1)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _jittered(picture: Image.Image, strength: float, draws: CounterRNG) -> Image.Image:
    if strength == 0:
        return picture
    steps = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    factors = [draws.uniform(1 - strength, 1 + strength) for _ in steps]
    for number in draws.order(len(steps)):
        picture = steps[number](picture).enhance(factors[number])
    return picture


def _lit(picture: Image.Image, strength: float, draws: CounterRNG) -> Image.Image:
    if strength == 0:
        return picture
    amounts = np.array([draws.normal(strength) for _ in range(3)])
    added = 255 * (_EIGENVECTORS @ (amounts * _EIGENVALUES))
    levels = np.rint(np.clip(np.arange(256) + added[:, None], 0, 255)).astype(np.uint8)
    return picture.point(levels.ravel().tolist())


def _check(size: int, interpolation: str) -> None:
    if size < 1:
        raise InputError(f"pictures cannot be resized to {size} pixels.")
    if interpolation not in get_args(Interpolation):
        raise UnknownNameError("interpolation", interpolation, get_args(Interpolation))
