"""Pictures as people hold them in Python: paths, Pillow images, arrays, tensors, or features; one at a time or many."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageOps
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.data.dataset import Split
from labelgap.data.decoding import to_rgb
from labelgap.data.images import FileImages, ImageSource, check_rows
from labelgap.data.readers.features import FeatureVectors

__all__ = ["InMemoryImages", "as_image_source"]

_KINDS: Final = (
    "paths of files, Pillow images, uint8 arrays (H, W), (H, W, 3) or (N, H, W, 3), tensors (C, H, W) or (N, C, H, W) "
    "of uint8 or of floats from 0 to 1, a split or a source of images; or features (N, D) where a run was trained on "
    "features"
)


class InMemoryImages:
    """Pictures of any sizes that are in memory already; each is brought to bytes when it is asked for.

    Args:
        pictures: Pillow images, arrays ``(H, W)`` or ``(H, W, 1 or 3)``, or tensors ``(1 or 3, H, W)``, mixed as they
            come. Numbers are uint8, or floats from 0 to 1, which are rounded to bytes.

    Example:
        >>> given = InMemoryImages([Image.new("L", (5, 4)), np.zeros((2, 3, 3), np.uint8)])
        >>> given[0].shape, given[1].shape
        ((4, 5, 3), (2, 3, 3))
    """

    def __init__(self, pictures: Sequence[Any]) -> None:
        self.pictures = list(pictures)
        self.names: tuple[str, ...] = tuple(map(str, range(len(self.pictures))))
        for place, picture in enumerate(self.pictures):
            if not isinstance(picture, Image.Image):
                _check_numbers(picture, f"picture {place}" if len(self.pictures) > 1 else "the picture")

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        picture = self.pictures[row]
        if isinstance(picture, Image.Image):
            return np.array(to_rgb(ImageOps.exif_transpose(picture)))
        if isinstance(picture, Tensor):
            picture = picture.detach().cpu().numpy().transpose(1, 2, 0)
        picture = picture[..., None] if picture.ndim == 2 else picture
        if picture.dtype != np.uint8:
            picture = np.rint(255 * picture.astype(np.float64)).astype(np.uint8)
        return np.array(picture, order="C")

    def select(self, rows: ArrayLike) -> Self:
        """Return these rows, in this order."""
        chosen = check_rows(rows, len(self)).tolist()
        selected = type(self)([self.pictures[row] for row in chosen])
        selected.names = tuple(self.names[row] for row in chosen)
        return selected

    def fingerprint(self) -> str:
        """Return a hash of every picture."""
        digest = hashlib.blake2b(digest_size=16)
        for row in range(len(self)):
            pixels = self[row]
            digest.update(repr(pixels.shape).encode() + pixels.tobytes())
        return digest.hexdigest()


def as_image_source(images: Any) -> ImageSource:
    """Turn what was given to ``Run.predict`` into a source of images, or say what can be given.

    Args:
        images: one picture or many.

            - a path, or several: files, read as everywhere in labelgap;
            - a Pillow image, or several;
            - a numpy array with its channels last: ``(H, W)`` and ``(H, W, 1 or 3)`` are one picture, ``(N, H, W)`` and
              ``(N, H, W, 1 or 3)`` are N; or a list of arrays of different sizes;
            - a tensor with its channels first: ``(1 or 3, H, W)``, ``(N, 1 or 3, H, W)``; or a list of tensors;
            - numbers are uint8, or floats from 0 to 1, not normalised: the run does that;
            - features: floats ``(N, D)``, an array or a tensor;
            - a ``Split`` or an ``ImageSource``.
    """
    if isinstance(images, Split):
        return images.images
    if isinstance(images, ImageSource):
        return images
    if isinstance(images, str | os.PathLike):
        return _files([images])
    if isinstance(images, Image.Image):
        return InMemoryImages([images])
    if isinstance(images, np.ndarray | Tensor):
        return _from_numbers(images)
    if not isinstance(images, Sequence) or isinstance(images, bytes):
        raise InputError(f"pictures are {_KINDS}; not {type(images).__name__}.")
    if all(isinstance(item, str | os.PathLike) for item in images):
        return _files(images)
    for place, item in enumerate(images):
        if not isinstance(item, Image.Image | np.ndarray | Tensor):
            mixed = " Paths and pictures cannot be mixed." if isinstance(item, str | os.PathLike) else ""
            raise InputError(f"item {place} is a {type(item).__name__}: pictures are {_KINDS}.{mixed}")
    return InMemoryImages(images)


def _files(names: Sequence[str | os.PathLike[str]]) -> FileImages:
    paths = [Path(name).absolute() for name in names]
    return FileImages(paths[0].anchor if paths else ".", [os.fspath(path) for path in paths])


def _from_numbers(values: NDArray[Any] | Tensor) -> ImageSource:
    """Tell features, one picture and many apart by their shape."""
    first = isinstance(values, Tensor)
    floating = values.is_floating_point() if isinstance(values, Tensor) else values.dtype.kind == "f"
    if values.ndim == 2 and floating:
        return FeatureVectors(values.detach().cpu().float().numpy() if isinstance(values, Tensor) else values)
    many = values.ndim == 4 or (values.ndim == 3 and not first and values.shape[-1] not in (1, 3))
    return InMemoryImages(list(values) if many else [values])


def _check_numbers(picture: NDArray[Any] | Tensor, what: str) -> None:
    """Refuse what is no picture: its shape, its type, or numbers that are not on the scale 0 … 1."""
    shape = tuple(picture.shape)
    if isinstance(picture, Tensor):
        fits, wanted = len(shape) == 3 and shape[0] in (1, 3), "(C, H, W) with C 1 or 3, or (N, C, H, W)"
        floating, kind = picture.is_floating_point(), str(picture.dtype).removeprefix("torch.")
    else:
        fits = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
        wanted = "(H, W), (H, W, 3) or (N, H, W, 3)"
        floating, kind = picture.dtype.kind == "f", str(picture.dtype)
    where = "a tensor" if isinstance(picture, Tensor) else "an array"
    if not fits or 0 in shape:
        raise InputError(f"{what} is {where} of shape {shape}: pictures are {wanted}.")
    if kind == "uint8":
        return
    if not floating:
        raise InputError(f"{what} is {where} of {kind}: pictures are uint8 (0…255), or floats from 0 to 1.")
    low, high = float(picture.min()), float(picture.max())
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"{what} has values from {low:g} to {high:g}: pictures of floats run from 0 to 1, and are not normalised "
            "(the run does that itself). Divide by 255, or give uint8."
        )
