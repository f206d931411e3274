"""A few random labels of many classes, each of another image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelgap.core.seeds import numpy_generator


def diverse_sample(images: NDArray[np.int64], kinds: NDArray[np.int64], count: int, name: str) -> NDArray[np.int64]:
    """Return the positions of at most ``count`` entries, one per image; a kind comes again after every other kind.

    Args:
        images: ``(R,)`` image of every entry.
        kinds: ``(R,)`` kind of every entry, e.g. its class.
        count: how many to take.
        name: of the random numbers: the same entries and name give the same sample.

    Example:
        >>> kinds = np.array([0, 0, 0, 0, 1])
        >>> sorted(kinds[diverse_sample(np.array([5, 6, 7, 8, 9]), kinds, 2, "example")].tolist())
        [0, 1]
    """
    order = numpy_generator(0, name).permutation(len(images))
    by_kind = order[np.argsort(kinds[order], kind="stable")]
    _, first, lengths = np.unique(kinds[by_kind], return_index=True, return_counts=True)
    turn = np.empty(len(order), dtype=np.int64)
    turn[by_kind] = np.arange(len(order)) - np.repeat(first, lengths)
    in_turn = order[np.argsort(turn[order], kind="stable")]
    _, places = np.unique(images[in_turn], return_index=True)
    return in_turn[np.sort(places)[:count]]
