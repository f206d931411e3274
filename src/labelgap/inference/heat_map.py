"""A class activation map as an image to be laid over the photo."""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_COLOR: Final = (213, 94, 0)
_MAX_ALPHA: Final = 170


def heat_map_png(activations: NDArray[np.float32], size: tuple[int, int], side: int = 256) -> bytes:
    """Return a map ``(h, w)`` as one color whose opacity grows with the activation, a transparent PNG.

    The average of the map and what is below it is transparent.

    Args:
        activations: the map.
        size: width and height of the image, whose shape the PNG has.
        side: the longer side of the PNG.
    """
    above = np.clip(activations - activations.mean(), 0, None)
    share = above / max(float(above.max()), 1e-12)
    width, height = (max(1, round(side * length / max(size))) for length in size)
    alpha = Image.fromarray(np.rint(share * _MAX_ALPHA).astype(np.uint8))
    alpha = alpha.resize((width, height), Image.Resampling.BICUBIC)
    overlay = Image.new("RGBA", alpha.size, (*_COLOR, 0))
    overlay.putalpha(alpha)
    buffer = io.BytesIO()
    overlay.save(buffer, "PNG")
    return buffer.getvalue()
