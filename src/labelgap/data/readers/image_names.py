"""Names of image files: their suffixes, and the form in which two spellings of one name are equal."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

IMAGE_SUFFIX: Final = re.compile(
    r"\.(?:jpe?g|jpe|jfif|png|gif|bmp|webp|tiff?|hei[cf]|hif|avif|jp2|p[pgbn]m)", re.IGNORECASE
)
_SAME_FORMAT: Final = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "tiff": "tif"}


def is_image_name(name: str) -> bool:
    """Return whether a file's name has the suffix of an image format; hidden files are not images.

    Example:
        >>> is_image_name("a.JPG"), is_image_name("notes.txt"), is_image_name("._a.jpg")
        (True, False, False)
    """
    return name != without_suffix(name) and not name.startswith(".")


def without_suffix(name: str) -> str:
    """Return a name without the suffix of an image."""
    head, dot, last = name.rpartition(".")
    return head if IMAGE_SUFFIX.fullmatch(dot + last) else name


def image_suffix(name: str) -> str:
    """Return the suffix of an image in lower case; "" where there is none."""
    return name[len(without_suffix(name)) :].lower()


def normalize_name(path: str) -> str:
    """Return a path in a normal form: lower case, composed accents, forward slashes, one suffix for one format.

    Example:
        >>> normalize_name("Trip\\\\A.JPEG")
        'trip/a.jpg'
    """
    key = unicodedata.normalize("NFC", path.replace("\\", "/")).casefold()
    head, dot, last = key.rpartition(".")
    return head + dot + _SAME_FORMAT.get(last, last)
