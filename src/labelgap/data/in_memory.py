"""Images as a Python program holds them: paths, Pillow images, arrays, tensors or features; one or many."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.data.dataset import Split
from labelgap.data.decoding import DecodedImage, exif_orientation
from labelgap.data.images import FeatureVectors, FileImages, ImageSource, NamedRows
from labelgap.data.readers.image_paths import images_below
from labelgap.labels.codes import is_tensor

if TYPE_CHECKING:
    from torch import Tensor

_KINDS: Final = (
    "paths of files, Pillow images, uint8 arrays (H, W), (H, W, 3) or (N, H, W, 3), tensors (C, H, W) or (N, C, H, W) "
    "of uint8 or of floats from 0 to 1, a split or an image source; or features (N, D) where a run was trained on "
    "features"
)


class InMemoryImages(NamedRows):
    """Images of any sizes and kinds in memory (``as_image_source``); each is converted to uint8 when it is read."""

    row_fields = ("images",)

    def __init__(self, images: Sequence[Any]) -> None:
        self.images = tuple(images)
        self.set_names(None, len(self.images), "images")
        for number, image in enumerate(self.images):
            if not isinstance(image, Image.Image):
                _check_values(image, f"image {number}" if len(self.images) > 1 else "the image")

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        image = self.images[row]
        if isinstance(image, Image.Image):
            image.load()
            return DecodedImage(image, exif_orientation(image)).pixels()
        if is_tensor(image):
            image = image.detach().cpu().numpy().transpose(1, 2, 0)
        image = image[..., None] if image.ndim == 2 else image
        if image.dtype != np.uint8:
            image = np.rint(255 * image.astype(np.float64)).astype(np.uint8)
        return np.array(image, order="C")

    def fingerprint(self) -> str:
        """Return a hash of every image."""
        digest = hashlib.blake2b(digest_size=16)
        for row in range(len(self)):
            pixels = self[row]
            digest.update(repr(pixels.shape).encode() + pixels.tobytes())
        return digest.hexdigest()


def as_image_source(images: Any) -> ImageSource:
    """Return an image source of whatever a caller passes to ``Run.predict``.

    Arrays have their channels last, tensors first; values are uint8, or floats from 0 to 1, not normalized. ``(H, W)``,
    ``(H, W, 1 or 3)`` and a tensor of three axes are one image, one axis more is several; floats ``(N, D)`` are
    features. A folder stands for all images below it in the order of their names.
    """
    if isinstance(images, Split):
        return images.images
    if isinstance(images, ImageSource):
        return images
    if isinstance(images, np.ndarray) or is_tensor(images):
        return _from_values(images)
    if isinstance(images, str | os.PathLike | Image.Image):
        images = [images]
    if not isinstance(images, Sequence) or isinstance(images, bytes):
        raise InputError(f"images are {_KINDS}; not {type(images).__name__}.")
    if all(isinstance(item, str | os.PathLike) for item in images):
        paths = [Path(name).absolute() for name in images]
        if len(paths) == 1 and paths[0].is_dir():
            return FileImages(paths[0], [os.path.relpath(name, paths[0]) for name in images_below(paths[0])])
        return FileImages(paths[0].anchor if paths else ".", [os.fspath(path) for path in paths])
    for number, item in enumerate(images):
        if not (isinstance(item, Image.Image | np.ndarray) or is_tensor(item)):
            mixed = " Paths and images cannot be mixed." if isinstance(item, str | os.PathLike) else ""
            raise InputError(f"item {number} is a {type(item).__name__}: images are {_KINDS}.{mixed}")
    return InMemoryImages(images)


def _from_values(values: NDArray[Any] | Tensor) -> ImageSource:
    channels_first = is_tensor(values)
    floating = values.is_floating_point() if is_tensor(values) else values.dtype.kind == "f"
    if values.ndim == 2 and floating:
        return FeatureVectors(values.detach().cpu().float().numpy() if is_tensor(values) else values)
    many = values.ndim == 4 or (values.ndim == 3 and not channels_first and values.shape[-1] not in (1, 3))
    return InMemoryImages(list(values) if many else [values])


def _check_values(image: NDArray[Any] | Tensor, name: str) -> None:
    shape, dtype = tuple(image.shape), str(image.dtype).removeprefix("torch.")
    if is_tensor(image):
        container, expected, channels = "a tensor", "(C, H, W) with C 1 or 3, or (N, C, H, W)", shape[:1]
    else:
        container, expected, channels = "an array", "(H, W), (H, W, 3) or (N, H, W, 3)", shape[2:] or (1,)
    if len(shape) not in ((3,) if is_tensor(image) else (2, 3)) or channels not in ((1,), (3,)) or 0 in shape:
        raise InputError(f"{name} is {container} of shape {shape}: images are {expected}.")
    if dtype == "uint8":
        return
    if "float" not in dtype:
        raise InputError(f"{name} is {container} of {dtype}: images are uint8 (0…255), or floats from 0 to 1.")
    low, high = float(image.min()), float(image.max())
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"{name} has values from {low:g} to {high:g}: float images run from 0 to 1 and are not normalized (the run "
            "does that). Divide by 255, or pass uint8."
        )
