"""One image file to upright RGB, or an error that says which file and why.

Pillow reads the file. This package adds what Pillow leaves to the caller: a fixed list of formats and bounds on size
(``image_file``), EXIF orientation, transparency and samples of more than eight bits (``decoded_image``), and a bound on
what threads decode at once (``decoder``).
"""

from __future__ import annotations

from labelgap.data.decoding.decoded_image import DecodedImage, exif_orientation
from labelgap.data.decoding.decoder import decode, decoded
from labelgap.data.decoding.image_file import (
    FORMATS,
    EncodedImage,
    ImageAccessError,
    UnreadableImageError,
    check_file,
    max_pixels,
    open_image,
)

__all__ = [
    "DecodedImage",
    "EncodedImage",
    "FORMATS",
    "ImageAccessError",
    "UnreadableImageError",
    "check_file",
    "decode",
    "decoded",
    "exif_orientation",
    "max_pixels",
    "open_image",
]
